"""Files that a command is to write: whether they can be, before a long run begins."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def check_written(paths: Iterable[Path | None]) -> None:
    """A ValueError for a file whose folder is missing or read-only, or that is a folder."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"there is no folder {str(path.parent)!r} for {path.name!r}")
        if path is not None and path.is_dir():
            raise ValueError(f"{str(path)!r} is a folder, not a file to write")
        if path is not None and not os.access(path.parent, os.W_OK):
            raise ValueError(f"the folder {str(path.parent)!r} cannot be written to")
