"""Strips of target rows for convolution in channels_first: source rows are read once for three taps of a column."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import types
from numba.extending import intrinsic

from pullback.cpu.depthwise.emit_kernel import Emit
from pullback.cpu.simd.native import LINE, prefetch
from pullback.cpu.simd.vectors import inline, outline, stay_outline

ROWS, TAPS = 4, 3  # of a strip; of a column


@inline
def prefetch_step(ahead, end, steps):
    """Bytes to prefetch in each of so many steps, so that all from `ahead` to `end` are: whole lines."""
    return ((end - ahead) // max(1, steps) + LINE - 1) // LINE * LINE


@inline
def prefetch_lines(ahead, end):
    for line in range(ahead, end, LINE):
        prefetch(line)


def _make_tile(lanes: Any) -> Any:
    """A vector in each row of a strip, for one output channel; args is a PlanesGather."""

    @intrinsic
    def tile(context: Any, args: Any, source: Any, target: Any, weights: Any, areas: Any, area_list: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, values: Any) -> Any:
            args_at, source, target, weights, areas, area_list = values
            emitter = Emit(lanes, builder)
            names = "columns column_offsets pitch weight_pitch"
            columns, column_offsets, pitch, weight_pitch = emitter.fields(ctx, args, args_at, names)
            lines, factors_at = emitter.steps(pitch, ROWS + TAPS - 1), emitter.steps(weight_pitch, TAPS)

            def body(at: Any, weight_at: Any, sums: Any, _: Any) -> Any:
                rows = [emitter.load(builder.add(at, line), True) for line in lines]
                factors = [emitter.splat(builder.add(weight_at, step)) for step in factors_at]
                totals = list(sums)
                for r in range(ROWS):
                    for t in range(TAPS):
                        totals[r] = emitter.fma(rows[r + t], factors[t], totals[r])
                return totals

            none = emitter.number(0)
            tables, bounds = (area_list, column_offsets), (none, areas, none, columns)
            totals = emitter.over_taps(bounds, tables, (source, weights), [emitter.zero] * ROWS, body)
            for line, total in zip(lines, totals, strict=False):
                emitter.store(builder.add(target, line), total, True)
            return ctx.get_dummy_value()

        return types.void(args, *(types.int64,) * 5), emit

    return tile


@cache
def make_strips(lanes: Any) -> Any:
    """strips(...): whole strips of `rows` rows."""
    tile = _make_tile(lanes)
    vector = lanes.count * lanes.compute_size

    @outline
    def strips(args, source, target, weights, rows, areas, area_list, ahead, end):
        """Memory from `ahead` to `end` is prefetched meanwhile."""
        stay_outline()
        each = (args.pitch + vector - 1) // vector
        step = prefetch_step(ahead, end, rows // ROWS * each)
        for r in range(0, rows - ROWS + 1, ROWS):
            at = r * args.pitch
            # Backwards: what the last vector of a row stores too much lies where the next row begins.
            for i in range(each - 1, -1, -1):
                prefetch_lines(ahead, min(end, ahead + step))
                ahead += step
                j = at + i * vector
                tile(args, source + j, target + j, weights, areas, area_list)

    return strips
