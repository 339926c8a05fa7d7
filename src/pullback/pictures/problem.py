"""What a picture shows: one problem, run by the library's own ops, and questions about it answered by its geometry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from string import ascii_letters
from typing import Any

import numpy as np

import pullback as pb
from pullback.ops.explain import PREPARE
from pullback.pictures.inputs import as_values, check_limits, check_op, random_filter
from pullback.registry import REFERENCE
from pullback.rules import Array
from pullback.shown import shown
from pullback.window import Ints, Window

Cell = tuple[int, ...]
LETTERS = ascii_letters  # the small ones first


@dataclass(frozen=True)
class DrawnProblem:
    """One op on one image of one channel, with its result and gradients; every array has the spatial axes alone."""

    op: str
    call: str
    window: Window
    x: Array
    y: Array
    dy: Array
    dx: Array
    winning_taps: Array | None = None  # max_pool: numbers as return_winners gives them
    divisors: Ints | None = None  # avg_pool
    filter: Array | None = None  # conv, and its gradient
    dfilter: Array | None = None

    @property
    def outputs(self) -> list[Cell]:
        return list(np.ndindex(*self.window.output_size))

    def number(self, output: Cell) -> int:
        """The row-major number of an output, and so of its window."""
        return int(np.ravel_multi_index(output, self.window.output_size))

    def label(self, output: Cell) -> str:
        """The name of a window: a letter, or a number where there are more windows than letters."""
        number = self.number(output)
        return LETTERS[number] if math.prod(self.window.output_size) <= len(LETTERS) else str(number + 1)

    def cells(self, output: Cell) -> list[Cell]:
        """The cells under the taps of a window, in the order of the taps; some may lie outside the input."""
        return [tuple(self.window.tap_cell(a, output[a], t) for a, t in enumerate(tap)) for tap in self.window.taps()]

    def is_read(self, cell: Cell) -> bool:
        """Whether windows may read the cell: it is inside the input, and not cropped by a negative pad."""
        w = self.window
        return all(max(0, -w.pad_low[a]) <= i < w.readable(a) for a, i in enumerate(cell))

    def is_padding(self, cell: Cell) -> bool:
        """Whether the cell lies in the padding that was asked for."""
        w = self.window
        inside = all(0 <= i < w.input_size[a] for a, i in enumerate(cell))
        return not inside and all(-w.pad_low[a] <= i < w.input_size[a] + w.pad_high[a] for a, i in enumerate(cell))

    @cached_property
    def winners(self) -> dict[Cell, Cell]:
        """The cell that wins each window of max_pool; a window that nothing wins is left out."""
        taps = {} if self.winning_taps is None else {output: int(self.winning_taps[output]) for output in self.outputs}
        return {output: self.cells(output)[tap] for output, tap in taps.items() if tap < self.window.tap_count}

    def won(self, cell: Cell) -> list[Cell]:
        """The windows that a cell wins."""
        return [output for output in self.readers(cell) if self.winners.get(output) == cell]

    def tied(self, cell: Cell) -> list[Cell]:
        """The windows whose maximum the cell equals, though another cell wins them."""
        others = [output for output in self.readers(cell) if self.winners.get(output, cell) != cell]
        return [output for output in others if _alike(self.x[cell], self.y[output])]

    def readers(self, cell: Cell) -> list[Cell]:
        """The windows that read a cell."""
        along = [[output for output, _ in self.window.covering(axis, i)] for axis, i in enumerate(cell)]
        return list(product(*along))

    def contributors(self, cell: Cell) -> list[Cell]:
        """The windows whose dy reaches the gradient of a cell."""
        return self.readers(cell) if self.winning_taps is None else self.won(cell)

    def phase(self, cell: Cell) -> Cell:
        """The stride phase of a cell, one residue per axis."""
        return tuple(i % s for i, s in zip(cell, self.window.stride, strict=True))

    def phase_of_tap(self, tap: Cell) -> Cell | None:
        """The stride phase whose cells a tap reaches; None where it reaches none."""
        found = []
        for axis, t in enumerate(tap):
            starts = [phase.start for phase in self.window.phases(axis) if t in phase.taps]
            if not starts:
                return None
            found.append(starts[0])
        return tuple(found)

    def extent(self, axis: int) -> range:
        """The cells of an axis that a picture shows: the input, its padding, and what windows reach beyond."""
        return _extent(self.window, axis)


def _extent(w: Window, axis: int) -> range:
    last = w.tap_cell(axis, w.output_size[axis] - 1, w.kernel[axis] - 1)
    return range(-max(0, w.pad_low[axis]), max(w.input_size[axis] + max(0, w.pad_high[axis]), last + 1))


def _alike(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))


def make_problem(
    op: str, x: Any, window: Any = None, *, filter: Any = None, dy: Any = None, seed: int = 0, **keywords: Any
) -> DrawnProblem:
    """The problem of a call of `draw`: its arguments checked, its arrays computed on the reference backend."""
    check_op(op, window, filter, keywords)
    rng = np.random.default_rng(seed)
    values = as_values("x", x, rng)
    if op == "conv":
        weights = random_filter(window, values, rng) if filter is None else as_values("filter", filter, None)
        if weights.ndim != values.ndim:
            raise ValueError(f"draw: filter has shape {weights.shape} but x has shape {values.shape}; give both the same axes")
        check_limits("filter", weights.shape)
        parts: tuple[Any, ...] = (_batched(values), weights.astype(values.dtype)[..., None, None])
        second = "filter"
    else:
        parts, second = (_batched(values), window), shown(window)
    prepared = PREPARE[op](*parts, **keywords)[0]
    geometry: Window = prepared.window
    check_limits("the output", geometry.output_size)
    check_limits("x with its padding", [len(_extent(geometry, axis)) for axis in range(geometry.rank)])
    given = np.ones(geometry.output_size, values.dtype) if dy is None else as_values("dy", dy, None).astype(values.dtype)
    if given.shape != geometry.output_size:
        raise ValueError(f"draw: dy has shape {given.shape} but the output has {geometry.output_size}")
    call = f"{op}({', '.join(['x', second, *(f'{name}={shown(value)}' for name, value in keywords.items())])})"
    with pb.backend(REFERENCE):
        arrays = _run(op, parts, _batched(given), keywords)
    if op == "avg_pool":
        arrays["divisors"] = geometry.divisor(prepared.divisor)
    return DrawnProblem(op=op, call=call, window=geometry, x=values, dy=given, **arrays)


def _run(op: str, parts: tuple[Any, ...], dy: Array, keywords: dict[str, Any]) -> dict[str, Array]:
    """The op and its gradients, by the names that the picture has for them."""
    x, second = parts
    if op == "max_pool":
        y, taps = pb.max_pool(x, second, return_winners=True, **keywords)
        return {"y": y[0, ..., 0], "winning_taps": taps[0, ..., 0], "dx": _single(pb.max_pool_grad(dy, x, second, **keywords))}
    if op == "avg_pool":
        dx = pb.avg_pool_grad(dy, x.shape, second, **keywords)
        return {"y": _single(pb.avg_pool(x, second, **keywords)), "dx": _single(dx)}
    return {
        "y": _single(pb.conv(x, second, **keywords)),
        "dx": _single(pb.conv_grad_input(dy, second, x.shape, **keywords)),
        "filter": second[..., 0, 0],
        "dfilter": pb.conv_grad_filter(dy, x, second.shape, **keywords)[..., 0, 0],
    }


def _batched(values: Array) -> Array:
    """As the ops take it: a batch of one image with one channel."""
    return values[None, ..., None]


def _single(values: Array) -> Array:
    return values[0, ..., 0]
