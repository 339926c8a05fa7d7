"""Pooling with one vector of channels at a time: for channels_last arrays with enough channels.

Each output (forward) or input cell (gradient) reads a short list of source cells, given per row and per column by the plan's
tables: `ptr[i] .. ptr[i+1]` are the entries of row or column i, `src` their offset in elements, `tap` their share of the tap
number. The kernels only add these up; padding, stride, dilation and rank are all in the tables. Every target cell is written once.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.native import fence, stream_bytes
from pullback.cpu.kernels.pool_rules import make_loses, make_takes
from pullback.cpu.kernels.vectors import choose, equal, get_int, inline, put_int


def build(lanes: Any, ties: str = "first", nan: str = "propagate", floor: bool = False, losers: bool = False) -> dict[str, Any]:
    """The kernels for one element type and winner rule. `losers`: whether a window of cells may have no winner."""
    V, SIZE, WINNER = lanes.count, lanes.size, lanes.winner_size
    NONE = 256**WINNER - 1
    splat, splat_winner, get_winner = lanes.splat, lanes.splat_winner, lanes.get_winner
    takes, loses = make_takes(lanes, ties, nan), make_loses(lanes, floor)

    def make_max(load, store, store_winners):
        @inline
        def best_of(x, y, winners, n, e0, e1, k0, k1, row_src, row_tap, col_src, col_tap, empty, above):
            """Value and winner of n channels of one window."""
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

    whole_max = make_max(lanes.load, lanes.store, lanes.store_winners)
    part_max = make_max(lanes.load_some, lanes.store_some, lanes.store_winners_some)

    @inline
    def max_row(x, y, winners, cols, channels, e0, e1, row_src, row_tap, col_ptr, col_src, col_tap, empty, above):
        """One output row; y or winners may be 0 for not wanted."""
        for col in range(cols):
            k0, k1 = get_int(col_ptr + 8 * col), get_int(col_ptr + 8 * col + 8)
            for c in range(0, channels - V + 1, V):
                at = col * channels + c
                whole_max(
                    x + c * SIZE, y + at * SIZE if y else 0, winners + at * WINNER if winners else 0, V,
                    e0, e1, k0, k1, row_src, row_tap, col_src, col_tap, empty, above,
                )  # fmt: skip
            rest = channels % V
            if rest:
                c = channels - rest
                at = col * channels + c
                part_max(
                    x + c * SIZE, y + at * SIZE if y else 0, winners + at * WINNER if winners else 0, rest,
                    e0, e1, k0, k1, row_src, row_tap, col_src, col_tap, empty, above,
                )  # fmt: skip

    @inline
    def index_row(indices, winners, cols, channels, base, col_base, tap_base):
        """Winners of one row as flat indices into the input, -1 for none."""
        for col in range(cols):
            first = base + get_int(col_base + 8 * col)
            for c in range(channels):
                at = col * channels + c
                tap = get_winner(winners + at * WINNER)
                put_int(indices + 8 * at, -1 if tap == NONE else first + get_int(tap_base + 8 * tap) + c)

    def max_forward(
        piece, scratch, x, y, winners, indices, block, images, rows, cols, channels, source_image, stage,
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
                get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_src, row_tap, col_ptr, col_src, col_tap, empty, above,
            )  # fmt: skip
            if indices:
                base = image * index_image + get_int(row_base + 8 * r)
                index_row(indices + 8 * row * width, own, cols, channels, base, col_base, tap_base)

    def make_gather(load, load_winners, store):
        @inline
        def gather(dy, winners, dx, n, e0, e1, k0, k1, row_src, row_win, row_tap, col_src, col_tap):
            """Gradient of n channels of one input cell: dy of the windows whose winner it is."""
            total = splat(0.0)
            for e in range(e0, e1):
                values, base = dy + get_int(row_src + 8 * e) * SIZE, get_int(row_tap + 8 * e)
                codes = winners + get_int(row_win + 8 * e) * WINNER
                for k in range(k0, k1):
                    at = get_int(col_src + 8 * k)
                    mine = equal(load_winners(codes + at * WINNER, n), splat_winner(base + get_int(col_tap + 8 * k)))
                    total = total + choose(mine, load(values + at * SIZE, n), splat(0.0))
            store(dx, total, n)

        return gather

    whole_gather = make_gather(lanes.load, lanes.load_winners, lanes.store)
    part_gather = make_gather(lanes.load_some, lanes.load_winners_some, lanes.store_some)

    @inline
    def gather_row(dy, winners, dx, cols, channels, e0, e1, row_src, row_win, row_tap, col_ptr, col_src, col_tap):
        """One input row; row_win gives the place of each source row's winners, which may lie apart from dy's order."""
        for col in range(cols):
            k0, k1 = get_int(col_ptr + 8 * col), get_int(col_ptr + 8 * col + 8)
            for c in range(0, channels - V + 1, V):
                whole_gather(
                    dy + c * SIZE, winners + c * WINNER, dx + (col * channels + c) * SIZE, V,
                    e0, e1, k0, k1, row_src, row_win, row_tap, col_src, col_tap,
                )  # fmt: skip
            rest = channels % V
            if rest:
                c = channels - rest
                part_gather(
                    dy + c * SIZE, winners + c * WINNER, dx + (col * channels + c) * SIZE, rest,
                    e0, e1, k0, k1, row_src, row_win, row_tap, col_src, col_tap,
                )  # fmt: skip

    def max_grad(
        piece, scratch, dy, winners, dx, block, images, rows, cols, channels, source_image, stage,
        row_ptr, row_src, row_tap, col_ptr, col_src, col_tap,
    ):  # fmt: skip
        first, last = piece * block, min(piece * block + block, images * rows)
        width = cols * channels * SIZE
        target = dx + first * width
        out = scratch if stage else target
        for row in range(first, last):
            image, r = row // rows, row % rows
            gather_row(
                dy + image * source_image * SIZE, winners + image * source_image * WINNER, out + (row - first) * width,
                cols, channels, get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_src, row_src, row_tap,
                col_ptr, col_src, col_tap,
            )  # fmt: skip
        if stage:
            stream_bytes(target, out, (last - first) * width)
            fence()

    def make_mean(load, store):
        @inline
        def mean(x, y, n, e0, e1, k0, k1, row_src, col_src, divisor):
            """Mean of n channels of one window, or gradient where all windows of a cell divide alike."""
            total = splat(0.0)
            for e in range(e0, e1):
                source = x + get_int(row_src + 8 * e) * SIZE
                for k in range(k0, k1):
                    total = total + load(source + get_int(col_src + 8 * k) * SIZE, n)
            store(y, total / splat(divisor), n)

        @inline
        def shares(dy, dx, n, e0, e1, k0, k1, row_src, col_src, row_div, col_div):
            """Gradient of n channels of one cell whose windows divide by different counts."""
            total = splat(0.0)
            for e in range(e0, e1):
                source = dy + get_int(row_src + 8 * e) * SIZE
                for k in range(k0, k1):
                    divisor = float(get_int(row_div + 8 * e) * get_int(col_div + 8 * k))
                    total = total + load(source + get_int(col_src + 8 * k) * SIZE, n) / splat(divisor)
            store(dx, total, n)

        return mean, shares

    whole_mean, whole_shares = make_mean(lanes.load, lanes.store)
    part_mean, part_shares = make_mean(lanes.load_some, lanes.store_some)
    put = lanes.put

    def avg_forward(
        piece, scratch, x, y, block, images, rows, cols, channels, source_image, stage,
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
                for c in range(0, channels - V + 1, V):
                    whole_mean(source + c * SIZE, out + c * SIZE, V, e0, e1, k0, k1, row_src, col_src, divisor)
                rest = channels % V
                if rest:
                    c = channels - rest
                    part_mean(source + c * SIZE, out + c * SIZE, rest, e0, e1, k0, k1, row_src, col_src, divisor)

    def avg_grad(
        piece, scratch, dy, dx, block, images, rows, cols, channels, source_image, stage,
        row_ptr, row_src, col_ptr, col_src, row_div, col_div, row_same, col_same,
    ):  # fmt: skip
        """row_div and col_div hold one divisor per entry; row_same and col_same the one of a row or column, 0 if they differ."""
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
                rest = channels % V
                tail = channels - rest
                if same:
                    for c in range(0, tail, V):
                        whole_mean(source + c * SIZE, out + c * SIZE, V, e0, e1, k0, k1, row_src, col_src, float(same))
                    if rest:
                        part_mean(source + tail * SIZE, out + tail * SIZE, rest, e0, e1, k0, k1, row_src, col_src, float(same))
                else:
                    for c in range(0, tail, V):
                        whole_shares(source + c * SIZE, out + c * SIZE, V, e0, e1, k0, k1, row_src, col_src, row_div, col_div)
                    if rest:
                        part_shares(
                            source + tail * SIZE, out + tail * SIZE, rest, e0, e1, k0, k1, row_src, col_src, row_div, col_div
                        )
        if stage:
            stream_bytes(target, begin, (last - first) * width)
            fence()

    def max_grad_from_x(
        piece, scratch, dy, x, dx, group, units, blocks, rows, cols, channels, source_image, target_image, stage,
        block_row, need_ptr, need_row, row_ptr, row_src, row_win, row_tap, col_ptr, col_src, col_tap,
        win_row_ptr, win_row_src, win_row_tap, win_col_ptr, win_col_src, win_col_tap, source_cols,
        empty: float, above: float,
    ):  # fmt: skip
        """The winners of the output rows that a block of input rows needs are found again into scratch, then gathered."""
        last_unit = min(piece * group + group, units)
        width = cols * channels * SIZE
        start = dx + (piece * group // blocks * rows + get_int(block_row + 8 * (piece * group % blocks))) * width
        end = start
        for unit in range(piece * group, last_unit):
            image, b = unit // blocks, unit % blocks
            first, last = get_int(block_row + 8 * b), get_int(block_row + 8 * b + 8)
            need0, need1 = get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)
            wide = source_cols * channels  # elements of an output row
            found = scratch + stage
            for slot in range(need1 - need0):
                r = get_int(need_row + 8 * (need0 + slot))
                max_row(
                    x + image * target_image * SIZE, 0, found + slot * wide * WINNER, source_cols, channels,
                    get_int(win_row_ptr + 8 * r), get_int(win_row_ptr + 8 * r + 8), win_row_src, win_row_tap,
                    win_col_ptr, win_col_src, win_col_tap, empty, above,
                )  # fmt: skip
            target = dx + (image * rows + first) * width
            begin = scratch + (target - start) if stage else target
            for r in range(first, last):
                gather_row(
                    dy + image * source_image * SIZE, found, begin + (r - first) * width, cols, channels,
                    get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_src, row_win, row_tap, col_ptr, col_src, col_tap,
                )  # fmt: skip
            end = target + (last - first) * width
        if stage:
            stream_bytes(start, scratch, end - start)
            fence()

    return {
        "max_forward": max_forward,
        "max_grad": max_grad,
        "max_grad_from_x": max_grad_from_x,
        "avg_forward": avg_forward,
        "avg_grad": avg_grad,
    }
