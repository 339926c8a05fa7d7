"""Coefficients of channels as rows in scratch: where several rows of channels are taken as one, they stand there as often."""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.simd.vectors import inline


@cache
def make_spread(lanes: Any) -> Any:
    """spread(args, target, value, n): the first n lanes into a row in scratch, once for each of its copies of the channels."""
    SIZE, store_some = lanes.size, lanes.store_some

    @inline
    def spread(args, target, value, n):
        for copy in range(args.copies):
            store_some(target + copy * args.channels * SIZE, value, n)

    return spread
