"""Pooling with vectors of channels: for channels_last arrays with enough channels.

Each output (forward) or input cell (gradient) reads a short list of source cells, given per row and per column by the plan's
tables: `ptr[i] .. ptr[i+1]` are the entries of row or column i, `src` their offset in elements, `tap` their share of the tap
number. The kernels only add these up; padding, stride, dilation and rank are all in the tables. Every target cell is written
once.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.native import LINE, fence, in_order, stream_bytes
from pullback.cpu.kernels.pool_rules import make_loses, make_takes
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
        def best_of(c, n, source, y, winners, e0, e1, k0, k1, row_src, row_tap, col_src, col_tap, empty, above):
            """Value and winner of n channels of one window; y or winners may be 0 for not wanted."""
            x = source + c * SIZE
            if e0 == e1 or k0 == k1:
                best, winner = splat(empty), splat_winner(NONE)
            else:
                best = load(x + (get_int(row_src + 8 * e0) + get_int(col_src + 8 * k0)) * SIZE, n)
                winner = splat_winner(get_int(row_tap + 8 * e0) + get_int(col_tap + 8 * k0))
                for e in range(e0, e1):
                    line, base = x + get_int(row_src + 8 * e) * SIZE, get_int(row_tap + 8 * e)
                    for k in range(k0, k1):
                        cell = load(line + get_int(col_src + 8 * k) * SIZE, n)
                        wins = takes(cell, best)
                        best = choose(wins, cell, best)
                        winner = choose(wins, splat_winner(base + get_int(col_tap + 8 * k)), winner)
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

    @inline
    def max_row(x, y, winners, cols, channels, e0, e1, row_src, row_tap, col_ptr, col_src, col_tap, empty, above):
        """One output row."""
        for col in range(cols):
            k0, k1 = get_int(col_ptr + 8 * col), get_int(col_ptr + 8 * col + 8)
            out = y + col * channels * SIZE if y else 0
            code = winners + col * channels * WINNER if winners else 0
            args = (x, out, code, e0, e1, k0, k1, row_src, row_tap, col_src, col_tap, empty, above)
            over_many_channels(channels, max8, max4, max2, max1, args)

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
        piece, scratch, x, y, winners, indices, block, images, rows, cols, channels, source_image,
        row_ptr, row_src, row_tap, col_ptr, col_src, col_tap, index_image, row_base, col_base, tap_base,
        empty: float, above: float,
    ):  # fmt: skip
        first, last = piece * block, min(piece * block + block, images * rows)
        width = cols * channels
        for row in range(first, last):
            image, r = row // rows, row % rows
            own = scratch if indices and not winners else (winners + row * width * WINNER if winners else 0)
            max_row(
                x + image * source_image * SIZE, y + row * width * SIZE if y else 0, own, cols, channels,
                get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_src, row_tap, col_ptr, col_src, col_tap,
                empty, above,
            )  # fmt: skip
            if indices:
                base = image * index_image + get_int(row_base + 8 * r)
                index_row(indices + 8 * row * width, own, cols, channels, base, col_base, tap_base)

    def make_gather(width, load, load_codes, store):
        splat, splat_code = width.splat, width.splat_code

        @inline
        def gather(c, n, dy, winners, dx, e0, e1, k0, k1, row_src, row_tap, col_src, col_tap):
            """Gradient of n channels of one input cell: dy of the windows whose winner it is."""
            total = splat(0.0)
            for e in range(e0, e1):
                source, base = get_int(row_src + 8 * e) + c, get_int(row_tap + 8 * e)
                for k in range(k0, k1):
                    at = source + get_int(col_src + 8 * k)
                    mine = equal(load_codes(winners + at * WINNER, n), splat_code(base + get_int(col_tap + 8 * k)))
                    total = total + choose(mine, load(dy + at * SIZE, n), splat(0.0))
            store(dx + c * SIZE, total, n)

        return gather

    gather_stream = make_gather(quad, quad.load, quad.load_codes, quad.stream)
    gather4 = make_gather(quad, quad.load, quad.load_codes, quad.store)
    gather2 = make_gather(pair, pair.load, pair.load_codes, pair.store)
    gather1 = make_gather(lanes, lanes.load_some, lanes.load_codes_some, lanes.store_some)

    @inline
    def gather_row(dy, winners, dx, cols, channels, e0, e1, row_src, row_tap, col_ptr, col_src, col_tap, streams):
        """One input row. streams: stores may pass the cache, since all of them are whole and aligned."""
        for col in range(cols):
            k0, k1 = get_int(col_ptr + 8 * col), get_int(col_ptr + 8 * col + 8)
            args = (dy, winners, dx + col * channels * SIZE, e0, e1, k0, k1, row_src, row_tap, col_src, col_tap)
            if streams:
                for c in range(0, channels, Q):
                    gather_stream(c, Q, *args)
            else:
                over_channels(0, channels, gather4, gather2, gather1, args)

    def max_grad(
        piece, scratch, dy, winners, dx, block, images, rows, cols, channels, source_image, stage, streams,
        row_ptr, row_src, row_tap, col_ptr, col_src, col_tap,
    ):  # fmt: skip
        streams = streams and dx % LINE == 0
        first, last = piece * block, min(piece * block + block, images * rows)
        width = cols * channels * SIZE
        target = dx + first * width
        begin = scratch if stage else target
        for row in range(first, last):
            image, r = row // rows, row % rows
            gather_row(
                dy + image * source_image * SIZE, winners + image * source_image * WINNER, begin + (row - first) * width,
                cols, channels, get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_src, row_tap,
                col_ptr, col_src, col_tap, streams,
            )  # fmt: skip
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
        def summed(x, n, e0, e1, k0, k1, row_src, col_src):
            """Sum of n channels over a list of cells."""
            total = splat(0.0)
            for e in range(e0, e1):
                source = x + get_int(row_src + 8 * e) * SIZE
                for k in range(k0, k1):
                    cell = load(source + get_int(col_src + 8 * k) * SIZE, n)
                    in_order()
                    total = total + cell
            return total

        @inline
        def mean(c, n, x, y, e0, e1, k0, k1, row_src, col_src, divisor, share):
            """Mean of n channels of one window; share: the divisor's reciprocal if that is exact, or 0."""
            total = summed(x + c * SIZE, n, e0, e1, k0, k1, row_src, col_src)
            if share != 0.0:  # products are quicker than quotients
                store(y + c * SIZE, total * splat(share), n)
            else:
                store(y + c * SIZE, total / splat(divisor), n)

        @inline
        def shared(c, n, dy, dx, e0, e1, k0, k1, row_src, col_src, share):
            """Gradient of n channels of one cell whose windows divide alike."""
            store(dx + c * SIZE, summed(dy + c * SIZE, n, e0, e1, k0, k1, row_src, col_src) * splat(share), n)

        @inline
        def mixed(c, n, dy, dx, e0, e1, k0, k1, row_src, col_src, row_div, col_div):
            """Gradient of n channels of one cell whose windows divide by different counts."""
            total = splat(0.0)
            for e in range(e0, e1):
                source = dy + (get_int(row_src + 8 * e) + c) * SIZE
                for k in range(k0, k1):
                    share = 1.0 / float(get_int(row_div + 8 * e) * get_int(col_div + 8 * k))
                    total = total + load(source + get_int(col_src + 8 * k) * SIZE, n) * splat(share)
            store(dx + c * SIZE, total, n)

        return mean, shared, mixed

    _, shared_stream, mixed_stream = make_mean(quad, quad.load, quad.stream)
    mean8, _, _ = make_mean(octo, octo.load, octo.store)
    mean4, shared4, mixed4 = make_mean(quad, quad.load, quad.store)
    mean2, shared2, mixed2 = make_mean(pair, pair.load, pair.store)
    mean1, shared1, mixed1 = make_mean(lanes, lanes.load_some, lanes.store_some)

    def avg_forward(
        piece, scratch, x, y, block, images, rows, cols, channels, source_image,
        row_ptr, row_src, col_ptr, col_src, row_div, col_div, empty: float,
    ):  # fmt: skip
        """row_div and col_div hold one divisor per output row and column; 0 rows or columns in bounds give `empty`."""
        first, last = piece * block, min(piece * block + block, images * rows)
        for row in range(first, last):
            image, r = row // rows, row % rows
            source, target = x + image * source_image * SIZE, y + row * cols * channels * SIZE
            e0, e1 = get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8)
            for col in range(cols):
                k0, k1 = get_int(col_ptr + 8 * col), get_int(col_ptr + 8 * col + 8)
                out = target + col * channels * SIZE
                if e0 == e1 or k0 == k1:
                    for c in range(channels):
                        put(out + c * SIZE, empty)
                    continue
                divisor = get_int(row_div + 8 * r) * get_int(col_div + 8 * col)
                share = 1.0 / float(divisor) if divisor & (divisor - 1) == 0 else 0.0
                args = (source, out, e0, e1, k0, k1, row_src, col_src, float(divisor), share)
                over_many_channels(channels, mean8, mean4, mean2, mean1, args)

    def avg_grad(
        piece, scratch, dy, dx, block, images, rows, cols, channels, source_image, stage, streams,
        row_ptr, row_src, col_ptr, col_src, row_div, col_div, row_same, col_same,
    ):  # fmt: skip
        """row_div, col_div: one divisor per entry. row_same, col_same: that of a whole row or column, 0 if they differ."""
        streams = streams and dx % LINE == 0
        first, last = piece * block, min(piece * block + block, images * rows)
        width = cols * channels * SIZE
        target = dx + first * width
        begin = scratch if stage else target
        known, share = 0, 0.0
        for row in range(first, last):
            image, r = row // rows, row % rows
            source, line = dy + image * source_image * SIZE, begin + (row - first) * width
            e0, e1 = get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8)
            for col in range(cols):
                k0, k1 = get_int(col_ptr + 8 * col), get_int(col_ptr + 8 * col + 8)
                out = line + col * channels * SIZE
                same = get_int(row_same + 8 * r) * get_int(col_same + 8 * col)
                if same:
                    if same != known:
                        known, share = same, 1.0 / float(same)
                    args = (source, out, e0, e1, k0, k1, row_src, col_src, share)
                    if streams:
                        for c in range(0, channels, Q):
                            shared_stream(c, Q, *args)
                    else:
                        over_channels(0, channels, shared4, shared2, shared1, args)
                else:
                    several = (source, out, e0, e1, k0, k1, row_src, col_src, row_div, col_div)
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
