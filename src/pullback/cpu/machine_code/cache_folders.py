"""The cache folders of all versions and machines: how large they are, when they were last used, and removing old ones."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pullback.cpu.machine_code.disk_cache import cache_directory, cache_folder
from pullback.settings import UNUSED_DAYS

DAY = 24 * 60 * 60.0
GONE = ".gone"  # of a folder that is being removed, or whose removal was broken off
OWN_NAME = re.compile(rf"[0-9a-f]{{20}}({re.escape(GONE)})?")  # nothing else in there was made by us


@dataclass(frozen=True)
class CacheFolder:
    """The object code of one version on one machine. `last_used` is a time.time()."""

    path: Path
    kernels: int
    size_bytes: int
    last_used: float

    @property
    def is_current(self) -> bool:
        return self.path == cache_folder()

    def unused_days(self) -> float:
        return max(0.0, time.time() - self.last_used) / DAY


def cache_folders() -> list[CacheFolder]:
    """All of them, the one in use and what is left of broken removals included."""
    found = []
    with suppress(OSError):
        named = [path for path in cache_directory().iterdir() if OWN_NAME.fullmatch(path.name)]
        found = sorted(path for path in named if path.is_dir() and not path.is_symlink())
    return [folder for path in found if (folder := _look(path)) is not None]


def _look(path: Path) -> CacheFolder | None:
    """What a folder holds; None where another process has removed it meanwhile.

    A file's time of last access is when a process last loaded it, on most systems to the day; where the system does not keep it
    a folder counts as used when something was last compiled into it.
    """
    try:
        files = [file.stat() for file in path.glob("*.o")]
        used = max([path.stat().st_mtime, *(max(file.st_atime, file.st_mtime) for file in files)])
    except OSError:
        return None
    return CacheFolder(path, len(files), sum(file.st_size for file in files), used)


def prune(days: float = UNUSED_DAYS) -> Iterator[CacheFolder]:
    """Remove the folders of other versions and machines that nobody has used for so many days; those removed.

    A folder is renamed before it is emptied: a process that still wants it sees all of it or nothing, and compiles again.
    """
    for folder in cache_folders():
        broken_off = folder.path.suffix == GONE
        if not broken_off and (folder.is_current or folder.unused_days() < days):
            continue
        aside = folder.path.with_suffix(GONE)
        if not broken_off:
            try:
                folder.path.rename(aside)
            except OSError:  # another process removes it, or it is not ours to remove
                continue
        shutil.rmtree(aside, ignore_errors=True)
        if not aside.exists():
            yield folder
