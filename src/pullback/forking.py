"""Locks that a fork waits for, so that no other thread holds one in the child, where it would never be released."""

from __future__ import annotations

import os
import threading
from typing import Any

FRONT_END, REGISTRY, LOADING = range(3)  # who holds a lock may ask for one of a later level only

_locks: list[tuple[int, Any]] = []


def lock_free_in_children(level: int) -> Any:
    """A re-entrant lock of this level."""
    lock = threading.RLock()
    _locks.append((level, lock))
    _locks.sort(key=lambda known: known[0])
    return lock


_forks = threading.local()  # the locks that a fork of this thread has taken


def _take_all() -> None:
    _forks.taken = []
    for _, lock in tuple(_locks):
        lock.acquire()
        _forks.taken.append(lock)


def _release_all() -> None:
    while _forks.taken:
        _forks.taken.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_release_all, after_in_child=_release_all)
