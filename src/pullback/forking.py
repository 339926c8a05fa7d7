"""Locks that a fork waits for, so that no other thread holds one in the child, where it would never be released."""

from __future__ import annotations

import logging  # noqa: F401 (before our locks: see below)
import os
import threading
from typing import Any

FRONT_END, REGISTRY, LOADING = range(3)  # who holds a lock may ask for one of a later level only

_locks = [threading.RLock() for _ in range(3)]


def lock_free_in_children(level: int) -> Any:
    """The re-entrant lock of a level."""
    return _locks[level]


# The methods themselves and no function around them, which a signal handler's exception could leave with a lock taken. A fork calls
# those for `before` in reverse: it takes the first level first, and the lock of `logging`, for which who imports packages under
# `loading` may ask, after all of ours.
if hasattr(os, "register_at_fork"):
    for _lock in reversed(_locks):
        os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
