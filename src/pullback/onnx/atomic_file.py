"""Files that are there whole or not at all: written beside their place, flushed to the disk, then moved into it."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from pullback.onnx.errors import OnnxError

ENDING = ".tmp"
STALE_SECONDS = 2 * 3600  # no file takes that long to write


def write_atomically(path: Path, parts: Iterable[bytes | memoryview], what: str) -> None:
    """Replace a file by these bytes. Where that fails, the old one is as it was and nothing is left beside it.

    The folder is flushed too, so that after a power cut it names either the old file or the new one.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{ENDING}"
    try:
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
            try:
                for part in parts:
                    _write_all(descriptor, memoryview(part).cast("B"))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        folder = path.parent
        reason = error.strerror or str(error) if folder.is_dir() else f"there is no folder '{folder}'"
        kept = "; the file that was there before is unchanged" if path.exists() else ""
        raise OnnxError(f"{what} could not be written to '{path}': {reason}{kept}") from error
    flush_folder(path.parent)
    _remove_stale(path)


def _remove_stale(path: Path) -> None:
    """What writers of this file that were killed have left, hours ago."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{ENDING}"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def flush_folder(folder: Path) -> None:
    """So that the new name is on the disk too; where the system cannot (Windows, some network disks), moving has to do."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
