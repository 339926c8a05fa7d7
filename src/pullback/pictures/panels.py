"""What stands in each cell of a picture: the panels x, y, dy, dx (and of a convolution w, dw) that every writer shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pullback.pictures.problem import Cell, DrawnProblem
from pullback.pictures.theme import COLOURS
from pullback.rules import Array

DIGITS = 3
MOST_TAGS, MOST_LONG_TAGS = 8, 2  # that a cell has room for: of one letter each, or of more


@dataclass(frozen=True)
class Tag:
    """The name of a window (or phase) in its colour; hollow where a cell only equals the window's maximum."""

    label: str
    colour: int
    hollow: bool = False


@dataclass(frozen=True)
class Content:
    """One cell. kind: "cell", "padding", "beyond" the padding, or "cropped" by a negative pad."""

    value: str = ""
    kind: str = "cell"
    name: Tag | None = None  # of the cell itself
    tags: tuple[Tag, ...] = ()  # of the windows that it wins, or that its gradient comes from
    note: str = ""
    weight: str = "plain"  # or "strong" or "faint"
    full: bool = False  # there was no room for all of its tags

    @property
    def tints(self) -> tuple[int, ...]:
        """The colours of its background, side by side."""
        tags = (self.name,) if self.name else self.tags
        return tuple(dict.fromkeys(tag.colour for tag in tags if not tag.hollow))


@dataclass(frozen=True)
class Panel:
    name: str
    caption: str
    rows: tuple[tuple[Content, ...], ...]
    first: Cell = (0, 0)  # row and column of the first cell: negative where padding comes before the input

    @property
    def columns(self) -> int:
        return len(self.rows[0])

    def contents(self) -> Iterable[Content]:
        return (content for row in self.rows for content in row)


def number_text(value: float) -> str:
    """A number as a cell can hold it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value + 0.0:.{DIGITS}g}" if value else "0"


def is_rounded(value: float) -> bool:
    return math.isfinite(value) and float(number_text(value)) != value


def window_colour(problem: DrawnProblem, output: Cell) -> int:
    """A colour of its own for each of a few windows; of many, neighbours differ."""
    if math.prod(problem.window.output_size) <= COLOURS:
        return problem.number(output)
    return sum(i * step for i, step in zip(reversed(output), (1, 3), strict=False)) % COLOURS


def window_tag(problem: DrawnProblem, output: Cell, *, hollow: bool = False) -> Tag:
    return Tag(problem.label(output), window_colour(problem, output), hollow)


def make_panels(problem: DrawnProblem, by: str) -> dict[str, Panel]:
    """The panels by name, in the order of reading."""
    phases = by == "phases"
    maker = _Maker(problem, phases)
    found = [
        maker.input_panel("x", "input", maker.x_cell),
        maker.plain_panel("y", "output", problem.y, maker.y_cell),
        maker.input_panel("dx", "gradient of x", maker.dx_cell),
        maker.plain_panel("dy", "gradient of y", problem.dy, maker.dy_cell),
    ]
    if problem.filter is not None and problem.dfilter is not None:
        found += [
            maker.plain_panel("w", "filter", problem.filter, maker.tap_cell(problem.filter)),
            maker.plain_panel("dw", "gradient of w", problem.dfilter, maker.tap_cell(problem.dfilter)),
        ]
    return {panel.name: panel for panel in found}


@dataclass(frozen=True)
class _Maker:
    problem: DrawnProblem
    phases: bool

    def input_panel(self, name: str, caption: str, make: Callable[[Cell], Content]) -> Panel:
        axes = [self.problem.extent(axis) for axis in range(self.problem.window.rank)]
        rows = tuple(tuple(self._surrounded(place, make) for place in row) for row in _places(axes))
        return Panel(name, caption, rows, _as_place(tuple(axis.start for axis in axes)))

    def plain_panel(self, name: str, caption: str, values: Array, make: Callable[[Cell], Content]) -> Panel:
        rows = tuple(tuple(make(place) for place in row) for row in _places([range(size) for size in values.shape]))
        return Panel(name, caption, rows)

    def _surrounded(self, cell: Cell, make: Callable[[Cell], Content]) -> Content:
        if all(0 <= i < n for i, n in zip(cell, self.problem.window.input_size, strict=True)):
            return make(cell)
        return Content(kind="padding" if self.problem.is_padding(cell) else "beyond")

    def x_cell(self, cell: Cell) -> Content:
        p = self.problem
        won = [window_tag(p, output) for output in p.won(cell)]
        tied = [window_tag(p, output, hollow=True) for output in p.tied(cell)]
        if not p.is_read(cell):
            return Content(number_text(p.x[cell]), "cropped")
        return self._tagged(number_text(p.x[cell]), [*won, *tied], "strong" if won else "plain")

    def dx_cell(self, cell: Cell) -> Content:
        p = self.problem
        value, weight = number_text(p.dx[cell]), "strong" if p.dx[cell] else "faint"
        if not p.is_read(cell):
            return Content(value, "cropped")
        if self.phases:
            return Content(value, name=self._phase_tag(p.phase(cell)), weight=weight)
        return self._tagged(value, [window_tag(p, output) for output in p.contributors(cell)], weight)

    def _tagged(self, value: str, tags: list[Tag], weight: str) -> Content:
        """A cell with its tags; where there is no room for all, without the ties, and if need be with a count for the rest."""
        room = MOST_TAGS if all(len(tag.label) == 1 for tag in tags) else MOST_LONG_TAGS
        if len(tags) <= room:
            return Content(value, tags=tuple(tags), weight=weight)
        certain = tuple(tag for tag in tags if not tag.hollow)
        if len(certain) <= room:
            return Content(value, tags=certain, weight=weight, full=True)
        return Content(value, note=f"{len(certain)} of {len(self.problem.outputs)}", weight=weight, full=True)

    def y_cell(self, output: Cell) -> Content:
        return self._output_cell(output, self.problem.y, "sum÷")

    def dy_cell(self, output: Cell) -> Content:
        return self._output_cell(output, self.problem.dy, "÷")

    def _output_cell(self, output: Cell, values: Array, before: str) -> Content:
        divisors = self.problem.divisors
        note = "" if divisors is None else f"{before}{divisors[output]}"
        name = None if self.phases else window_tag(self.problem, output)
        return Content(number_text(values[output]), name=name, note=note, weight="strong")

    def tap_cell(self, values: Array) -> Callable[[Cell], Content]:
        def make(tap: Cell) -> Content:
            phase = self.problem.phase_of_tap(tap) if self.phases else None
            return Content(number_text(values[tap]), name=None if phase is None else self._phase_tag(phase), weight="strong")

        return make

    def _phase_tag(self, phase: Cell) -> Tag:
        number = int(np.ravel_multi_index(phase, self.problem.window.stride))
        return Tag(str(number + 1), number % COLOURS)


def _places(axes: list[range]) -> list[list[Cell]]:
    """Rows of places; one row where there is one axis."""
    if len(axes) == 1:
        return [[(i,) for i in axes[0]]]
    return [[(i, j) for j in axes[1]] for i in axes[0]]


def _as_place(cell: Cell) -> Cell:
    return cell if len(cell) == 2 else (0, *cell)
