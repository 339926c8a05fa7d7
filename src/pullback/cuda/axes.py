"""The geometry of a problem as the kernels take it: three axes, those that are missing of one cell, all numbers from `Window`."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

from pullback.problem import Problem

MOST_KEPT = 1024
Three = tuple[int, int, int]
Phases = tuple[tuple[tuple[int, int], ...], ...]  # of one axis: the (tap, shift) pairs of each phase of its stride


class Axes(NamedTuple):
    """Numbers of depth, height and width, and what else the addresses of a problem's arrays need."""

    size: Three
    out: Three
    kernel: Three
    stride: Three
    dilation: Three
    low: Three
    high: Three
    readable: Three
    last: bool  # channels_last: the columns of a tile are channels; else cells along the width, and each channel is an image
    images: int
    channels: int  # beside each other in memory: 1 in channels_first

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    def tile_grid(self, cells: Three) -> tuple[int, int]:
        """(rows, columns) of all tiles over images of these cells: see places_kernel.py."""
        count = self.images * prod(cells)
        return (count, self.channels) if self.last else (1, count)

    def readers(self) -> tuple[Three, Three, Three, Three, Three]:
        """(g, step, dilation step, inverse, most readers) of the axes, by which a cell finds the outputs that read it: output
        y reads it by tap t where y stride + t dilation = cell + low; divided by g, their greatest common divisor.
        """
        found = []
        for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True):
            g = gcd(s, d)
            found.append((g, s // g, d // g, pow(d // g, -1, s // g), -(-k // (s // g))))
        return tuple(zip(*found, strict=True))  # type: ignore[return-value]


def _three(values: Any, missing: int) -> Three:
    return (*(missing,) * (3 - len(values)), *values)


@lru_cache(MOST_KEPT)
def axes_of(problem: Problem) -> Axes:
    window = problem.window
    last = problem.layout == "channels_last"
    return Axes(
        size=_three(window.input_size, 1), out=_three(window.output_size, 1), kernel=_three(window.kernel, 1),
        stride=_three(window.stride, 1), dilation=_three(window.dilation, 1), low=_three(window.pad_low, 0),
        high=_three(window.pad_high, 0), readable=_three([window.readable(axis) for axis in range(window.rank)], 1),
        last=last, images=problem.batch if last else problem.batch * problem.channels_in,
        channels=problem.channels_in if last else 1,
    )  # fmt: skip


@lru_cache(MOST_KEPT)
def phases_of(problem: Problem) -> tuple[Phases, Phases, Phases]:
    """The phases of each axis: cell start + j stride is read by tap t from output j + shift."""
    window = problem.window
    found = [
        tuple(tuple(zip(phase.taps, phase.shifts, strict=True)) for phase in window.phases(axis)) for axis in range(window.rank)
    ]
    alone: Phases = (((0, 0),),)
    return (*(alone,) * (3 - len(found)), *found)  # type: ignore[return-value]
