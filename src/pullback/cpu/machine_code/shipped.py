"""The libraries of a wheel: kernels compiled when it was built, one library for each level and dtype, with an index of each level.

They are used where version and sources are those that they were built from, and where nobody can have written them who could not
change the package itself as well. What is not found here is compiled.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import stat
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pullback.cpu.machine_code import trust
from pullback.cpu.machine_code.keys import key_of, recipe
from pullback.cpu.machine_code.levels import level
from pullback.cpu.machine_code.variants import Code, Variant

FOLDER = Path(__file__).parents[1] / "shipped"  # in a wheel; a checkout has none
INDEX = "index.json"
MOST_BYTES = 256 << 20  # of a library; they have some 3 MiB

_warned: set[str] = set()


@dataclass(frozen=True)
class Index:
    """What the libraries of a level hold: by dtype the hash of a library, by key the fields and functions of a kernel."""

    libraries: dict[str, str]
    kernels: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]


def write_index(folder: Path, libraries: dict[str, str], kernels: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
    """Of libraries that have just been built, for the level in force."""
    records = sorted(set(kernels.values()))  # many kernels take the same
    numbers = {key: records.index(record) for key, record in sorted(kernels.items())}
    text = json.dumps({"recipe": recipe(), "libraries": libraries, "records": records, "kernels": numbers}, indent=0)
    (folder / INDEX).write_text(text)


def library_name(dtype: str) -> str:
    return f"{dtype}.so"


@cache
def _index(folder: Path) -> Index | None:
    """The index of a level; None where there is none for this very version, or where it could be a stranger's."""
    path = folder / INDEX
    if not os.path.lexists(path):
        return None
    why, found = _read(path)
    if why is not None:
        _warn(why)
        return None
    try:
        read = json.loads(found)
        if read["recipe"] != recipe():
            return None
        records = [(tuple(fields), tuple(functions)) for fields, functions in read["records"]]
        return Index(dict(read["libraries"]), {key: records[number] for key, number in read["kernels"].items()})
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        _warn(f"{path} is damaged")
        return None


def _level_folder() -> Path:
    return FOLDER / level().name


def is_there() -> bool:
    """Whether kernels are shipped for the level in force."""
    return _index(_level_folder()) is not None


def count() -> int:
    """How many are."""
    index = _index(_level_folder())
    return 0 if index is None else len(index.kernels)


def _why_not(path: Path) -> str | None:
    """Why a file could be a stranger's, in words: of itself, and of the folders between it and the package."""
    package = os.stat(FOLDER.parents[1])
    for part in (FOLDER, path.parent, path):
        found = os.lstat(part)
        if stat.S_ISLNK(found.st_mode):  # an installer's link into its own store
            real = Path(os.path.realpath(part))
            why = trust.why_shared(real if real.is_dir() else real.parent) or trust.who_else(os.stat(real))
        else:
            why = trust.who_else(found, package)
        if why is not None:
            return f"{part} {why}"
    return None


def _read(path: Path) -> tuple[str | None, bytes]:
    """Why a file is not used, or its contents."""
    try:
        why = _why_not(path)
        found = trust.contents(Path(os.path.realpath(path)), MOST_BYTES, os.stat(FOLDER.parents[1])) if why is None else None
    except OSError as error:
        return f"{path} cannot be read ({error})", b""
    if found is None:
        return why or f"{path} cannot be read", b""
    return None, found


@cache
def _library(path: Path, digest: str) -> tuple[str | None, Any]:
    """Why a library is not used, or the library."""
    real = os.path.realpath(path)
    try:
        before = os.stat(real)
        why, contents = _read(path)
        if why is None and hashlib.sha256(contents).hexdigest() != digest:
            why = f"{path} is not the file that was built"
        if why is not None:
            return why, None
        library = ctypes.CDLL(real)
        after = os.stat(real)
    except OSError as error:
        return f"{path} cannot be loaded ({error})", None
    if (after.st_dev, after.st_ino, after.st_mtime_ns) != (before.st_dev, before.st_ino, before.st_mtime_ns):
        return f"{path} was exchanged while it was loaded", None
    return None, library


def _warn(why: str) -> None:
    """Once for each reason."""
    if why not in _warned:
        _warned.add(why)
        text = f"kernels shipped with pullback are not used, because {why}; install it again"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def find(variant: Variant) -> Code | None:
    """The code of a variant in the libraries; None where it is not there."""
    folder = _level_folder()
    index = _index(folder)
    record = None if index is None else index.kernels.get(key_of(variant))
    if index is None or record is None or variant.dtype not in index.libraries:
        return None
    why, library = _library(folder / library_name(variant.dtype), index.libraries[variant.dtype])
    if why is not None:
        _warn(why)
        return None
    fields, functions = record
    try:
        addresses = [ctypes.cast(library[symbol], ctypes.c_void_p).value or 0 for symbol in variant.symbols(functions)]
    except AttributeError:  # no such function
        return None
    return Code(addresses[0], fields, dict(zip(functions, addresses, strict=False)))
