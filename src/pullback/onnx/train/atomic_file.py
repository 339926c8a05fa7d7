"""Files that are there whole or not at all: written beside their place, flushed to the disk, then moved into it."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from pullback.onnx.errors import OnnxError


def write_atomically(path: Path, parts: Iterable[bytes | memoryview], what: str) -> None:
    """Replace a file by these bytes. Where that fails, the old one is as it was and nothing is left beside it.

    The folder is flushed too, so that after a power cut it names either the old file or the new one.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
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
        reason = error.strerror or str(error)
        kept = "; the file that was there before is unchanged" if path.exists() else ""
        raise OnnxError(f"{what} could not be written to '{path}': {reason}{kept}") from error
    _flush_folder(path.parent)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _flush_folder(folder: Path) -> None:
    """Where the system has no such thing (Windows, some network disks), moving the file has to do."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
