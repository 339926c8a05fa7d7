"""Values that never end: lists that contain themselves, lists too deep to print, an endless iterator, a number of 5001 digits."""

from __future__ import annotations

from itertools import count
from typing import Any

ITSELF: list[Any] = []
ITSELF.append(ITSELF)
TWICE: list[Any] = []
TWICE += [TWICE, TWICE]  # NumPy would look at 2**64 lists
DEEP: list[Any] = []
for _ in range(10_000):
    DEEP = [DEEP]
LISTS = (ITSELF, TWICE, DEEP)
NO_END = (*LISTS, count(1), 10**5000)
