"""Max-pool gradients by scatter: each dy is added at its winner, in a block of dx that is zeroed just ahead.

Outputs are taken in ascending order, so every cell sums in the same order whatever the blocks. One comparison tells whether a
place is inside what has been zeroed; the rare others zero more, or lie outside the block: a row shared with the next block, or a
winner from outside the library that is no cell of its window. None of these is ever trusted.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.native import atomic_add, call_piece, copy_bytes, fill_zero, within
from pullback.cpu.kernels.scatter_many import MANY, many_places, many_places_in_rows
from pullback.cpu.kernels.vectors import get_int, get_int32, inline, outline, put_int, stay_outline

AHEAD = 2048  # elements zeroed before they are reached


def make_scatter(lanes: Any, many_places: Any, checks_rows: bool) -> tuple[Any, Any]:
    """(scatter_rows, finish): add rows of dy into a block of wide sums; complete a block and move it to dx.

    checks_rows: whether a tap above or below its plane may meet a cell of another plane.
    """
    SIZE, WIDE, WINNER, V = lanes.size, lanes.compute_size, lanes.winner_size, lanes.count
    get, get_wide, put_wide, get_winner = lanes.get, lanes.get_wide, lanes.put_wide, lanes.get_winner
    load_wide, store, store_some = lanes.load_wide, lanes.store, lanes.store_some

    @outline
    def scatter_rows(
        dy, codes, out, zeroed, size, start, need_row, i0, i1, row_base, cols, channels, col_first, col_step, col_cell, stride,
        taps, tap_at, tap_cell, tap_row, row_cells, in_cols, in_rows, span, firsts, cells, reach, many, code_steps, places,
        code_step,
    ):  # fmt: skip
        """Output rows need_row[i0 .. i1] of one image into a block that starts `start` elements into it.

        row_cells: the row of its plane in which each output row's windows begin.

        tap_at, tap_cell, tap_row: where each tap lies from its window's first cell, as a place, a column and a row; behind the
        taps, numbers that lie in no block. firsts, cells: where the windows of `span` columns begin. reach: how far a row's cells
        may lie from its base. many: places fit 32 bits. code_step: elements from one row of codes to the next, or 0 if `codes` is
        the one row.
        """
        stay_outline()
        steps = (
            taps, in_cols, in_rows, get_int(code_steps), get_int(code_steps + 8), get_int(code_steps + 16),
            get_int(code_steps + 24), get_int(code_steps + 32), get_int(code_steps + 40), get_int(code_steps + 48),
            get_int(code_steps + 56), get_int(code_steps + 64),
        )  # fmt: skip
        batch = max(1, span // cols)  # rows taken together, so that places are read long after they are written
        i = i0
        while i < i1:
            r, count = get_int(need_row + 8 * i), 1
            while count < batch and i + count < i1 and get_int(need_row + 8 * (i + count)) == r + count:
                count += 1
            i += count
            limit = get_int(row_base + 8 * (r + count - 1)) - start + reach
            if zeroed < min(limit, size):  # rows of another plane may lie before the block: then the limit is negative
                upto = min(limit + AHEAD, size)
                fill_zero(out + zeroed * WIDE, (upto - zeroed) * WIDE)
                zeroed = upto
            for col in range(0, cols, span):  # one step, where there are several rows
                at, length = col * channels, min(span, cols - col) * channels
                cell = col_cell + col * stride
                values = dy + (r * cols * channels + at) * SIZE
                for b in range(count):
                    first = get_int(row_base + 8 * (r + b)) - start + col_first + col * col_step
                    winners = codes + ((r + b) * code_step + at) * WINNER
                    row_cell = get_int(row_cells + 8 * (r + b)) if checks_rows else 0
                    if WINNER == 1 and many:
                        target = places + 4 * b * length
                        for j in range(0, length, MANY):
                            where = (
                                target + 4 * j,
                                winners + j,
                                length - j,
                                firsts + 4 * j,
                                first,
                                cells + 4 * j,
                                cell,
                                row_cell,
                            )
                            if row_cells:
                                many_places_in_rows(*where, steps, zeroed)
                            else:
                                many_places(*where, steps, zeroed)
                    else:  # one by one: a place may need more than 32 bits
                        for k in range(length):
                            tap = min(get_winner(winners + k * WINNER), taps)
                            place = first + get_int32(firsts + 4 * k) + get_int(tap_at + 8 * tap)
                            col_inside = within(cell + get_int32(cells + 4 * k) + get_int(tap_cell + 8 * tap), in_cols)
                            row_inside = not checks_rows or within(row_cell + get_int(tap_row + 8 * tap), in_rows)
                            if col_inside and row_inside and within(place, zeroed):
                                spot = out + place * WIDE
                                put_wide(spot, get_wide(spot) + get(values + (b * length + k) * SIZE))
                if WINNER == 1 and many:
                    for k in range(count * length):
                        place = get_int32(places + 4 * k)
                        if place >= 0:
                            spot = out + place * WIDE
                            put_wide(spot, get_wide(spot) + get(values + k * SIZE))
        return zeroed

    @inline
    def finish(target, out, zeroed, size):
        """Zero what no output reached; narrow the block to dx where it was made in scratch."""
        fill_zero(out + zeroed * WIDE, (size - zeroed) * WIDE)
        if SIZE != WIDE:
            j = 0
            while j + V <= size:
                store(target + j * SIZE, load_wide(out + j * WIDE, V), V)
                j += V
            if j < size:
                store_some(target + j * SIZE, load_wide(out + j * WIDE, V), size - j)

    return scatter_rows, finish


def build(lanes: Any) -> dict[str, Any]:
    SIZE, WIDE, WINNER = lanes.size, lanes.compute_size, lanes.winner_size
    get, get_wide, put_wide = lanes.get, lanes.get_wide, lanes.put_wide
    scatter_rows, finish = make_scatter(lanes, many_places, False)
    scatter_rows_of_planes, _ = make_scatter(lanes, many_places_in_rows, True)

    def max_grad(
        piece, scratch, dy, winners, dx, group, units, blocks, rows, cols, channels, source_rows, source_cols,
        block_row, need_ptr, need_row, row_base, col_first, col_step, col_cell, stride,
        taps, tap_at, tap_cell, tap_row, row_cells, plane_rows, span, firsts, cells, reach, many, code_steps, places_start,
    ):  # fmt: skip
        in_row, out_row = cols * channels, source_cols * channels
        for unit in range(piece * group, min(piece * group + group, units)):
            image, b = unit // blocks, unit % blocks
            first, last = get_int(block_row + 8 * b), get_int(block_row + 8 * b + 8)
            target = dx + (image * rows + first) * in_row * SIZE
            out, size, zeroed = target if SIZE == WIDE else scratch, (last - first) * in_row, 0
            at = image * source_rows * out_row
            args = (
                dy + at * SIZE, winners + at * WINNER, out, zeroed, size, first * in_row,
                need_row, get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8), row_base, source_cols, channels,
                col_first, col_step, col_cell, stride, taps, tap_at, tap_cell, tap_row, row_cells, cols, plane_rows, span, firsts,
                cells, reach, many, code_steps, scratch + places_start, out_row,
            )  # fmt: skip
            zeroed = scatter_rows_of_planes(*args) if row_cells else scatter_rows(*args)
            finish(target, out, zeroed, size)

    def max_grad_from_x(
        piece, scratch, dy, x, dx, find, find_block, find_words, x_word, winners_word, find_start, code_start,
        group, units, blocks, rows, cols, channels, source_rows, source_cols, block_row, need_ptr, need_row,
        row_base, col_first, col_step, col_cell, stride, taps, tap_at, tap_cell, span, firsts, cells, reach, many, code_steps,
        places_start,
    ):  # fmt: skip
        """The winners of each output row that a block of input rows needs are found again, then scattered.

        find: a compiled forward kernel whose pieces are single rows; find_block: its arguments, of which each thread has a copy.
        """
        in_row, out_row = cols * channels, source_cols * channels
        codes, arguments = scratch + code_start, scratch + find_start
        copy_bytes(arguments, find_block, 8 * find_words)
        put_int(arguments + 8 * x_word, x)
        for unit in range(piece * group, min(piece * group + group, units)):
            image, b = unit // blocks, unit % blocks
            first, last = get_int(block_row + 8 * b), get_int(block_row + 8 * b + 8)
            target = dx + (image * rows + first) * in_row * SIZE
            out, size, zeroed = target if SIZE == WIDE else scratch, (last - first) * in_row, 0
            for i in range(get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)):
                row = image * source_rows + get_int(need_row + 8 * i)
                put_int(arguments + 8 * winners_word, codes - row * out_row * WINNER)
                call_piece(find, arguments, row, arguments + 8 * find_words)
                zeroed = scatter_rows(
                    dy + image * source_rows * out_row * SIZE, codes, out, zeroed, size, first * in_row, need_row, i, i + 1,
                    row_base, source_cols, channels, col_first, col_step, col_cell, stride,
                    taps, tap_at, tap_cell, 0, 0, cols, 0, span, firsts, cells, reach, many, code_steps, scratch + places_start, 0,
                )  # fmt: skip
            finish(target, out, zeroed, size)

    def max_grad_from_indices(piece, scratch, dy, indices, dx, group, images, source_image, target_image, faults):
        """One image after the other. An index outside its own image is counted in faults, and skipped."""
        for image in range(piece * group, min(piece * group + group, images)):
            low, begin = image * target_image, image * source_image
            target = dx + low * SIZE
            out = target if SIZE == WIDE else scratch
            zeroed = 0
            for i in range(begin, begin + source_image):
                place = get_int(indices + 8 * i) - low
                if not within(place, zeroed):
                    if place + low == -1:
                        continue
                    if not within(place, target_image):
                        atomic_add(faults, 1)
                        continue
                    upto = min(place + AHEAD, target_image)
                    fill_zero(out + zeroed * WIDE, (upto - zeroed) * WIDE)
                    zeroed = upto
                at = out + place * WIDE
                put_wide(at, get_wide(at) + get(dy + i * SIZE))
            finish(target, out, zeroed, target_image)

    return {"max_grad": max_grad, "max_grad_from_x": max_grad_from_x, "max_grad_from_indices": max_grad_from_indices}
