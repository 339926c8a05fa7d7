"""The switch between TF.js as it should be and TF.js as it is: outside `quirks()` its defects are mended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pullback.settings import during

_quirks: ContextVar[bool] = ContextVar("pullback_tfjs_quirks", default=False)


@contextmanager
def quirks() -> Iterator[None]:
    """Reproduce TF.js 4.22.0's defects value for value inside the block (this thread or task only)."""
    with during(_quirks, True):
        yield


def in_quirks() -> bool:
    return _quirks.get()
