"""The switch between the two voices of the dialect: mended (default), or ONNX Runtime 1.19.2 with its defects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pullback.settings import during

_active: ContextVar[bool] = ContextVar("pullback_ort_quirks", default=False)


@contextmanager
def quirks() -> Iterator[None]:
    """Answer inside the block as 1.19.2 did, defects and type limits included; blocks nest.

    What crashed there or depended on uninitialised memory is an exception here too.
    """
    with during(_active, True):
        yield


def quirks_active() -> bool:
    """Whether the caller stands inside `with quirks():`."""
    return _active.get()
