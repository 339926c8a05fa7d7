"""Small arithmetic on sizes that all plans share."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.cpu.machine_code.levels import level

LINE = 64  # bytes of a cache line
AHEAD = 4 << 10  # bytes from what is read to what is prefetched, about: it lies in the last-level cache, or beyond it
PAGE = 4096  # bytes


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The smallest multiple of b that is not below a."""
    return -(-a // b) * b


def sum_bytes(dtype: np.dtype[Any]) -> int:
    """Bytes of an element in the type that sums are made in: float32, or float64 for float64."""
    return 8 if dtype.name == "float64" else 4


def tile_rows(vectors: int = 2) -> int:
    """The most rows of a register tile `vectors` wide: its sums, one row of B and a broadcast share the registers."""
    return max(1, min(28 if vectors == 1 else 14, (level().registers - vectors - 1) // vectors))
