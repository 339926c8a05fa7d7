"""Max-pool gradients by scatter: each dy is added at its winner, in a block of dx that is zeroed just ahead.

Outputs are taken in ascending order, so every cell sums in the same order whatever the blocks. One comparison tells whether a
place is inside what has been zeroed; the rare others zero more, or lie outside the block: a row shared with the next block, or a
winner from outside the library that is no cell of its window. None of these is ever trusted.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.native import atomic_add, call_piece, copy_bytes, fill_zero, within
from pullback.cpu.kernels.vectors import get_int, inline, outline, put_int, stay_outline

AHEAD = 2048  # elements zeroed before they are reached


def make_scatter(lanes: Any) -> tuple[Any, Any]:
    """(scatter_rows, finish): add rows of dy into a block of wide sums; complete a block and move it to dx."""
    SIZE, WIDE, WINNER, V = lanes.size, lanes.compute_size, lanes.winner_size, lanes.count
    get, get_wide, put_wide, get_winner = lanes.get, lanes.get_wide, lanes.put_wide, lanes.get_winner
    load_wide, store, store_some = lanes.load_wide, lanes.store, lanes.store_some
    ANY_CODE = WINNER == 1  # one byte: the table of taps has a place for every code

    @inline
    def add(out, place, value, zeroed, size):
        """Add at a place of the block, zeroing ahead; how far the block is zeroed now."""
        if not within(place, zeroed):
            if not within(place, size):
                return zeroed
            upto = min(place + AHEAD, size)
            fill_zero(out + zeroed * WIDE, (upto - zeroed) * WIDE)
            zeroed = upto
        at = out + place * WIDE
        put_wide(at, get_wide(at) + value)
        return zeroed

    @inline
    def edge(dy, codes, out, col, channels, base, taps, tap_row_at, tap_col, col_cells, kernel_cols, zeroed, size):
        """One window that reaches past the ends of its rows."""
        for c in range(channels):
            tap = get_winner(codes + (col * channels + c) * WINNER)
            if tap < taps:
                cell = get_int(col_cells + 8 * (col * kernel_cols + get_int(tap_col + 8 * tap)))
                if cell >= 0:
                    place = base + get_int(tap_row_at + 8 * tap) + cell * channels + c
                    zeroed = add(out, place, get(dy + (col * channels + c) * SIZE), zeroed, size)
        return zeroed

    @outline
    def scatter_rows(
        dy, codes, out, zeroed, size, start, need_row, i0, i1, row_base, cols, channels, inner0, inner1, col_first, col_step,
        taps, tap_at, tap_row_at, tap_col, col_cells, kernel_cols, code_step,
    ):  # fmt: skip
        """Output rows need_row[i0 .. i1] of one image into a block that starts `start` elements into it.

        Columns inner0 .. inner1 lie inside their rows. tap_at: where each tap lies from its window's first cell; behind the taps,
        numbers that lie in no block. code_step: elements from one row of codes to the next, or 0 if `codes` is the one row.
        """
        stay_outline()
        length = cols * channels
        for i in range(i0, i1):
            r = get_int(need_row + 8 * i)
            base = get_int(row_base + 8 * r) - start
            values, code_row = dy + r * length * SIZE, codes + r * code_step * WINNER
            for col in range(inner0):
                zeroed = edge(
                    values, code_row, out, col, channels, base, taps, tap_row_at, tap_col, col_cells, kernel_cols, zeroed, size
                )
            if channels == 1:
                first = base + col_first
                for col in range(inner0, inner1):
                    tap = get_winner(code_row + col * WINNER)
                    code = tap if ANY_CODE else min(tap, taps)
                    place = first + col * col_step + get_int(tap_at + 8 * code)
                    zeroed = add(out, place, get(values + col * SIZE), zeroed, size)
            else:
                for col in range(inner0, inner1):
                    first, at = base + col_first + col * col_step, col * channels
                    for c in range(channels):
                        tap = get_winner(code_row + (at + c) * WINNER)
                        code = tap if ANY_CODE else min(tap, taps)
                        place = first + c + get_int(tap_at + 8 * code)
                        zeroed = add(out, place, get(values + (at + c) * SIZE), zeroed, size)
            for col in range(inner1, cols):
                zeroed = edge(
                    values, code_row, out, col, channels, base, taps, tap_row_at, tap_col, col_cells, kernel_cols, zeroed, size
                )
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
    scatter_rows, finish = make_scatter(lanes)

    def max_grad(
        piece, scratch, dy, winners, dx, group, units, blocks, rows, cols, channels, source_rows, source_cols,
        block_row, need_ptr, need_row, inner0, inner1, row_base, col_first, col_step,
        taps, tap_at, tap_row_at, tap_col, col_cells, kernel_cols,
    ):  # fmt: skip
        in_row, out_row = cols * channels, source_cols * channels
        for unit in range(piece * group, min(piece * group + group, units)):
            image, b = unit // blocks, unit % blocks
            first, last = get_int(block_row + 8 * b), get_int(block_row + 8 * b + 8)
            target = dx + (image * rows + first) * in_row * SIZE
            out, size, zeroed = target if SIZE == WIDE else scratch, (last - first) * in_row, 0
            at = image * source_rows * out_row
            zeroed = scatter_rows(
                dy + at * SIZE, winners + at * WINNER, out, zeroed, size, first * in_row,
                need_row, get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8), row_base, source_cols, channels,
                inner0, inner1, col_first, col_step, taps, tap_at, tap_row_at, tap_col, col_cells, kernel_cols, out_row,
            )  # fmt: skip
            finish(target, out, zeroed, size)

    def max_grad_from_x(
        piece, scratch, dy, x, dx, find, find_block, find_words, x_word, winners_word, find_start, code_start,
        group, units, blocks, rows, cols, channels, source_rows, source_cols, block_row, need_ptr, need_row,
        inner0, inner1, row_base, col_first, col_step, taps, tap_at, tap_row_at, tap_col, col_cells, kernel_cols,
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
                    row_base, source_cols, channels, inner0, inner1, col_first, col_step,
                    taps, tap_at, tap_row_at, tap_col, col_cells, kernel_cols, 0,
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
