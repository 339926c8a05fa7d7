"""What the pooling plans share: a problem as images of rows by columns, its compiled variant, blocks, divisors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import PIECE_BYTES, slack
from pullback.cpu.engine.sizes import sum_bytes
from pullback.cpu.machine_code.variants import Variant
from pullback.cpu.pool.tables import row_count
from pullback.problem import Problem

Table = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shape:
    """A problem as the kernels see it: images of rows by columns by channels (channels_first: one channel, more images)."""

    images: int
    channels: int
    size: int  # bytes of an element
    wide: int  # bytes of an element in scratch, where sums are made
    in_rows: int
    in_cols: int
    out_rows: int
    out_cols: int

    @property
    def in_row(self) -> int:
        """Elements of an input row."""
        return self.in_cols * self.channels

    @property
    def out_row(self) -> int:
        return self.out_cols * self.channels

    @property
    def input_bytes(self) -> int:
        return self.images * self.in_rows * self.in_row * self.size

    @property
    def moved_bytes(self) -> int:
        """Of input and output together."""
        return self.input_bytes + self.images * self.out_rows * self.out_row * self.size


def simplified(problem: Problem) -> Problem:
    """The same problem over fewer axes, where windows span whole rows (global pooling: one axis, one window).

    Column-major indices count along the axes, so with storage_order=1 they must stay.
    """
    if problem.storage_order and problem.return_indices:
        return problem
    return replace(problem, window=problem.window.merged())


def shape_of(problem: Problem) -> Shape:
    last, window = problem.layout == "channels_last", problem.window
    return Shape(
        images=problem.batch if last else problem.batch * problem.channels_in,
        channels=problem.channels_in if last else 1,
        size=problem.dtype.itemsize,
        wide=sum_bytes(problem.dtype),
        in_rows=row_count(window.input_size),
        in_cols=window.input_size[-1],
        out_rows=row_count(window.output_size),
        out_cols=window.output_size[-1],
    )


def variant(problem: Problem, module: str, kernel: str, *, finds_winners: bool = False, **more: Any) -> Variant:
    """The compiled variant: by dtype, winner type and, for kernels that look for winners, by the winner rule."""
    options: dict[str, Any] = {"winner": problem.winner_dtype.name} if problem.winner else {}
    if finds_winners and problem.winner:
        winner = problem.winner
        floor = winner.above is not None
        options |= {"floor": floor, "losers": floor or winner.nan == "ignore", "nan": winner.nan, "ties": winner.ties}
    return Variant(f"pool.{module}", kernel, problem.dtype.name, tuple((options | more).items()))


def row_block(targets: int, bytes_per_row: int, block_bytes: int = PIECE_BYTES) -> int:
    """Target rows per block."""
    return max(1, min(targets, block_bytes // max(1, bytes_per_row)))


def lanes_at_once(wide: int) -> int:
    """Elements that the kernels over channels take at once: four registers."""
    return 4 * machine().vector_bytes // wide


def divisors(problem: Problem) -> tuple[Table, Table]:
    """Divisor parts of output rows and of output columns; 1 where nothing counts."""
    assert problem.divisor is not None
    window, rule = problem.window, problem.divisor
    row = np.ones(1, np.int64)
    for axis in range(window.rank - 1):
        row = (row[:, None] * window.axis_divisor(axis, rule)).reshape(-1)
    return np.maximum(row, 1), np.maximum(window.axis_divisor(window.rank - 1, rule), 1)


def uniform_divisor(row_div: Table, col_div: Table) -> int:
    """The divisor that all windows share, or 0."""
    uniform = (row_div == row_div[0]).all() and (col_div == col_div[0]).all()
    return int(row_div[0] * col_div[0]) if uniform else 0


def wide_row(shape: Shape, col_div: Table) -> Table:
    """Column divisors in the type of the sums, one per element of an output row, ones behind the end."""
    row = np.repeat(col_div, shape.channels).astype(np.float64 if shape.wide == 8 else np.float32)
    return np.concatenate([row, np.ones(slack() // shape.wide, row.dtype)])


def floor_of(problem: Problem) -> float:
    return problem.winner.above if problem.winner and problem.winner.above is not None else -math.inf
