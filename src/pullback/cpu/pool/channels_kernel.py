"""Pooling with vectors of channels: for channels_last arrays with enough channels.

Each output (forward) reads some cells of some lines of the input, each input cell (gradient) some of the outputs, at even steps:
windows_kernel.py says which. Every target cell is written once.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.pool.exact_kernel import make_exact
from pullback.cpu.pool.over_channels_kernel import finish_rows, make_over_channels
from pullback.cpu.pool.records import ChannelsAvgForward, ChannelsAvgGrad, ChannelsMaxForward
from pullback.cpu.pool.rules_kernel import make_loses, make_takes
from pullback.cpu.pool.windows_kernel import NO_LINES, axes_of, cells_read, cells_reading, line_at, lines_of
from pullback.cpu.simd.native import LINE, fill_zero, in_order, opaque, prefetch
from pullback.cpu.simd.vectors import choose, get_int, inline


def build(lanes: Any, ties: str = "first", nan: str = "propagate", floor: bool = False, losers: bool = False) -> dict[str, Any]:
    """The kernels for one element type and winner rule. `losers`: whether a window of cells may have no winner."""
    octo, quad, pair = lanes.times(8), lanes.times(4), lanes.times(2)
    Q, SIZE, WINNER, put = quad.count, lanes.size, lanes.winner_size, lanes.put
    NONE = 256**WINNER - 1
    over_channels, over_many_channels = make_over_channels(lanes)
    _, index_row = make_exact(lanes, ties, nan, floor, losers)

    @inline
    def fetch(at, n, ahead):
        """The cells of a later output: strides are beyond what the CPU itself sees coming."""
        if ahead:
            for place in range(at + ahead, at + ahead + n * SIZE, LINE):
                prefetch(place)

    def make_max(width, load, store, store_winners, indexed):
        """indexed: winners are made as flat indices, int64, by what `bases` has for each tap, beyond `first`."""
        splat, splat_winner = width.splat, width.splat_winner
        no_winner, item = (-1, 8) if indexed else (NONE, WINNER)
        takes, loses = make_takes(width, ties, nan), make_loses(width, floor)

        @inline
        def code_of(bases, tap):
            return get_int(bases + 8 * tap) if indexed else opaque(tap)

        @inline
        def best_of(c, n, source, y, winners, lines, cells, empty, above, first, bases, ahead):
            """Value and winner of n channels of one window; y or winners may be 0 for not wanted."""
            line_table, line_count = lines
            cell0, count, step, col_tap, _ = cells
            if line_count == 0 or count == 0:
                best, winner = splat(empty), splat_winner(no_winner)
            else:
                x, line = source + (cell0 + c) * SIZE, line_at(line_table, 0)
                best, winner = load(x + line.place * SIZE, n), splat_winner(code_of(bases, line.tap + col_tap))
                for e in range(line_count):
                    line = line_at(line_table, e)
                    at, tap = x + line.place * SIZE, line.tap + col_tap
                    for k in range(count):
                        cell = load(at, n)
                        fetch(at, n, ahead)
                        wins = takes(cell, best)
                        best = choose(wins, cell, best)
                        winner = choose(wins, splat_winner(code_of(bases, tap + k)), winner)
                        at += step * SIZE
                if losers:
                    none = loses(best, above)
                    best, winner = choose(none, splat(empty), best), choose(none, splat_winner(no_winner), winner)
            if y:
                store(y + c * SIZE, best, n)
            if indexed:
                store_winners(winners + c * item, winner, first + c, n)
            elif winners:
                store_winners(winners + c * item, winner, n)

        return best_of

    max8 = make_max(octo, octo.load, octo.store, octo.store_winners, False)
    max4 = make_max(quad, quad.load, quad.store, quad.store_winners, False)
    max2 = make_max(pair, pair.load, pair.store, pair.store_winners, False)
    max1 = make_max(lanes, lanes.load_some, lanes.store_some, lanes.store_winners_some, False)
    index8 = make_max(octo, octo.load, octo.store, octo.store_indices, True)
    index4 = make_max(quad, quad.load, quad.store, quad.store_indices, True)
    index2 = make_max(pair, pair.load, pair.store, pair.store_indices, True)
    index1 = make_max(lanes, lanes.load_some, lanes.store_some, lanes.store_indices_some, True)

    def max_forward(args: ChannelsMaxForward, piece, scratch):
        depth_axis, row_axis, col_axis = axes_of(args)
        channels, cols, in_row = args.channels, col_axis.outputs, col_axis.cells * args.channels
        source_image = depth_axis.cells * row_axis.cells * in_row
        known, lines = NO_LINES, (0, 0)
        block, part = piece // args.parts, piece % args.parts
        first_col, end_col = part * args.part_cols, min(part * args.part_cols + args.part_cols, cols)
        image, r = block * args.block // args.rows, block * args.block % args.rows
        for row in range(block * args.block, min(block * args.block + args.block, args.images * args.rows)):
            at = row * cols * channels
            own = scratch if args.indices and not args.winners else (args.winners + at * WINNER if args.winners else 0)
            base = image * args.index_image + get_int(args.row_base + 8 * r)
            line, known, lines = lines_of(scratch + args.lines_start, known, lines, args, in_row, r)
            source = args.x + (image * source_image + line * in_row) * SIZE
            for col in range(first_col, end_col):
                out = args.y + (at + col * channels) * SIZE if args.y else 0
                cells = cells_read(col_axis, channels, col)
                if args.indexed and args.indices:
                    code, first = args.indices + 8 * (at + col * channels), base + get_int(args.col_base + 8 * col)
                    given = (source, out, code, lines, cells, args.empty, args.above, first, args.tap_base, args.ahead)
                    over_many_channels(channels, index8, index4, index2, index1, given)
                else:
                    code = own + col * channels * WINNER if own else 0
                    given = (source, out, code, lines, cells, args.empty, args.above, 0, 0, args.ahead)
                    over_many_channels(channels, max8, max4, max2, max1, given)
            if args.indices and not args.indexed:
                index_row(args, args.indices + 8 * at, own, first_col, end_col, channels, image, r)
            r += 1
            if r == args.rows:
                image, r = image + 1, 0

    def make_mean(width, load, store):
        splat = width.splat

        @inline
        def summed(x, n, lines, cells):
            """Sum of n channels over the cells of some lines."""
            line_table, line_count = lines
            cell0, count, step, _, _ = cells
            total = splat(0.0)
            for e in range(line_count):
                at = x + (line_at(line_table, e).place + cell0) * SIZE
                for _ in range(count):
                    cell = load(at, n)
                    in_order()
                    total = total + cell
                    at += step * SIZE
            return total

        @inline
        def mean(c, n, x, y, lines, cells, divisor, share):
            """Mean of n channels of one window; share: the divisor's reciprocal if that is exact, or 0."""
            total = summed(x + c * SIZE, n, lines, cells)
            if share != 0.0:  # products are quicker than quotients
                store(y + c * SIZE, total * splat(share), n)
            else:
                store(y + c * SIZE, total / splat(divisor), n)

        @inline
        def shared(c, n, dy, dx, lines, cells, share):
            """Gradient of n channels of one cell whose windows divide alike."""
            store(dx + c * SIZE, summed(dy + c * SIZE, n, lines, cells) * splat(share), n)

        @inline
        def mixed(c, n, dy, dx, channels, lines, cells, row_div, col_div):
            """Gradient of n channels of one cell whose windows divide by different counts."""
            line_table, line_count = lines
            cell0, count, step, _, _ = cells  # here counted in cells
            total = splat(0.0)
            for e in range(line_count):
                line = line_at(line_table, e)
                source = dy + (line.place + c) * SIZE
                row_divisor = get_int(row_div + 8 * line.number)
                for k in range(count):
                    cell = cell0 + k * step
                    share = 1.0 / float(row_divisor * get_int(col_div + 8 * cell))
                    total = total + load(source + cell * channels * SIZE, n) * splat(share)
            store(dx + c * SIZE, total, n)

        return mean, shared, mixed

    _, shared_stream, mixed_stream = make_mean(quad, quad.load, quad.stream)
    mean8, _, _ = make_mean(octo, octo.load, octo.store)
    mean4, shared4, mixed4 = make_mean(quad, quad.load, quad.store)
    mean2, shared2, mixed2 = make_mean(pair, pair.load, pair.store)
    mean1, shared1, mixed1 = make_mean(lanes, lanes.load_some, lanes.store_some)

    def avg_forward(args: ChannelsAvgForward, piece, scratch):
        depth_axis, row_axis, col_axis = axes_of(args)
        channels, cols, in_row = args.channels, col_axis.outputs, col_axis.cells * args.channels
        source_image = depth_axis.cells * row_axis.cells * in_row
        known, lines = NO_LINES, (0, 0)
        block, part = piece // args.parts, piece % args.parts
        first_col, end_col = part * args.part_cols, min(part * args.part_cols + args.part_cols, cols)
        image, r = block * args.block // args.rows, block * args.block % args.rows
        for row in range(block * args.block, min(block * args.block + args.block, args.images * args.rows)):
            line, known, lines = lines_of(scratch + args.lines_start, known, lines, args, in_row, r)
            source = args.x + (image * source_image + line * in_row) * SIZE
            row_divisor = get_int(args.row_div + 8 * r)
            for col in range(first_col, end_col):
                cells = cells_read(col_axis, channels, col)
                out = args.y + (row * cols + col) * channels * SIZE
                if lines[1] * cells[1] == 0:
                    for c in range(channels):
                        put(out + c * SIZE, args.empty)
                    continue
                divisor = row_divisor * get_int(args.col_div + 8 * col)
                share = 1.0 / float(divisor) if divisor & (divisor - 1) == 0 else 0.0
                over_many_channels(channels, mean8, mean4, mean2, mean1, (source, out, lines, cells, float(divisor), share))
            r += 1
            if r == args.rows:
                image, r = image + 1, 0

    def avg_grad(args: ChannelsAvgGrad, piece, scratch):
        streams = args.streams and args.dx % LINE == 0
        depth_axis, row_axis, col_axis = axes_of(args)
        channels, cols = args.channels, col_axis.cells
        out_row, width = col_axis.outputs * channels, cols * channels * SIZE
        source_image = depth_axis.outputs * row_axis.outputs * out_row
        first, last = piece * args.block, min(piece * args.block + args.block, args.images * args.rows)
        target = args.dx + first * width
        begin = scratch if args.stage else target
        known, lines = NO_LINES, (0, 0)
        divisor, share = 0, 0.0
        image, r = first // args.rows, first % args.rows
        for row in range(first, last):
            line, known, lines = lines_of(scratch + args.lines_start, known, lines, args, out_row, r)
            source, target_row = args.dy + (image * source_image + line * out_row) * SIZE, begin + (row - first) * width
            same_row = get_int(args.row_same + 8 * r)
            if lines[1] == 0:
                fill_zero(target_row, width)
            for col in range(cols if lines[1] else 0):
                out = target_row + col * channels * SIZE
                same = same_row * get_int(args.col_same + 8 * col)
                if same:
                    if same != divisor:
                        divisor, share = same, 1.0 / float(same)
                    given = (source, out, lines, cells_reading(args.col_readers, channels, col), share)
                    if streams:
                        for c in range(0, channels, Q):
                            shared_stream(c, Q, *given)
                    else:
                        over_channels(0, channels, shared4, shared2, shared1, given)
                else:
                    cells, row_div = cells_reading(args.col_readers, 1, col), args.row_div + 8 * line
                    several = (source, out, channels, lines, cells, row_div, args.col_div)
                    if streams:
                        for c in range(0, channels, Q):
                            mixed_stream(c, Q, *several)
                    else:
                        over_channels(0, channels, mixed4, mixed2, mixed1, several)
            r += 1
            if r == args.rows:
                image, r = image + 1, 0
        finish_rows(target, begin, (last - first) * width, args.stage, streams)

    return {"max_forward": max_forward, "avg_forward": avg_forward, "avg_grad": avg_grad}
