"""Pooling with vectors along the columns of a row: for channels_first arrays and for few channels.

A source row is first unpacked into scratch: split by the stride into planes, so that every tap reads consecutive places, and
padded, so that no tap leaves its row. A gradient row is computed by stride phase into planes and woven together. Rows are
w * channels elements; `tap_at` and `phase_*` tables place each tap. Windows for which the padding could be mistaken for a
cell (all -inf, or NaN under the "leading" rule) are done again, cell by cell, from the tables of pool_channels.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.native import copy_bytes, fence, stream_bytes
from pullback.cpu.kernels.pool_rules import MINUS_INFINITY, make_takes
from pullback.cpu.kernels.vectors import any_lane, choose, equal, get_int, inline, invert, put_int


def build(lanes: Any, ties: str = "first", nan: str = "propagate", floor: bool = False, losers: bool = False) -> dict[str, Any]:
    """The kernels for one element type and winner rule. `losers`: whether a window of cells may have no winner."""
    V, SIZE, WIDE, WINNER = lanes.count, lanes.size, lanes.compute_size, lanes.winner_size
    NONE = 256**WINNER - 1
    splat, splat_winner, get, put = lanes.splat, lanes.splat_winner, lanes.get, lanes.put
    get_wide, put_wide, get_winner, put_winner = lanes.get_wide, lanes.put_wide, lanes.get_winner, lanes.put_winner
    load_wide, store_wide, load_winners = lanes.load_wide, lanes.store_wide, lanes.load_winners
    store_winners_some = lanes.store_winners_some
    load, load_some, store, store_some = lanes.load, lanes.load_some, lanes.store, lanes.store_some
    weave_low, weave_high, pick_even, _pick_odd = lanes.weave_low, lanes.weave_high, lanes.pick_even, lanes.pick_odd
    takes = make_takes(lanes, ties, "ignore" if nan == "leading" else nan)
    first_wins, leading = ties == "first", nan == "leading"

    @inline
    def fill(target, count, value):
        """count wide elements set to a value; may run up to a vector past the end."""
        for j in range(0, count, V):
            store_wide(target + j * WIDE, splat(value), V)

    @inline
    def unpack(source, target, width, channels, stride, low, places, neutral):
        """Split one row of `width` cells into `stride` planes of `places` cells, the first of which is number `low`.

        Place q of plane r holds cell q * stride + r, or the neutral value where that lies outside the row.
        """
        for r in range(stride):
            plane = target + r * places * channels * WIDE
            begin = min(max(low, 0), low + places)
            end = max(begin, min(low + places, (width - r + stride - 1) // stride))
            fill(plane, (begin - low) * channels, neutral)
            count = (end - begin) * channels
            out, start = plane + (begin - low) * channels * WIDE, source + (begin * stride + r) * channels * SIZE
            j = 0
            if stride == 1:
                while j + V <= count:
                    store_wide(out + j * WIDE, load(start + j * SIZE, V), V)
                    j += V
                if j < count:
                    store_wide(out + j * WIDE, load_some(start + j * SIZE, count - j), V)
            elif stride == 2 and channels == 1:
                while j + V < count:  # strict: the second load must not pass the row's last cell
                    a, b = load(start + 2 * j * SIZE, V), load(start + (2 * j + V) * SIZE, V)
                    store_wide(out + j * WIDE, pick_even(a, b), V)
                    j += V
                while j < count:
                    put_wide(out + j * WIDE, get(start + 2 * j * SIZE))
                    j += 1
            else:
                for q in range(end - begin):
                    for c in range(channels):
                        put_wide(out + (q * channels + c) * WIDE, get(start + (q * stride * channels + c) * SIZE))
            fill(plane + (end - low) * channels * WIDE, (low + places - end) * channels, neutral)

    @inline
    def one_window(x, e0, e1, k0, k1, row_src, row_tap, col_src, col_tap, empty, above):
        """Value and winner of one window, cell by cell: the rule itself."""
        best, winner, has = get(x), NONE, False
        for e in range(e0, e1):
            for k in range(k0, k1):
                cell = get(x + (get_int(row_src + 8 * e) + get_int(col_src + 8 * k)) * SIZE)
                better = cell > best if first_wins else cell >= best
                if not has:
                    wins = True
                elif nan == "propagate":
                    wins = best == best and (better or cell != cell)
                elif nan == "ignore":
                    wins = cell == cell and (better or best != best)
                else:
                    wins = better
                if wins:
                    best, winner, has = cell, get_int(row_tap + 8 * e) + get_int(col_tap + 8 * k), True
        if has and losers and ((floor and not best > above) or (not floor and best != best)):
            winner, has = NONE, False
        return best, winner, has

    @inline
    def max_row(
        x, rows, y, winners, length, channels, row_bytes, taps, tap_at, e0, e1, row_slot,
        row_src, row_tap, col_ptr, col_src, col_tap, empty, above,
    ):  # fmt: skip
        """One output row from unpacked rows; y or winners may be 0 for not wanted."""
        for j in range(0, length, V):
            n = min(V, length - j)
            best, winner = splat(MINUS_INFINITY), splat_winner(0)
            odd = invert(equal(best, best))
            for e in range(e0, e1):
                line, base = rows + get_int(row_slot + 8 * e) * row_bytes + j * WIDE, get_int(row_tap + 8 * e)
                for k in range(taps):
                    cell = load_wide(line + get_int(tap_at + 8 * k) * WIDE, V)
                    wins = takes(cell, best)
                    best = choose(wins, cell, best)
                    winner = choose(wins, splat_winner(base + k), winner)
                    if leading:
                        odd = odd | invert(equal(cell, cell))
            if y:
                store_some(y + j * SIZE, best, n)
            if winners:
                store_winners_some(winners + j * WINNER, winner, n)
            if any_lane(odd | equal(best, splat(MINUS_INFINITY))):
                for i in range(j, j + n):
                    col, c = i // channels, i % channels
                    k0, k1 = get_int(col_ptr + 8 * col), get_int(col_ptr + 8 * col + 8)
                    value, tap, has = one_window(x + c * SIZE, e0, e1, k0, k1, row_src, row_tap, col_src, col_tap, empty, above)
                    if y:
                        if has:
                            put(y + i * SIZE, value)
                        else:
                            put(y + i * SIZE, empty)
                    if winners:
                        put_winner(winners + i * WINNER, tap)

    @inline
    def index_row(indices, winners, length, channels, base, col_base, tap_base):
        """Winners of one row as flat indices into the input, -1 for none."""
        for i in range(length):
            tap = get_winner(winners + i * WINNER)
            first = base + get_int(col_base + 8 * (i // channels)) + i % channels
            put_int(indices + 8 * i, -1 if tap == NONE else first + get_int(tap_base + 8 * tap))

    def max_forward(
        piece, scratch, x, y, winners, indices, group, units, blocks, rows, cols, channels, source_image, stage,
        source_width, stride, low, places, row_bytes, taps, tap_at, block_row, need_ptr, need_row, row_slot, source_row,
        row_ptr, row_src, row_tap, col_ptr, col_src, col_tap, index_image, row_base, col_base, tap_base,
        empty: float, above: float,
    ):  # fmt: skip
        """`rows` of row_bytes each in scratch, after `stage` bytes that hold one row of winners where only indices are wanted."""
        last_unit = min(piece * group + group, units)
        for unit in range(piece * group, last_unit):
            image, b = unit // blocks, unit % blocks
            need0, need1 = get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)
            plane = x + image * source_image * SIZE
            unpacked, length = scratch + stage, cols * channels
            for slot in range(need1 - need0):
                at = get_int(need_row + 8 * (need0 + slot)) * source_row
                unpack(
                    plane + at * SIZE, unpacked + slot * row_bytes, source_width, channels, stride, low, places, MINUS_INFINITY
                )
            for r in range(get_int(block_row + 8 * b), get_int(block_row + 8 * b + 8)):
                row = image * rows + r
                own = winners + row * length * WINNER if winners else (scratch if indices else 0)
                max_row(
                    plane, unpacked, y + row * length * SIZE, own, length, channels, row_bytes, taps, tap_at,
                    get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_slot,
                    row_src, row_tap, col_ptr, col_src, col_tap, empty, above,
                )  # fmt: skip
                if indices:
                    base = image * index_image + get_int(row_base + 8 * r)
                    index_row(indices + 8 * row * length, own, length, channels, base, col_base, tap_base)

    @inline
    def pack(planes, target, width, channels, stride, places):
        """Weave `stride` planes of `places` cells into one row of `width` cells."""
        if stride == 2 and channels == 1:
            other = planes + places * WIDE
            j = 0
            while 2 * j + 2 * V <= width:
                a, b = load_wide(planes + j * WIDE, V), load_wide(other + j * WIDE, V)
                store(target + 2 * j * SIZE, weave_low(a, b), V)
                store(target + (2 * j + V) * SIZE, weave_high(a, b), V)
                j += V
            if 2 * j < width:
                a, b = load_wide(planes + j * WIDE, V), load_wide(other + j * WIDE, V)
                rest = width - 2 * j
                store_some(target + 2 * j * SIZE, weave_low(a, b), min(rest, V))
                if rest > V:
                    store_some(target + (2 * j + V) * SIZE, weave_high(a, b), rest - V)
        else:
            for r in range(stride):
                plane = planes + r * places * channels * WIDE
                for q in range((width - r + stride - 1) // stride):
                    for c in range(channels):
                        put(target + ((q * stride + r) * channels + c) * SIZE, get_wide(plane + (q * channels + c) * WIDE))

    @inline
    def gather_row(
        values, codes, planes, target, width, channels, stride, places, row_bytes, code_bytes,
        phase_ptr, phase_at, phase_tap, e0, e1, row_slot, row_tap,
    ):  # fmt: skip
        """One input row: for each stride phase the dy whose winner is this tap; straight to the target where stride is 1."""
        for r in range(stride):
            count = (width - r + stride - 1) // stride * channels
            k0, k1 = get_int(phase_ptr + 8 * r), get_int(phase_ptr + 8 * r + 8)
            out = planes + r * places * channels * WIDE
            for j in range(0, count, V):
                total = splat(0.0)
                for e in range(e0, e1):
                    slot, base = get_int(row_slot + 8 * e), get_int(row_tap + 8 * e)
                    line, code = values + slot * row_bytes + j * WIDE, codes + slot * code_bytes + j * WINNER
                    for k in range(k0, k1):
                        at = get_int(phase_at + 8 * k)
                        mine = equal(load_winners(code + at * WINNER, V), splat_winner(base + get_int(phase_tap + 8 * k)))
                        total = total + choose(mine, load_wide(line + at * WIDE, V), splat(0.0))
                if stride == 1:
                    store_some(target + j * SIZE, total, min(V, count - j))
                else:
                    store_wide(out + j * WIDE, total, V)
        if stride > 1:
            pack(planes, target, width, channels, stride, places)

    @inline
    def unpack_codes(source, target, count, before):
        """One row of winners behind `before` places; what lies around it is never read as a winner, since its dy is 0."""
        copy_bytes(target + before * WINNER, source, count * WINNER)

    def max_grad(
        piece, scratch, dy, winners, dx, group, units, blocks, rows, cols, channels, source_image, stage,
        source_width, stride, low, places, row_bytes, code_bytes, code_start, plane_start, plane_places,
        phase_ptr, phase_at, phase_tap, block_row, need_ptr, need_row, row_slot, source_row, row_ptr, row_tap,
    ):  # fmt: skip
        last_unit = min(piece * group + group, units)
        width = cols * channels * SIZE
        start = dx + (piece * group // blocks * rows + get_int(block_row + 8 * (piece * group % blocks))) * width
        end = start
        for unit in range(piece * group, last_unit):
            image, b = unit // blocks, unit % blocks
            need0, need1 = get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)
            values, codes = scratch + stage, scratch + code_start
            for slot in range(need1 - need0):
                at = image * source_image + get_int(need_row + 8 * (need0 + slot)) * source_row
                unpack(dy + at * SIZE, values + slot * row_bytes, source_width, channels, 1, low, places, 0.0)
                unpack_codes(winners + at * WINNER, codes + slot * code_bytes, source_width * channels, -low * channels)
            first, last = get_int(block_row + 8 * b), get_int(block_row + 8 * b + 8)
            target = dx + (image * rows + first) * width
            begin = scratch + (target - start) if stage else target
            for r in range(first, last):
                gather_row(
                    values, codes, scratch + plane_start, begin + (r - first) * width, cols, channels, stride, plane_places,
                    row_bytes, code_bytes, phase_ptr, phase_at, phase_tap,
                    get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_slot, row_tap,
                )  # fmt: skip
            end = target + (last - first) * width
        if stage:
            stream_bytes(start, scratch, end - start)
            fence()

    def max_grad_from_x(
        piece, scratch, dy, x, dx, group, units, blocks, rows, cols, channels, source_image, target_image, stage,
        source_width, stride, low, places, row_bytes, code_bytes, code_start, plane_start, plane_places,
        phase_ptr, phase_at, phase_tap, block_row, need_ptr, need_row, row_slot, source_row, row_ptr, row_tap,
        win_low, win_places, win_row_bytes, win_start, win_taps, win_tap_at, win_need_ptr, win_need_row, win_row_slot, win_base,
        win_row_ptr, win_row_src, win_row_tap, win_col_ptr, win_col_src, win_col_tap, target_row,
        empty: float, above: float,
    ):  # fmt: skip
        """As max_grad, with the winners of the needed output rows found again from the input rows those need."""
        last_unit = min(piece * group + group, units)
        width = cols * channels * SIZE
        start = dx + (piece * group // blocks * rows + get_int(block_row + 8 * (piece * group % blocks))) * width
        end = start
        for unit in range(piece * group, last_unit):
            image, b = unit // blocks, unit % blocks
            need0, need1 = get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)
            values, codes, unpacked = scratch + stage, scratch + code_start, scratch + win_start
            plane = x + image * target_image * SIZE
            from0, from1 = get_int(win_need_ptr + 8 * b), get_int(win_need_ptr + 8 * b + 8)
            for slot in range(from1 - from0):
                at = get_int(win_need_row + 8 * (from0 + slot)) * target_row
                unpack(
                    plane + at * SIZE,
                    unpacked + slot * win_row_bytes,
                    cols,
                    channels,
                    stride,
                    win_low,
                    win_places,
                    MINUS_INFINITY,
                )
            for slot in range(need1 - need0):
                r = get_int(need_row + 8 * (need0 + slot))
                at = image * source_image + r * source_row
                unpack(dy + at * SIZE, values + slot * row_bytes, source_width, channels, 1, low, places, 0.0)
                # The slots of an output row's entries are relative to the block, so each block has its own list of them.
                shift = get_int(win_base + 8 * (need0 + slot))
                e0, e1 = get_int(win_row_ptr + 8 * r), get_int(win_row_ptr + 8 * r + 8)
                max_row(
                    plane, unpacked, 0, codes + slot * code_bytes - low * channels * WINNER, source_width * channels, channels,
                    win_row_bytes, win_taps, win_tap_at, e0, e1, win_row_slot + 8 * (shift - e0),
                    win_row_src, win_row_tap, win_col_ptr, win_col_src, win_col_tap, empty, above,
                )  # fmt: skip
            first, last = get_int(block_row + 8 * b), get_int(block_row + 8 * b + 8)
            target = dx + (image * rows + first) * width
            begin = scratch + (target - start) if stage else target
            for r in range(first, last):
                gather_row(
                    values, codes, scratch + plane_start, begin + (r - first) * width, cols, channels, stride, plane_places,
                    row_bytes, code_bytes, phase_ptr, phase_at, phase_tap,
                    get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8), row_slot, row_tap,
                )  # fmt: skip
            end = target + (last - first) * width
        if stage:
            stream_bytes(start, scratch, end - start)
            fence()

    def avg_forward(
        piece, scratch, x, y, group, units, blocks, rows, cols, channels, source_image, stage,
        source_width, stride, low, places, row_bytes, taps, tap_at, block_row, need_ptr, need_row, row_slot, source_row,
        row_ptr, row_div, col_div, col_ptr, empty: float,
    ):  # fmt: skip
        """col_div: one wide divisor per place of a row. Divisors of empty windows are 1, their sums 0."""
        last_unit = min(piece * group + group, units)
        for unit in range(piece * group, last_unit):
            image, b = unit // blocks, unit % blocks
            need0, need1 = get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)
            for slot in range(need1 - need0):
                at = image * source_image + get_int(need_row + 8 * (need0 + slot)) * source_row
                unpack(x + at * SIZE, scratch + slot * row_bytes, source_width, channels, stride, low, places, 0.0)
            length = cols * channels
            for r in range(get_int(block_row + 8 * b), get_int(block_row + 8 * b + 8)):
                target = y + (image * rows + r) * length * SIZE
                divisor = splat(float(get_int(row_div + 8 * r)))
                e0, e1 = get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8)
                for j in range(0, length, V):
                    total = splat(0.0)
                    for e in range(e0, e1):
                        line = scratch + get_int(row_slot + 8 * e) * row_bytes + j * WIDE
                        for k in range(taps):
                            total = total + load_wide(line + get_int(tap_at + 8 * k) * WIDE, V)
                    total = total / (divisor * load_wide(col_div + j * WIDE, V))
                    store_some(target + j * SIZE, total, min(V, length - j))
                if empty != 0.0:
                    for i in range(length):
                        col = i // channels
                        if e0 == e1 or get_int(col_ptr + 8 * col) == get_int(col_ptr + 8 * col + 8):
                            put(target + i * SIZE, empty)

    @inline
    def share(values, count, row_divisor, col_div, before):
        """Divide one unpacked row of dy by its windows' divisors."""
        divisor = splat(row_divisor)
        for j in range(0, count, V):
            at = values + (before + j) * WIDE
            quotient = load_wide(at, V) / (divisor * load_wide(col_div + j * WIDE, V))
            lanes_store_wide_some(at, quotient, min(V, count - j))

    lanes_store_wide_some = lanes.store_wide_some

    def avg_grad(
        piece, scratch, dy, dx, group, units, blocks, rows, cols, channels, source_image, stage,
        source_width, stride, low, places, row_bytes, plane_start, plane_places,
        phase_ptr, phase_at, block_row, need_ptr, need_row, row_slot, source_row, row_ptr, row_div, col_div, uniform,
    ):  # fmt: skip
        """uniform: the divisor that all windows share, or 0; then each row of dy is divided before it is summed."""
        last_unit = min(piece * group + group, units)
        width = cols * channels * SIZE
        start = dx + (piece * group // blocks * rows + get_int(block_row + 8 * (piece * group % blocks))) * width
        end = start
        for unit in range(piece * group, last_unit):
            image, b = unit // blocks, unit % blocks
            need0, need1 = get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)
            values = scratch + stage
            for slot in range(need1 - need0):
                r = get_int(need_row + 8 * (need0 + slot))
                at = image * source_image + r * source_row
                unpack(dy + at * SIZE, values + slot * row_bytes, source_width, channels, 1, low, places, 0.0)
                if not uniform:
                    share(
                        values + slot * row_bytes,
                        source_width * channels,
                        float(get_int(row_div + 8 * r)),
                        col_div,
                        -low * channels,
                    )
            divisor = splat(float(max(uniform, 1)))
            first, last = get_int(block_row + 8 * b), get_int(block_row + 8 * b + 8)
            target = dx + (image * rows + first) * width
            begin = scratch + (target - start) if stage else target
            planes = scratch + plane_start
            for row in range(first, last):
                out = begin + (row - first) * width
                e0, e1 = get_int(row_ptr + 8 * row), get_int(row_ptr + 8 * row + 8)
                for r in range(stride):
                    count = (cols - r + stride - 1) // stride * channels
                    k0, k1 = get_int(phase_ptr + 8 * r), get_int(phase_ptr + 8 * r + 8)
                    for j in range(0, count, V):
                        total = splat(0.0)
                        for e in range(e0, e1):
                            line = values + get_int(row_slot + 8 * e) * row_bytes + j * WIDE
                            for k in range(k0, k1):
                                total = total + load_wide(line + get_int(phase_at + 8 * k) * WIDE, V)
                        total = total / divisor
                        if stride == 1:
                            store_some(out + j * SIZE, total, min(V, count - j))
                        else:
                            store_wide(planes + (r * plane_places * channels + j) * WIDE, total, V)
                if stride > 1:
                    pack(planes, out, cols, channels, stride, plane_places)
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
