"""Pooling with vectors of channels: for channels_last arrays with enough channels.

Each output (forward) reads some cells of some lines of the input, each input cell (gradient) some of the outputs, at even steps:
pool_windows.py says which. Every target cell is written once.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.native import LINE, fence, in_order, stream_bytes
from pullback.cpu.kernels.pool_rules import make_loses, make_takes
from pullback.cpu.kernels.pool_windows import axis_of, cells_read, cells_reading, lines_read, lines_reading
from pullback.cpu.kernels.vectors import choose, equal, get_int, inline, outline, put_int, stay_outline


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
        def best_of(c, n, source, y, winners, width, channels, lines, cells, empty, above):
            """Value and winner of n channels of one window; y or winners may be 0 for not wanted."""
            row, planes, rows, plane_step, row_step, tap, plane_taps, row_taps = lines
            cell0, count, step, col_tap, _ = cells
            if planes * rows * count == 0:
                best, winner = splat(empty), splat_winner(NONE)
            else:
                x = source + (cell0 * channels + c) * SIZE
                best, winner = load(x + row * width * SIZE, n), splat_winner(tap + col_tap)
                for a in range(planes):
                    for e in range(rows):
                        line = x + (row + a * plane_step + e * row_step) * width * SIZE
                        base = tap + a * plane_taps + e * row_taps + col_tap
                        for k in range(count):
                            cell = load(line + k * step * channels * SIZE, n)
                            wins = takes(cell, best)
                            best = choose(wins, cell, best)
                            winner = choose(wins, splat_winner(base + k), winner)
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

    def max_forward(
        piece, scratch, x, y, winners, indices, block, images, rows, channels, axes, index_image, row_base, col_base, tap_base,
        empty: float, above: float,
    ):  # fmt: skip
        depth_axis, row_axis, col_axis = axis_of(axes, 0), axis_of(axes, 1), axis_of(axes, 2)
        cols, in_row = col_axis[0], col_axis[1] * channels
        source_image = depth_axis[1] * row_axis[1] * in_row
        for row in range(piece * block, min(piece * block + block, images * rows)):
            image, r = row // rows, row % rows
            at = row * cols * channels
            own = scratch if indices and not winners else (winners + at * WINNER if winners else 0)
            lines = lines_read(depth_axis, row_axis, col_axis[2], r)
            for col in range(cols):
                out = y + (at + col * channels) * SIZE if y else 0
                code = own + col * channels * WINNER if own else 0
                cells = cells_read(col_axis, col)
                args = (x + image * source_image * SIZE, out, code, in_row, channels, lines, cells, empty, above)
                over_many_channels(channels, max8, max4, max2, max1, args)
            if indices:
                base = image * index_image + get_int(row_base + 8 * r)
                index_row(indices + 8 * at, own, cols, channels, base, col_base, tap_base)

    def make_gather(width, load, load_codes, store):
        splat, splat_code = width.splat, width.splat_code

        @inline
        def gather(c, n, dy, winners, dx, width, channels, lines, cells):
            """Gradient of n channels of one input cell: dy of the windows whose winner it is."""
            row, planes, rows, plane_step, row_step, tap, plane_taps, row_taps = lines
            cell0, count, step, col_tap, tap_step = cells
            total = splat(0.0)
            for a in range(planes):
                for e in range(rows):
                    source = (row + a * plane_step + e * row_step) * width + cell0 * channels + c
                    base = tap + a * plane_taps + e * row_taps + col_tap
                    for k in range(count):
                        at = source + k * step * channels
                        mine = equal(load_codes(winners + at * WINNER, n), splat_code(base + k * tap_step))
                        total = total + choose(mine, load(dy + at * SIZE, n), splat(0.0))
            store(dx + c * SIZE, total, n)

        return gather

    gather_stream = make_gather(quad, quad.load, quad.load_codes, quad.stream)
    gather4 = make_gather(quad, quad.load, quad.load_codes, quad.store)
    gather2 = make_gather(pair, pair.load, pair.load_codes, pair.store)
    gather1 = make_gather(lanes, lanes.load_some, lanes.load_codes_some, lanes.store_some)

    def max_grad(
        piece, scratch, dy, winners, dx, block, images, rows, channels, stage, streams, axes,
        depth_readers, row_readers, col_readers,
    ):  # fmt: skip
        """streams: stores may pass the cache, since all of them are whole and aligned."""
        streams = streams and dx % LINE == 0
        depth_axis, row_axis, col_axis = axis_of(axes, 0), axis_of(axes, 1), axis_of(axes, 2)
        out_row, width = col_axis[0] * channels, col_axis[1] * channels * SIZE
        source_image = depth_axis[0] * row_axis[0] * out_row
        first, last = piece * block, min(piece * block + block, images * rows)
        target = dx + first * width
        begin = scratch if stage else target
        for row in range(first, last):
            at = row // rows * source_image
            lines = lines_reading(depth_readers, row_readers, row_axis[1], row_axis[0], row_axis[2], col_axis[2], row % rows)
            for col in range(col_axis[1]):
                out = begin + (row - first) * width + col * channels * SIZE
                cells = cells_reading(col_readers, col)
                args = (dy + at * SIZE, winners + at * WINNER, out, out_row, channels, lines, cells)
                if streams:
                    for c in range(0, channels, Q):
                        gather_stream(c, Q, *args)
                else:
                    over_channels(0, channels, gather4, gather2, gather1, args)
        finish_rows(target, begin, (last - first) * width, stage, streams)

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
        def summed(x, n, width, channels, lines, cells):
            """Sum of n channels over the cells of some lines."""
            row, planes, rows, plane_step, row_step, _, _, _ = lines
            cell0, count, step, _, _ = cells
            total = splat(0.0)
            for a in range(planes):
                for e in range(rows):
                    source = x + ((row + a * plane_step + e * row_step) * width + cell0 * channels) * SIZE
                    for k in range(count):
                        cell = load(source + k * step * channels * SIZE, n)
                        in_order()
                        total = total + cell
            return total

        @inline
        def mean(c, n, x, y, width, channels, lines, cells, divisor, share):
            """Mean of n channels of one window; share: the divisor's reciprocal if that is exact, or 0."""
            total = summed(x + c * SIZE, n, width, channels, lines, cells)
            if share != 0.0:  # products are quicker than quotients
                store(y + c * SIZE, total * splat(share), n)
            else:
                store(y + c * SIZE, total / splat(divisor), n)

        @inline
        def shared(c, n, dy, dx, width, channels, lines, cells, share):
            """Gradient of n channels of one cell whose windows divide alike."""
            store(dx + c * SIZE, summed(dy + c * SIZE, n, width, channels, lines, cells) * splat(share), n)

        @inline
        def mixed(c, n, dy, dx, width, channels, lines, cells, row_div, col_div):
            """Gradient of n channels of one cell whose windows divide by different counts."""
            row, planes, rows, plane_step, row_step, _, _, _ = lines
            cell0, count, step, _, _ = cells
            total = splat(0.0)
            for a in range(planes):
                for e in range(rows):
                    line = row + a * plane_step + e * row_step
                    for k in range(count):
                        cell = cell0 + k * step
                        share = 1.0 / float(get_int(row_div + 8 * line) * get_int(col_div + 8 * cell))
                        total = total + load(dy + (line * width + cell * channels + c) * SIZE, n) * splat(share)
            store(dx + c * SIZE, total, n)

        return mean, shared, mixed

    _, shared_stream, mixed_stream = make_mean(quad, quad.load, quad.stream)
    mean8, _, _ = make_mean(octo, octo.load, octo.store)
    mean4, shared4, mixed4 = make_mean(quad, quad.load, quad.store)
    mean2, shared2, mixed2 = make_mean(pair, pair.load, pair.store)
    mean1, shared1, mixed1 = make_mean(lanes, lanes.load_some, lanes.store_some)

    def avg_forward(piece, scratch, x, y, block, images, rows, channels, axes, row_div, col_div, empty: float):
        """row_div and col_div hold one divisor per output row and column; windows without a cell give `empty`."""
        depth_axis, row_axis, col_axis = axis_of(axes, 0), axis_of(axes, 1), axis_of(axes, 2)
        cols, in_row = col_axis[0], col_axis[1] * channels
        source_image = depth_axis[1] * row_axis[1] * in_row
        for row in range(piece * block, min(piece * block + block, images * rows)):
            image, r = row // rows, row % rows
            lines = lines_read(depth_axis, row_axis, col_axis[2], r)
            for col in range(cols):
                cells = cells_read(col_axis, col)
                out = y + (row * cols + col) * channels * SIZE
                if lines[1] * lines[2] * cells[1] == 0:
                    for c in range(channels):
                        put(out + c * SIZE, empty)
                    continue
                divisor = get_int(row_div + 8 * r) * get_int(col_div + 8 * col)
                share = 1.0 / float(divisor) if divisor & (divisor - 1) == 0 else 0.0
                args = (x + image * source_image * SIZE, out, in_row, channels, lines, cells, float(divisor), share)
                over_many_channels(channels, mean8, mean4, mean2, mean1, args)

    def avg_grad(
        piece, scratch, dy, dx, block, images, rows, channels, stage, streams, axes,
        depth_readers, row_readers, col_readers, row_div, col_div, row_same, col_same,
    ):  # fmt: skip
        """row_div, col_div: of output rows and columns. row_same, col_same: of all that read an input row or column, or 0."""
        streams = streams and dx % LINE == 0
        depth_axis, row_axis, col_axis = axis_of(axes, 0), axis_of(axes, 1), axis_of(axes, 2)
        out_row, width = col_axis[0] * channels, col_axis[1] * channels * SIZE
        source_image = depth_axis[0] * row_axis[0] * out_row
        first, last = piece * block, min(piece * block + block, images * rows)
        target = dx + first * width
        begin = scratch if stage else target
        known, share = 0, 0.0
        for row in range(first, last):
            image, r = row // rows, row % rows
            source, line = dy + image * source_image * SIZE, begin + (row - first) * width
            lines = lines_reading(depth_readers, row_readers, row_axis[1], row_axis[0], row_axis[2], col_axis[2], r)
            for col in range(col_axis[1]):
                cells = cells_reading(col_readers, col)
                out = line + col * channels * SIZE
                same = get_int(row_same + 8 * r) * get_int(col_same + 8 * col)
                if same:
                    if same != known:
                        known, share = same, 1.0 / float(same)
                    args = (source, out, out_row, channels, lines, cells, share)
                    if streams:
                        for c in range(0, channels, Q):
                            shared_stream(c, Q, *args)
                    else:
                        over_channels(0, channels, shared4, shared2, shared1, args)
                else:
                    several = (source, out, out_row, channels, lines, cells, row_div, col_div)
                    if streams:
                        for c in range(0, channels, Q):
                            mixed_stream(c, Q, *several)
                    else:
                        over_channels(0, channels, mixed4, mixed2, mixed1, several)
        finish_rows(target, begin, (last - first) * width, stage, streams)

    return {
        "max_forward": max_forward,
        "max_grad": max_grad,
        "avg_forward": avg_forward,
        "avg_grad": avg_grad,
    }
