"""Object code on disk: only what nobody else can have written is loaded, and only where nobody else can write is anything kept."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from pullback.cpu.engine.object_files import is_loadable

MOST_BYTES = 16 << 20  # of a file; kernels have some 10 to 100 KiB

_warned: set[str] = set()


def _is_own_group(number: int) -> bool:
    """Whether a group is that of this user alone, as many systems make one for everybody."""
    try:
        import grp
        import pwd

        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except (ImportError, KeyError):
        return False
    return number == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _who_else(found: os.stat_result) -> str | None:
    """Who beside this user and root can change a file or folder, in words; None: nobody. (Windows has no such bits.)"""
    if not hasattr(os, "geteuid"):
        return None
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to user {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid):
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
        who = _who_else(found)
        if who is not None and not (found.st_mode & stat.S_ISVTX and part != real and who.startswith("can")):
            return f"{part} {who}"
    return None


def _is_ours(folder: Path) -> bool:
    """Whether a folder may be used; where others could change it, one warning says what to do."""
    why = why_shared(folder)
    if why is not None and why not in _warned:
        _warned.add(why)
        warnings.warn(
            f"compiled kernels are neither loaded from disk nor kept there, because {why}; take that right from others "
            "(chmod go-w, chown) or set PULLBACK_CACHE_DIR to a folder of your own",
            RuntimeWarning,
            stacklevel=2,
        )
    return why is None


def make_folder(folder: Path) -> bool:
    """Make a folder for this user alone, and its parents, where they are missing; whether anything can be kept there."""
    try:
        for part in (*reversed(folder.parents), folder):
            if not part.exists():
                with suppress(FileExistsError):
                    part.mkdir(mode=0o700)
    except OSError:
        return False
    return folder.is_dir() and _is_ours(folder) and os.access(folder, os.W_OK)


def _contents(path: Path) -> bytes | None:
    """The bytes of a plain file that only this user or root can have written. What is asked about is the file that is read."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        number = os.open(path, flags | getattr(os, "O_BINARY", 0))
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES or _who_else(found) is not None:
                return None
            with open(number, "rb", closefd=False) as file:
                return file.read(MOST_BYTES)
        finally:
            os.close(number)
    except OSError:
        return None


def _is_header(header: Any, variant: str) -> bool:
    """Whether it is what a variant's code needs: the name of its function, and the fields of its record."""
    if not isinstance(header, dict) or header.get("variant") != variant or not isinstance(header.get("symbol"), str):
        return False
    fields = header.get("fields")
    return isinstance(fields, list) and all(isinstance(name, str) for name in fields)


def read(path: Path, variant: str) -> tuple[dict[str, Any], bytes] | None:
    """A kept (header, object code), or None where it is missing, damaged, of another variant, or perhaps not ours.

    The first line is the hash of all that follows.
    """
    contents = _contents(path) if _is_ours(path.parent) else None
    if contents is None:
        return None
    digest, _, rest = contents.partition(b"\n")
    if digest != hashlib.sha256(rest).hexdigest().encode():
        return None
    first, _, object_code = rest.partition(b"\n")
    try:
        header = json.loads(first)
    except (ValueError, RecursionError):
        return None
    if not _is_header(header, variant) or not is_loadable(object_code, header["symbol"]):
        return None
    return header, object_code


def write(path: Path, header: dict[str, Any], object_code: bytes) -> None:
    """Keep object code; written aside and renamed, so that other processes see all or nothing. A read-only place keeps none."""
    if not make_folder(path.parent):
        return
    rest = json.dumps(header).encode() + b"\n" + object_code
    try:
        handle, aside = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    except OSError:
        return
    try:
        with open(handle, "wb") as file:
            file.write(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(aside)
        if not isinstance(error, OSError):  # Ctrl-C
            raise
