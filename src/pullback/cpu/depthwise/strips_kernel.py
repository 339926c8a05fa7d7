"""Strips of target rows for depthwise convolution in channels_first: source rows are read once for three taps of a column."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.depthwise.tiles_kernel import Emit
from pullback.cpu.simd.native import LINE, prefetch
from pullback.cpu.simd.vectors import I64, outline, stay_outline

ROWS, TAPS = 4, 3  # of a strip; of a column


def _make_tile(lanes: Any) -> Any:
    """A vector of places in each row of a strip. The inner table holds the first tap of each column."""

    @intrinsic
    def tile(
        context: Any, source: Any, target: Any, weights: Any, areas: Any, outer: Any, columns: Any, inner: Any, pitch: Any,
        weight_row: Any,
    ) -> Any:  # fmt: skip
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, target, weights, areas, outer, columns, inner, pitch, weight_row = args
            emitter = Emit(lanes, builder)
            lines, factors_at = emitter.steps(pitch, ROWS + TAPS - 1), emitter.steps(weight_row, TAPS)

            def body(at: Any, weight_at: Any, sums: Any) -> Any:
                rows = [emitter.load(builder.add(at, line), True) for line in lines]
                factors = [emitter.splat(builder.add(weight_at, step)) for step in factors_at]
                totals = list(sums)
                for r in range(ROWS):
                    for t in range(TAPS):
                        totals[r] = emitter.fma(rows[r + t], factors[t], totals[r])
                return totals

            none = ir.Constant(I64, 0)
            tables, bounds = (outer, inner), (none, areas, none, columns)
            totals = emitter.over_taps(bounds, tables, (source, weights), [emitter.zero] * ROWS, body)
            for line, total in zip(lines, totals, strict=False):
                emitter.store(builder.add(target, line), total, True)
            return ctx.get_dummy_value()

        return types.void(*(types.int64,) * 9), emit

    return tile


def make_strips(lanes: Any) -> Any:
    """strips(...): whole strips of `rows` rows of places."""
    tile = _make_tile(lanes)
    vector = lanes.count * lanes.compute_size

    @outline
    def strips(source, target, weights, rows, areas, area_pairs, columns, column_pairs, pitch, weight_row, ahead, end):
        """Memory from `ahead` to `end` is asked for meanwhile."""
        stay_outline()
        each = (pitch + vector - 1) // vector
        step = ((end - ahead) // max(1, rows // ROWS * each) + LINE - 1) // LINE * LINE
        for r in range(0, rows - ROWS + 1, ROWS):
            at = r * pitch
            # Backwards: what the last vector of a row stores too much lies where the next row begins.
            for i in range(each - 1, -1, -1):
                for line in range(ahead, min(end, ahead + step), LINE):
                    prefetch(line)
                ahead += step
                j = at + i * vector
                tile(source + j, target + j, weights, areas, area_pairs, columns, column_pairs, pitch, weight_row)

    return strips
