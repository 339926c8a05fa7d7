"""Object code on disk: only what nobody else can have written is loaded, and only where nobody else can write is anything kept."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from pullback.cpu.machine_code import trust
from pullback.cpu.machine_code.keys import fingerprint, key_of
from pullback.cpu.machine_code.object_files import is_loadable
from pullback.cpu.machine_code.variants import ObjectCode, Variant

CACHE_VARIABLE = "PULLBACK_CACHE_DIR"
MOST_BYTES = 16 << 20  # of a file; kernels have some 10 to 100 KiB

_warned: set[str] = set()


def cache_directory() -> Path:
    """Where object code is kept: $PULLBACK_CACHE_DIR, or the user's cache folder."""
    if asked := os.environ.get(CACHE_VARIABLE):
        return Path(asked)
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home keeps nothing: below a file that is no folder
        home = Path(os.devnull)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home) / "pullback" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "pullback"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "pullback"


def cache_folder() -> Path:
    """Where the object code for this level is kept; other versions and levels have folders of their own."""
    return cache_directory() / fingerprint()


def is_kept() -> bool:
    """Whether object code compiled now could be kept for other processes; makes the folder where it can."""
    return make_folder(cache_folder())


def file_of(variant: Variant) -> Path:
    return cache_folder() / f"{key_of(variant)}.o"


def _is_ours(folder: Path) -> bool:
    """Whether a folder may be used; where others could change it, one warning says what to do."""
    why = trust.why_shared(folder)
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


def _names(value: Any) -> tuple[str, ...] | None:
    is_names = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return tuple(value) if is_names else None


def read(variant: Variant) -> ObjectCode | None:
    """What is kept of a variant; None where that is missing, damaged, of another variant, or perhaps not ours.

    The first line is the hash of all that follows.
    """
    path = file_of(variant)
    found = trust.contents(path, MOST_BYTES) if _is_ours(path.parent) else None
    if found is None:
        return None
    digest, _, rest = found.partition(b"\n")
    if digest != hashlib.sha256(rest).hexdigest().encode():
        return None
    first, _, contents = rest.partition(b"\n")
    try:
        header = json.loads(first)
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict) or header.get("variant") != str(variant):
        return None
    fields, functions = _names(header.get("fields")), _names(header.get("functions"))
    if fields is None or functions is None or not is_loadable(contents, variant.symbols(functions)):
        return None
    return ObjectCode(str(variant), fields, functions, contents)


def write(variant: Variant, made: ObjectCode) -> None:
    """Keep object code; a read-only place keeps none."""
    path = file_of(variant)
    if not make_folder(path.parent):
        return
    header = {"variant": made.variant, "fields": made.fields, "functions": made.functions}
    rest = json.dumps(header).encode() + b"\n" + made.contents
    write_aside(path, hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)


def write_aside(path: Path, contents: bytes) -> bool:
    """Write a file aside and rename it, so that other processes see all or nothing; whether that could be done."""
    try:
        handle, aside = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    except OSError:
        return False
    try:
        with open(handle, "wb") as file:
            file.write(contents)
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(aside)
        if not isinstance(error, OSError):  # Ctrl-C
            raise
        return False
    return True
