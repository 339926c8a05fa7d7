"""Which source cells a tile loads and what each of them adds to, as the kernels unroll it. Imports nothing of a GPU's.

A base of a tile stands for a box of result cells; base b has the cells b box + first + c, with c inside the extent. Each of them is
a sum of its own, so that a source cell is loaded once for all of them: neighbouring rows share the rows of their windows, and the
phases of a stride share the outputs that read them. In `few` the cells of an inner box are columns of one sum instead.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from pullback.cuda.axes import MOST_KEPT, Three, axes_of, phases_of
from pullback.problem import Problem

Pairs = tuple[tuple[int, int], ...]  # (tap or number of a weight, source offset) of a cell of an axis
Loads = tuple[tuple[Three, tuple[tuple[int, int], ...]], ...]  # (offset from the base's source cell, (sum, weight) ...)

MOST_SUMS = 8  # phases of one program
MOST_COLUMNS = 64


class Gather(NamedTuple):
    """What a tile of bases loads and sums. `step`: source cells from one base to the next."""

    box: Three
    first: Three
    extent: Three
    inner: Three
    step: Three
    loads: Loads
    low: Three  # of the sources' offsets from a base, and how many there are: the weights of `few` are numbered so
    counts: Three

    @property
    def dots(self) -> int:
        return sum(len(uses) for _, uses in self.loads)

    def bases(self, size: Three) -> Three:
        return tuple(-(-n // b) for n, b in zip(size, self.box, strict=True))  # type: ignore[return-value]


def _joined(axes: list[list[Pairs]], weights: Three) -> Loads:
    """The loads of a box from the pairs of each cell of each axis, column by column of the windows: so few weights at a time
    are in registers.
    """
    found: dict[Three, list[tuple[int, int]]] = {}
    for number, cells in enumerate(product(*axes)):
        for pairs in product(*cells):
            offset: Three = tuple(pair[1] for pair in pairs)  # type: ignore[assignment]
            weight = (pairs[0][0] * weights[1] + pairs[1][0]) * weights[2] + pairs[2][0]
            found.setdefault(offset, []).append((number, weight))
    return tuple(
        (offset, tuple(found[offset])) for offset in sorted(found, key=lambda offset: (offset[0], offset[2], offset[1]))
    )


@lru_cache(MOST_KEPT)
def forward(problem: Problem, rows: int) -> Gather:
    """Outputs read their windows; a box is so many rows of outputs. Offsets are counted from the padding on."""
    axes = axes_of(problem)
    box = (1, rows, 1)
    cells = [
        [tuple((t, y * s + t * d) for t in range(k)) for y in range(b)]
        for k, s, d, b in zip(axes.kernel, axes.stride, axes.dilation, box, strict=True)
    ]
    step: Three = tuple(b * s for b, s in zip(box, axes.stride, strict=True))  # type: ignore[assignment]
    return Gather(box, (0, 0, 0), box, (1, 1, 1), step, _joined(cells, axes.kernel), (0, 0, 0), (1, 1, 1))


def _reached(problem: Problem, box: Three) -> list[list[Pairs]]:
    """By which tap each cell of a box is read from which output, counted from the box's first one."""
    found = []
    for phases, s, b in zip(phases_of(problem), axes_of(problem).stride, box, strict=True):
        cells: list[Pairs] = []
        for cell in range(b):
            whole, start = divmod(cell, s)
            there = phases[start] if start < len(phases) else ()
            cells.append(tuple((tap, whole + shift) for tap, shift in there))
        found.append(cells)
    return found


@lru_cache(MOST_KEPT)
def input_gradient(problem: Problem, rows: int) -> tuple[Gather, ...]:
    """Cells gather the outputs that read them; a box is the phases of the stride, times so many of them along the height."""
    axes = axes_of(problem)
    box: Three = (axes.stride[0], axes.stride[1] * rows, axes.stride[2])
    step: Three = (1, rows, 1)
    cells = _reached(problem, box)
    if prod(box) <= MOST_SUMS:
        return (Gather(box, (0, 0, 0), box, (1, 1, 1), step, _joined(cells, axes.kernel), (0, 0, 0), (1, 1, 1)),)
    found = []
    for first in product(*map(range, box)):  # one after the other
        alone = [[axis[i]] for axis, i in zip(cells, first, strict=True)]
        if all(i < n for i, n in zip(first, axes.size, strict=True)):
            loads = _joined(alone, axes.kernel)
            found.append(Gather(box, first, (1, 1, 1), (1, 1, 1), step, loads, (0, 0, 0), (1, 1, 1)))  # type: ignore[arg-type]
    return tuple(found)


def inner_box(problem: Problem) -> Three:
    """The cells whose channels are columns side by side: the phases, or where there is only one a few neighbours."""
    stride = axes_of(problem).stride
    if prod(stride) > 1:
        return stride
    return (1, 1, 4) if problem.window.rank == 1 else (1, 2, 2)


@lru_cache(MOST_KEPT)
def few(problem: Problem, rows: int) -> Gather:
    """The input gradient of few channels, with an inner box in the columns of each of so many sums along the height."""
    inner, stride = inner_box(problem), axes_of(problem).stride
    box = (inner[0], inner[1] * rows, inner[2])
    reach = [sorted({offset for pairs in axis for _, offset in pairs}) or [0] for axis in _reached(problem, inner)]
    low: Three = tuple(axis[0] for axis in reach)  # type: ignore[assignment]
    count: Three = tuple(axis[-1] - axis[0] + 1 for axis in reach)  # type: ignore[assignment]
    step: Three = tuple(b // s for b, s in zip(box, stride, strict=True))  # type: ignore[assignment]
    outer = (1, rows, 1)
    cells = [
        [tuple((offset - first, offset + y * (i // s)) for offset in axis) for y in range(b)]
        for axis, first, i, s, b in zip(reach, low, inner, stride, outer, strict=True)
    ]
    return Gather(box, (0, 0, 0), outer, inner, step, _joined(cells, count), low, count)
