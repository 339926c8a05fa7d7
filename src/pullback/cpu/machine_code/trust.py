"""Who could have written a file: code is loaded only from where nobody else can write, and kept only there."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def _is_own_group(number: int) -> bool:
    """Whether a group is that of this user alone, as many systems make one for everybody."""
    try:
        import grp
        import pwd

        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except (ImportError, KeyError):
        return False
    return number == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def who_else(found: os.stat_result, besides: os.stat_result | None = None) -> str | None:
    """Who beside this user and root can change a file or folder, in words; None: nobody. (Windows has no such bits.)

    besides: something that is trusted already, such as the package's own folder; its owner and its group may.
    """
    if not hasattr(os, "geteuid"):
        return None
    if found.st_uid not in (0, os.geteuid()) and (besides is None or found.st_uid != besides.st_uid):
        return f"belongs to user {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    trusted = besides is not None and bool(besides.st_mode & stat.S_IWGRP) and found.st_gid == besides.st_gid
    if found.st_mode & stat.S_IWGRP and not trusted and not _is_own_group(found.st_gid):
        return f"can be written by group {found.st_gid}"
    return None


def why_shared(folder: Path) -> str | None:
    """Why others could put code into a folder, in words; None where they cannot.

    From the root down: nobody else can exchange a folder that lies in folders which nobody else can write, so that what was
    looked at once is what is used later. Where a folder has the sticky bit, as /tmp, others can add to it but not exchange.
    """
    real = Path(os.path.realpath(folder))
    for part in (*reversed(real.parents), real):
        try:
            found = os.lstat(part)
        except OSError:  # it does not exist yet
            return None
        if not stat.S_ISDIR(found.st_mode):  # nor ever will
            return None
        who = who_else(found)
        if who is not None and not (found.st_mode & stat.S_ISVTX and part != real and who.startswith("can")):
            return f"{part} {who}"
    return None


def contents(path: Path, most: int, besides: os.stat_result | None = None) -> bytes | None:
    """The bytes of a plain file that nobody else can have written, at most so many. What is asked about is what is read."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        number = os.open(path, flags | getattr(os, "O_BINARY", 0))
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode) or found.st_size > most or who_else(found, besides) is not None:
                return None
            with open(number, "rb", closefd=False) as file:
                return file.read(most)
        finally:
            os.close(number)
    except OSError:
        return None
