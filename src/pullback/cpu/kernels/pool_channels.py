"""Pooling with vectors of channels: for channels_last arrays with enough channels.

Each output (forward) or input cell (gradient) reads a short list of source cells, given per row and per column by the plan's
tables: `ptr[i] .. ptr[i+1]` are the entries of row or column i, `src` their offset in elements, `tap` their share of the tap
number. The kernels only add these up; padding, stride, dilation and rank are all in the tables. Every target cell is written
once. Channels go four registers at a time, then two under a mask.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.native import fence, stream_bytes
from pullback.cpu.kernels.pool_rules import make_loses, make_takes
from pullback.cpu.kernels.pool_scatter import make_scatter
from pullback.cpu.kernels.vectors import choose, equal, get_int, inline, outline, put_int, stay_outline


def build(lanes: Any, ties: str = "first", nan: str = "propagate", floor: bool = False, losers: bool = False) -> dict[str, Any]:
    """The kernels for one element type and winner rule. `losers`: whether a window of cells may have no winner."""
    quad, pair = lanes.times(4), lanes.times(2)
    Q, P, SIZE, WIDE, WINNER = quad.count, pair.count, lanes.size, lanes.compute_size, lanes.winner_size
    NONE = 256**WINNER - 1
    get_winner, put = lanes.get_winner, lanes.put

    def make_max(width, load, store, store_winners):
        splat, splat_winner = width.splat, width.splat_winner
        takes, loses = make_takes(width, ties, nan), make_loses(width, floor)

        @inline
        def best_of(x, y, winners, n, e0, e1, k0, k1, row_src, row_tap, col_src, col_tap, empty, above):
            """Value and winner of n channels of one window; y or winners may be 0 for not wanted."""
            if e0 == e1 or k0 == k1:
                best, winner = splat(empty), splat_winner(NONE)
            else:
                best = load(x + (get_int(row_src + 8 * e0) + get_int(col_src + 8 * k0)) * SIZE, n)
                winner = splat_winner(get_int(row_tap + 8 * e0) + get_int(col_tap + 8 * k0))
                for e in range(e0, e1):
                    source, base = x + get_int(row_src + 8 * e) * SIZE, get_int(row_tap + 8 * e)
                    for k in range(k0, k1):
                        cell = load(source + get_int(col_src + 8 * k) * SIZE, n)
                        wins = takes(cell, best)
                        best = choose(wins, cell, best)
                        winner = choose(wins, splat_winner(base + get_int(col_tap + 8 * k)), winner)
                if losers:
                    none = loses(best, above)
                    best, winner = choose(none, splat(empty), best), choose(none, splat_winner(NONE), winner)
            if y:
                store(y, best, n)
            if winners:
                store_winners(winners, winner, n)

        return best_of

    quad_max = make_max(quad, quad.load, quad.store, quad.store_winners)
    pair_max = make_max(pair, pair.load_some, pair.store_some, pair.store_winners_some)

    @inline
    def max_row(x, y, winners, cols, channels, e0, e1, row_src, row_tap, col_ptr, col_src, col_tap, empty, above):
        """One output row."""
        for col in range(cols):
            k0, k1 = get_int(col_ptr + 8 * col), get_int(col_ptr + 8 * col + 8)
            out = y + col * channels * SIZE if y else 0
            code = winners + col * channels * WINNER if winners else 0
            size, step = SIZE if y else 0, WINNER if winners else 0
            c = 0
            while c + Q <= channels:
                quad_max(
                    x + c * SIZE, out + c * size, code + c * step, Q,
                    e0, e1, k0, k1, row_src, row_tap, col_src, col_tap, empty, above,
                )  # fmt: skip
                c += Q
            while c < channels:
                pair_max(
                    x + c * SIZE, out + c * size, code + c * step, min(P, channels - c),
                    e0, e1, k0, k1, row_src, row_tap, col_src, col_tap, empty, above,
                )  # fmt: skip
                c += P

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
                x + image * source_image * SIZE, y + row * width * SIZE, own, cols, channels,
                get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_src, row_tap, col_ptr, col_src, col_tap,
                empty, above,
            )  # fmt: skip
            if indices:
                base = image * index_image + get_int(row_base + 8 * r)
                index_row(indices + 8 * row * width, own, cols, channels, base, col_base, tap_base)

    def make_gather(width, load, load_winners, store):
        splat, splat_winner = width.splat, width.splat_winner

        @inline
        def gather(dy, winners, dx, n, e0, e1, k0, k1, row_src, row_tap, col_src, col_tap):
            """Gradient of n channels of one input cell: dy of the windows whose winner it is."""
            total = splat(0.0)
            for e in range(e0, e1):
                source, base = get_int(row_src + 8 * e), get_int(row_tap + 8 * e)
                for k in range(k0, k1):
                    at = source + get_int(col_src + 8 * k)
                    mine = equal(load_winners(winners + at * WINNER, n), splat_winner(base + get_int(col_tap + 8 * k)))
                    total = total + choose(mine, load(dy + at * SIZE, n), splat(0.0))
            store(dx, total, n)

        return gather

    quad_gather = make_gather(quad, quad.load, quad.load_winners, quad.store)
    pair_gather = make_gather(pair, pair.load_some, pair.load_winners_some, pair.store_some)

    @inline
    def gather_row(dy, winners, dx, cols, channels, e0, e1, row_src, row_tap, col_ptr, col_src, col_tap):
        """One input row."""
        for col in range(cols):
            k0, k1 = get_int(col_ptr + 8 * col), get_int(col_ptr + 8 * col + 8)
            out = dx + col * channels * SIZE
            c = 0
            while c + Q <= channels:
                quad_gather(
                    dy + c * SIZE, winners + c * WINNER, out + c * SIZE, Q,
                    e0, e1, k0, k1, row_src, row_tap, col_src, col_tap,
                )  # fmt: skip
                c += Q
            while c < channels:
                pair_gather(
                    dy + c * SIZE, winners + c * WINNER, out + c * SIZE, min(P, channels - c),
                    e0, e1, k0, k1, row_src, row_tap, col_src, col_tap,
                )  # fmt: skip
                c += P

    def max_grad(
        piece, scratch, dy, winners, dx, block, images, rows, cols, channels, source_image, stage,
        row_ptr, row_src, row_tap, col_ptr, col_src, col_tap,
    ):  # fmt: skip
        first, last = piece * block, min(piece * block + block, images * rows)
        width = cols * channels * SIZE
        target = dx + first * width
        begin = scratch if stage else target
        for row in range(first, last):
            image, r = row // rows, row % rows
            gather_row(
                dy + image * source_image * SIZE, winners + image * source_image * WINNER, begin + (row - first) * width,
                cols, channels, get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_src, row_tap,
                col_ptr, col_src, col_tap,
            )  # fmt: skip
        if stage:
            stream_bytes(target, begin, (last - first) * width)
            fence()

    scatter_rows, finish = make_scatter(lanes)

    def max_grad_from_x(
        piece, scratch, dy, x, dx, group, units, blocks, rows, cols, channels, source_rows, source_cols, code_start,
        block_row, need_ptr, need_row, inner0, inner1, row_base, col_first, col_step,
        taps, tap_at, tap_row_at, tap_col, col_cells, kernel_cols,
        row_ptr, row_src, row_tap, col_ptr, col_src, col_tap, empty: float, above: float,
    ):  # fmt: skip
        """The winners of each output row that a block of input rows needs are found again, then scattered."""
        in_row, out_row = cols * channels, source_cols * channels
        codes = scratch + code_start
        for unit in range(piece * group, min(piece * group + group, units)):
            image, b = unit // blocks, unit % blocks
            first, last = get_int(block_row + 8 * b), get_int(block_row + 8 * b + 8)
            target = dx + (image * rows + first) * in_row * SIZE
            out, size, zeroed = target if SIZE == WIDE else scratch, (last - first) * in_row, 0
            for i in range(get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)):
                r = get_int(need_row + 8 * i)
                max_row(
                    x + image * rows * in_row * SIZE, 0, codes, source_cols, channels,
                    get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_src, row_tap, col_ptr, col_src, col_tap,
                    empty, above,
                )  # fmt: skip
                zeroed = scatter_rows(
                    dy + image * source_rows * out_row * SIZE, codes, out, zeroed, size, first * in_row, need_row, i, i + 1,
                    row_base, source_cols, channels, inner0, inner1, col_first, col_step,
                    taps, tap_at, tap_row_at, tap_col, col_cells, kernel_cols, 0,
                )  # fmt: skip
            finish(target, out, zeroed, size)

    def make_mean(width, load, store):
        splat = width.splat

        @inline
        def mean(x, y, n, e0, e1, k0, k1, row_src, col_src, divisor):
            """Mean of n channels of one window."""
            total = splat(0.0)
            for e in range(e0, e1):
                source = x + get_int(row_src + 8 * e) * SIZE
                for k in range(k0, k1):
                    total = total + load(source + get_int(col_src + 8 * k) * SIZE, n)
            store(y, total / splat(divisor), n)

        @inline
        def shared(dy, dx, n, e0, e1, k0, k1, row_src, col_src, share):
            """Gradient of n channels of one cell whose windows divide alike."""
            total = splat(0.0)
            for e in range(e0, e1):
                source = dy + get_int(row_src + 8 * e) * SIZE
                for k in range(k0, k1):
                    total = total + load(source + get_int(col_src + 8 * k) * SIZE, n)
            store(dx, total * splat(share), n)

        @inline
        def mixed(dy, dx, n, e0, e1, k0, k1, row_src, col_src, row_div, col_div):
            """Gradient of n channels of one cell whose windows divide by different counts."""
            total = splat(0.0)
            for e in range(e0, e1):
                source = dy + get_int(row_src + 8 * e) * SIZE
                for k in range(k0, k1):
                    share = 1.0 / float(get_int(row_div + 8 * e) * get_int(col_div + 8 * k))
                    total = total + load(source + get_int(col_src + 8 * k) * SIZE, n) * splat(share)
            store(dx, total, n)

        return mean, shared, mixed

    quad_mean, quad_shared, quad_mixed = make_mean(quad, quad.load, quad.store)
    pair_mean, pair_shared, pair_mixed = make_mean(pair, pair.load_some, pair.store_some)

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
                divisor = float(get_int(row_div + 8 * r) * get_int(col_div + 8 * col))
                c = 0
                while c + Q <= channels:
                    quad_mean(source + c * SIZE, out + c * SIZE, Q, e0, e1, k0, k1, row_src, col_src, divisor)
                    c += Q
                while c < channels:
                    pair_mean(
                        source + c * SIZE, out + c * SIZE, min(P, channels - c), e0, e1, k0, k1, row_src, col_src, divisor
                    )
                    c += P

    def avg_grad(
        piece, scratch, dy, dx, block, images, rows, cols, channels, source_image, stage,
        row_ptr, row_src, col_ptr, col_src, row_div, col_div, row_same, col_same,
    ):  # fmt: skip
        """row_div, col_div: one divisor per entry. row_same, col_same: that of a whole row or column, 0 if they differ."""
        first, last = piece * block, min(piece * block + block, images * rows)
        width = cols * channels * SIZE
        target = dx + first * width
        begin = scratch if stage else target
        for row in range(first, last):
            image, r = row // rows, row % rows
            source, line = dy + image * source_image * SIZE, begin + (row - first) * width
            e0, e1 = get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8)
            for col in range(cols):
                k0, k1 = get_int(col_ptr + 8 * col), get_int(col_ptr + 8 * col + 8)
                out = line + col * channels * SIZE
                same = get_int(row_same + 8 * r) * get_int(col_same + 8 * col)
                c = 0
                if same:
                    share = 1.0 / float(same)
                    while c + Q <= channels:
                        quad_shared(source + c * SIZE, out + c * SIZE, Q, e0, e1, k0, k1, row_src, col_src, share)
                        c += Q
                    while c < channels:
                        pair_shared(
                            source + c * SIZE, out + c * SIZE, min(P, channels - c), e0, e1, k0, k1, row_src, col_src, share
                        )
                        c += P
                else:
                    while c + Q <= channels:
                        quad_mixed(source + c * SIZE, out + c * SIZE, Q, e0, e1, k0, k1, row_src, col_src, row_div, col_div)
                        c += Q
                    while c < channels:
                        pair_mixed(
                            source + c * SIZE,
                            out + c * SIZE,
                            min(P, channels - c),
                            e0,
                            e1,
                            k0,
                            k1,
                            row_src,
                            col_src,
                            row_div,
                            col_div,
                        )
                        c += P
        if stage:
            stream_bytes(target, begin, (last - first) * width)
            fence()

    return {
        "max_forward": max_forward,
        "max_grad": max_grad,
        "max_grad_from_x": max_grad_from_x,
        "avg_forward": avg_forward,
        "avg_grad": avg_grad,
    }
