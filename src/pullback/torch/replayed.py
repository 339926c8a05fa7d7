"""Whether what is called now will be replayed from a CUDA graph: then its Python costs nothing, and small layers pay as well."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _State(threading.local):
    on = False


_state = _State()


def is_replayed() -> bool:
    return _state.on


@contextmanager
def to_be_replayed() -> Iterator[None]:
    """The calls of this thread in the block are recorded, or lead up to that with the same choices."""
    before, _state.on = _state.on, True
    try:
        yield
    finally:
        _state.on = before
