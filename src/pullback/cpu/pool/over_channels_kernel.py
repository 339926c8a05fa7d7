"""Loops over the channels of a cell, four registers at a time, that the kernels with vectors of channels share."""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.simd.native import fence, stream_bytes
from pullback.cpu.simd.vectors import inline


@cache
def make_over_channels(lanes: Any) -> tuple[Any, Any]:
    """(over_channels, over_many_channels) for one element type."""
    V, P, Q = lanes.count, 2 * lanes.count, 4 * lanes.count

    @inline
    def over_channels(c, channels, four, two, some, given):
        """The channels of a cell from c on: body(first, how many, *given) by four registers, by two, the rest under a mask."""
        while c + Q <= channels:
            four(c, Q, *given)
            c += Q
        if c + P <= channels:
            two(c, P, *given)
            c += P
        while c < channels:
            some(c, min(V, channels - c), *given)
            c += V

    @inline
    def over_many_channels(channels, eight, four, two, some, given):
        """All channels of a cell, eight registers at first: the prefetcher wants long runs."""
        c = 0
        while c + 2 * Q <= channels:
            eight(c, 2 * Q, *given)
            c += 2 * Q
        over_channels(c, channels, four, two, some, given)

    return over_channels, over_many_channels


@inline
def finish_rows(target, begin, size, stage, streams):
    """Stream staged rows past the cache; wait for what was streamed."""
    if stage:
        stream_bytes(target, begin, size)
    if stage or streams:
        fence()
