"""Pooling with vectors of channels: for channels_last arrays with enough channels.

Each output (forward) reads some cells of some lines of the input, each input cell (gradient) some of the outputs, at even steps:
pool_windows.py says which. Every target cell is written once.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.pool.records import ChannelsAvgForward, ChannelsAvgGrad, ChannelsMaxForward, ChannelsMaxGrad
from pullback.cpu.pool.rules_kernel import make_loses, make_takes
from pullback.cpu.pool.windows_kernel import NO_LINES, axis_of, cells_read, cells_reading, line_kinds, lines_of, readers_in
from pullback.cpu.simd.native import LINE, fence, in_order, opaque, stream_bytes
from pullback.cpu.simd.vectors import choose, equal, get_int, inline, outline, put_int, stay_outline


def build(lanes: Any, ties: str = "first", nan: str = "propagate", floor: bool = False, losers: bool = False) -> dict[str, Any]:
    """The kernels for one element type and winner rule. `losers`: whether a window of cells may have no winner."""
    octo, quad, pair = lanes.times(8), lanes.times(4), lanes.times(2)
    V, P, Q, SIZE, WINNER = lanes.count, pair.count, quad.count, lanes.size, lanes.winner_size
    NONE = 256**WINNER - 1
    get_winner, put = lanes.get_winner, lanes.put

    @inline
    def over_channels(c, channels, four, two, some, args):
        """The channels of a cell from c on: body(first, how many, *args) for four registers, for two, for the rest under a mask."""
        while c + Q <= channels:
            four(c, Q, *args)
            c += Q
        if c + P <= channels:
            two(c, P, *args)
            c += P
        while c < channels:
            some(c, min(V, channels - c), *args)
            c += V

    @inline
    def over_many_channels(channels, eight, four, two, some, args):
        """All channels of a cell, eight registers at first: long runs are what memory is read ahead by."""
        c = 0
        while c + 2 * Q <= channels:
            eight(c, 2 * Q, *args)
            c += 2 * Q
        over_channels(c, channels, four, two, some, args)

    def make_max(width, load, store, store_winners):
        splat, splat_winner = width.splat, width.splat_winner
        takes, loses = make_takes(width, ties, nan), make_loses(width, floor)

        @inline
        def best_of(c, n, source, y, winners, lines, cells, empty, above):
            """Value and winner of n channels of one window; y or winners may be 0 for not wanted."""
            line_at, line_count = lines
            cell0, count, step, col_tap, _ = cells
            if line_count == 0 or count == 0:
                best, winner = splat(empty), splat_winner(NONE)
            else:
                x = source + (cell0 + c) * SIZE
                best, winner = load(x + get_int(line_at) * SIZE, n), splat_winner(get_int(line_at + 8) + col_tap)
                for e in range(line_count):
                    at, tap = x + get_int(line_at + 24 * e) * SIZE, get_int(line_at + 24 * e + 8) + col_tap
                    for k in range(count):
                        cell = load(at, n)
                        wins = takes(cell, best)
                        best = choose(wins, cell, best)
                        winner = choose(wins, splat_winner(opaque(tap + k)), winner)
                        at += step * SIZE
                if losers:
                    none = loses(best, above)
                    best, winner = choose(none, splat(empty), best), choose(none, splat_winner(NONE), winner)
            if y:
                store(y + c * SIZE, best, n)
            if winners:
                store_winners(winners + c * WINNER, winner, n)

        return best_of

    max8 = make_max(octo, octo.load, octo.store, octo.store_winners)
    max4 = make_max(quad, quad.load, quad.store, quad.store_winners)
    max2 = make_max(pair, pair.load, pair.store, pair.store_winners)
    max1 = make_max(lanes, lanes.load_some, lanes.store_some, lanes.store_winners_some)

    @outline
    def index_row(indices, winners, cols, channels, base, col_base, tap_base):
        """Winners of one row as flat indices into the input, -1 for none."""
        stay_outline()
        for col in range(cols):
            first = base + get_int(col_base + 8 * col)
            for c in range(channels):
                at = col * channels + c
                tap = get_winner(winners + at * WINNER)
                put_int(indices + 8 * at, -1 if tap == NONE else first + get_int(tap_base + 8 * tap) + c)

    def max_forward(args: ChannelsMaxForward, piece, scratch):
        depth_axis, row_axis, col_axis = axis_of(args.axes, 0), axis_of(args.axes, 1), axis_of(args.axes, 2)
        cols, in_row = col_axis[0], col_axis[1] * args.channels
        source_image = depth_axis[1] * row_axis[1] * in_row
        known, lines, kinds = NO_LINES, (0, 0), line_kinds(args.line_table)
        image, r = piece * args.block // args.rows, piece * args.block % args.rows
        for row in range(piece * args.block, min(piece * args.block + args.block, args.images * args.rows)):
            at = row * cols * args.channels
            own = scratch if args.indices and not args.winners else (args.winners + at * WINNER if args.winners else 0)
            line, known, lines = lines_of(scratch + args.lines_start, known, lines, kinds, in_row, r)
            source = args.x + (image * source_image + line * in_row) * SIZE
            for col in range(cols):
                out = args.y + (at + col * args.channels) * SIZE if args.y else 0
                code = own + col * args.channels * WINNER if own else 0
                cells = cells_read(col_axis, args.channels, col)
                passed = (source, out, code, lines, cells, args.empty, args.above)
                over_many_channels(args.channels, max8, max4, max2, max1, passed)
            if args.indices:
                base = image * args.index_image + get_int(args.row_base + 8 * r)
                index_row(args.indices + 8 * at, own, cols, args.channels, base, args.col_base, args.tap_base)
            r += 1
            if r == args.rows:
                image, r = image + 1, 0

    def make_gather(width, load, load_codes, store):
        splat, splat_code = width.splat, width.splat_code

        @inline
        def gather(c, n, dy, winners, dx, lines, cells):
            """Gradient of n channels of one input cell: dy of the windows whose winner it is."""
            line_at, line_count = lines
            cell0, count, step, col_tap, tap_step = cells
            total = splat(0.0)
            for e in range(line_count):
                at, tap = get_int(line_at + 24 * e) + cell0 + c, get_int(line_at + 24 * e + 8) + col_tap
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

    def max_grad(args: ChannelsMaxGrad, piece, scratch):
        """streams: stores may pass the cache, since all of them are whole and aligned."""
        streams = args.streams
        streams = streams and args.dx % LINE == 0
        depth_axis, row_axis, col_axis = axis_of(args.axes, 0), axis_of(args.axes, 1), axis_of(args.axes, 2)
        columns = readers_in(args.col_readers)
        out_row, width = col_axis[0] * args.channels, col_axis[1] * args.channels * SIZE
        source_image = depth_axis[0] * row_axis[0] * out_row
        first, last = piece * args.block, min(piece * args.block + args.block, args.images * args.rows)
        target = args.dx + first * width
        begin = scratch if args.stage else target
        known, lines, kinds = NO_LINES, (0, 0), line_kinds(args.line_table)
        image, r = first // args.rows, first % args.rows
        for row in range(first, last):
            line, known, lines = lines_of(scratch + args.lines_start, known, lines, kinds, out_row, r)
            at = image * source_image + line * out_row
            for col in range(col_axis[1]):
                out = begin + (row - first) * width + col * args.channels * SIZE
                cells = cells_reading(columns, args.channels, col)
                passed = (args.dy + at * SIZE, args.winners + at * WINNER, out, lines, cells)
                if streams:
                    for c in range(0, args.channels, Q):
                        gather_stream(c, Q, *passed)
                else:
                    over_channels(0, args.channels, gather4, gather2, gather1, passed)
            r += 1
            if r == args.rows:
                image, r = image + 1, 0
        finish_rows(target, begin, (last - first) * width, args.stage, streams)

    @inline
    def finish_rows(target, begin, size, stage, streams):
        """Move staged rows past the cache; wait for what was streamed."""
        if stage:
            stream_bytes(target, begin, size)
        if stage or streams:
            fence()

    def make_mean(width, load, store):
        splat = width.splat

        @inline
        def summed(x, n, lines, cells):
            """Sum of n channels over the cells of some lines."""
            line_at, line_count = lines
            cell0, count, step, _, _ = cells
            total = splat(0.0)
            for e in range(line_count):
                at = x + (get_int(line_at + 24 * e) + cell0) * SIZE
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
            line_at, line_count = lines
            cell0, count, step, _, _ = cells  # here counted in cells
            total = splat(0.0)
            for e in range(line_count):
                source = dy + (get_int(line_at + 24 * e) + c) * SIZE
                row_divisor = get_int(row_div + 8 * get_int(line_at + 24 * e + 16))
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
        """row_div and col_div hold one divisor per output row and column; windows without a cell give `empty`."""
        depth_axis, row_axis, col_axis = axis_of(args.axes, 0), axis_of(args.axes, 1), axis_of(args.axes, 2)
        cols, in_row = col_axis[0], col_axis[1] * args.channels
        source_image = depth_axis[1] * row_axis[1] * in_row
        known, lines, kinds = NO_LINES, (0, 0), line_kinds(args.line_table)
        image, r = piece * args.block // args.rows, piece * args.block % args.rows
        for row in range(piece * args.block, min(piece * args.block + args.block, args.images * args.rows)):
            line, known, lines = lines_of(scratch + args.lines_start, known, lines, kinds, in_row, r)
            source = args.x + (image * source_image + line * in_row) * SIZE
            row_divisor = get_int(args.row_div + 8 * r)
            for col in range(cols):
                cells = cells_read(col_axis, args.channels, col)
                out = args.y + (row * cols + col) * args.channels * SIZE
                if lines[1] * cells[1] == 0:
                    for c in range(args.channels):
                        put(out + c * SIZE, args.empty)
                    continue
                divisor = row_divisor * get_int(args.col_div + 8 * col)
                share = 1.0 / float(divisor) if divisor & (divisor - 1) == 0 else 0.0
                passed = (source, out, lines, cells, float(divisor), share)
                over_many_channels(args.channels, mean8, mean4, mean2, mean1, passed)
            r += 1
            if r == args.rows:
                image, r = image + 1, 0

    def avg_grad(args: ChannelsAvgGrad, piece, scratch):
        """row_div, col_div: of output rows and columns. row_same, col_same: of all that read an input row or column, or 0."""
        streams = args.streams
        streams = streams and args.dx % LINE == 0
        depth_axis, row_axis, col_axis = axis_of(args.axes, 0), axis_of(args.axes, 1), axis_of(args.axes, 2)
        columns = readers_in(args.col_readers)
        out_row, width = col_axis[0] * args.channels, col_axis[1] * args.channels * SIZE
        source_image = depth_axis[0] * row_axis[0] * out_row
        first, last = piece * args.block, min(piece * args.block + args.block, args.images * args.rows)
        target = args.dx + first * width
        begin = scratch if args.stage else target
        known, lines, kinds = NO_LINES, (0, 0), line_kinds(args.line_table)
        divisor, share = 0, 0.0
        image, r = first // args.rows, first % args.rows
        for row in range(first, last):
            line, known, lines = lines_of(scratch + args.lines_start, known, lines, kinds, out_row, r)
            source, target_row = args.dy + (image * source_image + line * out_row) * SIZE, begin + (row - first) * width
            same_row = get_int(args.row_same + 8 * r)
            for col in range(col_axis[1]):
                out = target_row + col * args.channels * SIZE
                same = same_row * get_int(args.col_same + 8 * col)
                if same:
                    if same != divisor:
                        divisor, share = same, 1.0 / float(same)
                    passed = (source, out, lines, cells_reading(columns, args.channels, col), share)
                    if streams:
                        for c in range(0, args.channels, Q):
                            shared_stream(c, Q, *passed)
                    else:
                        over_channels(0, args.channels, shared4, shared2, shared1, passed)
                else:
                    several = (
                        source,
                        out,
                        args.channels,
                        lines,
                        cells_reading(columns, 1, col),
                        args.row_div + 8 * line,
                        args.col_div,
                    )
                    if streams:
                        for c in range(0, args.channels, Q):
                            mixed_stream(c, Q, *several)
                    else:
                        over_channels(0, args.channels, mixed4, mixed2, mixed1, several)
            r += 1
            if r == args.rows:
                image, r = image + 1, 0
        finish_rows(target, begin, (last - first) * width, args.stage, streams)

    return {
        "max_forward": max_forward,
        "max_grad": max_grad,
        "avg_forward": avg_forward,
        "avg_grad": avg_grad,
    }
