"""Max-pool gradient from winners, channels_last, by gather: each input cell asks the windows that read it whether it won."""

from __future__ import annotations

from typing import Any

from pullback.cpu.pool.over_channels_kernel import finish_rows, make_over_channels
from pullback.cpu.pool.records import GatherMaxGrad
from pullback.cpu.pool.windows_kernel import NO_LINES, axes_of, cells_reading, line_at, lines_of
from pullback.cpu.simd.native import LINE, fill_zero
from pullback.cpu.simd.vectors import choose, equal, inline_loop


def build(lanes: Any) -> dict[str, Any]:
    quad, pair = lanes.times(4), lanes.times(2)
    Q, SIZE, WINNER = quad.count, lanes.size, lanes.winner_size
    over_channels, _ = make_over_channels(lanes)

    def make_gather(width, load, load_codes, store):
        splat, splat_code = width.splat, width.splat_code

        @inline_loop
        def gather(c, n, dy, winners, dx, lines, cells):
            """Gradient of n channels of one input cell: dy of the windows whose winner it is."""
            line_table, line_count = lines
            cell0, count, step, col_tap, tap_step = cells
            total = splat(0.0)
            for e in range(line_count):
                line = line_at(line_table, e)
                at, tap = line.place + cell0 + c, line.tap + col_tap
                for _ in range(count):
                    mine = equal(load_codes(winners + at * WINNER, n), splat_code(tap))
                    total = total + choose(mine, load(dy + at * SIZE, n), splat(0.0))
                    at += step
                    tap += tap_step
            store(dx + c * SIZE, total, n)

        return gather

    gather_stream = make_gather(quad, quad.load, quad.load_codes, quad.stream)
    gather4 = make_gather(quad, quad.load, quad.load_codes, quad.store)
    gather2 = make_gather(pair, pair.load, pair.load_codes, pair.store)
    gather1 = make_gather(lanes, lanes.load_some, lanes.load_codes_some, lanes.store_some)

    def max_grad(args: GatherMaxGrad, piece, scratch):
        streams = args.streams and args.dx % LINE == 0
        depth_axis, row_axis, col_axis = axes_of(args)
        channels, cols = args.channels, col_axis.cells
        out_row, width = col_axis.outputs * channels, cols * channels * SIZE
        source_image = depth_axis.outputs * row_axis.outputs * out_row
        first, last = piece * args.block, min(piece * args.block + args.block, args.images * args.rows)
        target = args.dx + first * width
        begin = scratch if args.stage else target
        known, lines = NO_LINES, (0, 0)
        image, r = first // args.rows, first % args.rows
        for row in range(first, last):
            line, known, lines = lines_of(scratch + args.lines_start, known, lines, args, out_row, r)
            at, target_row = image * source_image + line * out_row, begin + (row - first) * width
            if lines[1] == 0:
                fill_zero(target_row, width)
            for col in range(cols if lines[1] else 0):
                out = target_row + col * channels * SIZE
                given = (
                    args.dy + at * SIZE, args.winners + at * WINNER, out, lines, cells_reading(args.col_readers, channels, col)
                )  # fmt: skip
                if streams:
                    for c in range(0, channels, Q):
                        gather_stream(c, Q, *given)
                else:
                    over_channels(0, channels, gather4, gather2, gather1, given)
            r += 1
            if r == args.rows:
                image, r = image + 1, 0
        finish_rows(target, begin, (last - first) * width, args.stage, streams)

    return {"max_grad": max_grad}
