"""What the pooling plans share: a problem as images of rows by columns, its compiled variant, blocks, divisors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pullback.cpu.engine.compiler import Variant
from pullback.cpu.engine.machine import machine
from pullback.cpu.pool.tables import row_count
from pullback.problem import Problem

PLANE_BYTES = 160 << 10  # unpacked rows of a block of a plane
BLOCK_BYTES = 48 << 10  # working set of a piece: stays in the second-level cache with room to spare
CHANNELS, PHASES, PLANES = "pool.channels", "pool.phases", "pool.planes"
ROWS, SCATTER, WHOLE = "pool.rows", "pool.scatter", "pool.whole"

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
    def output_bytes(self) -> int:
        return self.images * self.out_rows * self.out_row * self.size


def simplified(problem: Problem) -> Problem:
    """The same problem over fewer axes, where windows span whole rows (global pooling: one axis, one window).

    Column-major indices count along the axes, so with storage_order=1 they must stay.
    """
    if problem.storage_order and problem.return_indices:
        return problem
    return replace(problem, window=problem.window.merged())


def is_whole(problem: Problem) -> bool:
    """Whether each image, as the kernels see it, is one window of cells that lie side by side."""
    window = problem.window.merged()
    if isinstance(problem.divisor, int) and problem.divisor != window.tap_count:  # its kernels divide by the cells
        return False
    one = window.rank == 1 and window.output_size == (1,) and window.kernel == window.input_size and window.pad_low == (0,)
    return one and window.dilation == (1,) and (problem.layout == "channels_first" or problem.channels_in == 1)


def shape_of(problem: Problem) -> Shape:
    last, window = problem.layout == "channels_last", problem.window
    return Shape(
        images=problem.batch if last else problem.batch * problem.channels_in,
        channels=problem.channels_in if last else 1,
        size=problem.dtype.itemsize,
        wide=8 if problem.dtype.name == "float64" else 4,
        in_rows=row_count(window.input_size),
        in_cols=window.input_size[-1],
        out_rows=row_count(window.output_size),
        out_cols=window.output_size[-1],
    )


def variant(problem: Problem, module: str, kernel: str, *, rule: bool) -> Variant:
    """The compiled variant: by dtype, winner type and, for kernels that look for winners, by the winner rule."""
    options: list[tuple[str, Any]] = [("winner", problem.winner_dtype.name)] if problem.winner else []
    if rule and problem.winner:
        winner = problem.winner
        floor = winner.above is not None
        options += [("floor", floor), ("losers", floor or winner.nan == "ignore"), ("nan", winner.nan), ("ties", winner.ties)]
    if module == ROWS:
        options.append(("stride", problem.window.stride[-1]))
    return Variant(module, kernel, problem.dtype.name, tuple(options))


def streams(total_bytes: int) -> bool:
    """Whether an output is so large that it should bypass the cache."""
    return total_bytes > machine().l3_bytes // 2


def row_block(targets: int, bytes_per_row: int, block_bytes: int = BLOCK_BYTES) -> int:
    """Target rows per block."""
    return max(1, min(targets, block_bytes // max(1, bytes_per_row)))


def grouped(units: int, moved: int) -> tuple[int, int]:
    """(units per piece, pieces): pieces of about a block's bytes, so that claiming them costs nothing."""
    group = max(1, min(units, units * BLOCK_BYTES // max(1, moved)))
    return group, -(-units // group)


def slack() -> int:
    """How far a kernel may read and write past the rows it keeps in scratch."""
    return 4 * machine().vector_bytes


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


def wide_row(shape: Shape, col_div: Table) -> Table:
    """Column divisors in the type of the sums, one per element of an output row, ones behind the end."""
    row = np.repeat(col_div, shape.channels).astype(np.float64 if shape.wide == 8 else np.float32)
    return np.concatenate([row, np.ones(slack() // shape.wide, row.dtype)])


def floor_of(problem: Problem) -> float:
    return problem.winner.above if problem.winner and problem.winner.above is not None else -math.inf
