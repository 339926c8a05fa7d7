"""Max-pool gradients by scatter: each dy is added at its winner, in a block of dx that is zeroed just ahead.

Outputs are taken in ascending order, so every cell sums in the same order whatever the blocks. One comparison tells whether a
place is inside what has been zeroed; the rare others zero more, or lie outside the block: a row shared with the next block, or a
winner from outside the library that is no cell of its window. None of these is ever trusted.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.pool.false_winners_kernel import has_false_winner, make_beyond_taps
from pullback.cpu.pool.records import (
    CHAINS,
    MANY,
    CodeSteps,
    MaxForward,
    ScatterMaxGrad,
    ScatterMaxGradFromIndices,
    ScatterMaxGradFromX,
)
from pullback.cpu.pool.scatter_places_kernel import many_places, many_places_in_images, many_places_in_rows
from pullback.cpu.simd.native import atomic_add, call_piece, copy_bytes, fill_zero, within
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.vectors import get_byte, get_int, get_int32, inline, outline, stay_outline

AHEAD = 2048  # elements zeroed before they are reached


code_steps_at, forward_at = records_at(CodeSteps), records_at(MaxForward, changes=True)


@inline
def steps_of(args):
    """What many_places wants to know of the window."""
    code = code_steps_at(args.code_steps, 0)
    return (
        args.taps, args.cols, args.plane_rows, code.by_cols, code.by_rows, code.kernel_cols, code.kernel_rows, code.dilation,
        code.row_dilation, code.code_step, code.row_step, code.plane_step, code.plane_dilation, code.planes,
    )  # fmt: skip


@cache
def make_scatter(lanes: Any, many_places: Any, checks_rows: bool) -> tuple[Any, Any]:
    """(scatter_rows, finish): add rows of dy into a block of wide sums; complete a block and move it to dx.

    checks_rows: whether a tap above or below its plane may meet a cell of another plane.
    """
    SIZE, WIDE, WINNER, V = lanes.size, lanes.compute_size, lanes.winner_size, lanes.count
    get, get_wide, put_wide, get_winner = lanes.get, lanes.get_wide, lanes.put_wide, lanes.get_winner
    load_wide, store, store_some = lanes.load_wide, lanes.store, lanes.store_some

    @inline
    def one_by_one(args, out, zeroed, values, winners, length, first, col, row_cell):
        """Add a row of `length` outputs to their winners: where a place may need more than 32 bits, or a code more than a byte."""
        for k in range(length):
            tap = min(get_winner(winners + k * WINNER), args.taps)
            place = first + get_int32(args.firsts + 4 * k) + get_int(args.tap_at + 8 * tap)
            cell = args.col_cell + col * args.stride + get_int32(args.cells + 4 * k) + get_int(args.tap_cell + 8 * tap)
            row_inside = not checks_rows or within(row_cell + get_int(args.tap_row + 8 * tap), args.plane_rows)
            if within(cell, args.cols) and row_inside and within(place, zeroed):
                spot = out + place * WIDE
                put_wide(spot, get_wide(spot) + get(values + k * SIZE))

    @outline
    def scatter_rows(args, dy, codes, code_pitch, out, zeroed, size, start, i0, i1, places):
        """Output rows need_row[i0 .. i1] of one image into a block of `size` elements that starts `start` elements into it.

        zeroed: elements of the block that are zero or sums so far. code_pitch: elements from one row of codes to the next, or 0 if
        `codes` is the one row. places: scratch for the places of many winners.
        """
        stay_outline()
        steps = steps_of(args)
        cols, channels, span = args.source_cols, args.channels, args.span
        many = WINNER == 1 and args.many
        batch = max(1, span // cols)  # rows taken together, so that places are read long after they are written
        i = i0
        while i < i1:
            r, count = get_int(args.need_row + 8 * i), 1
            while count < batch and i + count < i1 and get_int(args.need_row + 8 * (i + count)) == r + count:
                count += 1
            i += count
            limit = get_int(args.row_base + 8 * (r + count - 1)) - start + args.reach
            if zeroed < min(limit, size):  # rows of another plane may lie before the block: then the limit is negative
                upto = min(limit + AHEAD, size)
                fill_zero(out + zeroed * WIDE, (upto - zeroed) * WIDE)
                zeroed = upto
            for col in range(0, cols, span):  # one step, where there are several rows
                at, length = col * channels, min(span, cols - col) * channels
                values = dy + (r * cols * channels + at) * SIZE
                for b in range(count):
                    first = get_int(args.row_base + 8 * (r + b)) - start + args.col_first + col * args.col_step
                    winners = codes + ((r + b) * code_pitch + at) * WINNER
                    row_cell = get_int(args.row_cells + 8 * (r + b)) if checks_rows else 0
                    if many:
                        target, cell = places + 4 * b * length, args.col_cell + col * args.stride
                        for j in range(0, length, MANY):
                            many_places(
                                target + 4 * j, winners + j, length - j, args.firsts + 4 * j, first, args.cells + 4 * j, cell,
                                row_cell, steps, zeroed,
                            )  # fmt: skip
                    else:
                        one_by_one(args, out, zeroed, values + b * length * SIZE, winners, length, first, col, row_cell)
                if many:
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


@cache
def make_scatter_images(lanes: Any) -> Any:
    """scatter_images: add all outputs of some whole images, which follow each other in `out`."""
    SIZE, WIDE = lanes.size, lanes.compute_size
    get, get_wide, put_wide = lanes.get, lanes.get_wide, lanes.put_wide
    beyond_taps = make_beyond_taps(lanes)

    @inline
    def are_true(args, winners, images, outputs):
        """Whether all winners are taps inside the input."""
        if beyond_taps(winners, images * outputs, args.taps):
            return False
        if args.border_count:
            for image in range(images):
                if has_false_winner(args, winners + image * outputs):
                    return False
        return True

    @inline
    def add(spot, value):
        put_wide(spot, get_wide(spot) + get(value))

    @inline
    def add_winner(args, k, first, values, winners, out):
        """Output k of a run of images, whose windows begin as the table says from `out` on."""
        add(out + (first + get_int32(args.offsets + 4 * get_byte(winners + k))) * WIDE, values + k * SIZE)

    @inline
    def add_place(k, places, values, out):
        place = get_int32(places + 4 * k)
        if place >= 0:
            add(out + place * WIDE, values + k * SIZE)

    @outline
    def scatter_images(args, values, winners, out, images, outputs, size, places):
        """outputs, size: elements of dy and of dx of one image. CHAINS runs of images in turn: additions to one cell wait for each
        other, and neighbouring windows often have the same winner.
        """
        stay_outline()
        fill_zero(out, images * size * WIDE)
        firsts, each = args.firsts, images // CHAINS
        length = each * outputs
        if args.quick and are_true(args, winners, images, outputs):
            out1, out2, out3 = out + each * size * WIDE, out + 2 * each * size * WIDE, out + 3 * each * size * WIDE
            values1, values2, values3 = values + length * SIZE, values + 2 * length * SIZE, values + 3 * length * SIZE
            winners1, winners2, winners3 = winners + length, winners + 2 * length, winners + 3 * length
            for k in range(length):
                first = get_int32(firsts + 4 * k)
                add_winner(args, k, first, values, winners, out)
                add_winner(args, k, first, values1, winners1, out1)
                add_winner(args, k, first, values2, winners2, out2)
                add_winner(args, k, first, values3, winners3, out3)
            for image in range(CHAINS * each, images):
                at = image * outputs
                for k in range(outputs):
                    first = get_int32(firsts + 4 * k)
                    add_winner(args, k, first, values + at * SIZE, winners + at, out + image * size * WIDE)
            return
        steps, run = steps_of(args), max(1, each)
        for image in range(0, images, run):
            at, count = image * outputs, min(run, images - image) * outputs
            for j in range(0, count, MANY):
                many_places_in_images(
                    places + 4 * (at + j), winners + at + j, count - j, firsts + 4 * j, image * size, args.cells + 4 * j, 0,
                    args.table_bytes, steps, images * size,
                )  # fmt: skip
        for k in range(length):
            add_place(k, places, values, out)
            add_place(k + length, places, values, out)
            add_place(k + 2 * length, places, values, out)
            add_place(k + 3 * length, places, values, out)
        for k in range(CHAINS * length, images * outputs):
            add_place(k, places, values, out)

    return scatter_images


def build(lanes: Any) -> dict[str, Any]:
    SIZE, WIDE, WINNER = lanes.size, lanes.compute_size, lanes.winner_size
    get, get_wide, put_wide = lanes.get, lanes.get_wide, lanes.put_wide
    scatter_rows, finish = make_scatter(lanes, many_places, False)
    scatter_rows_of_planes, _ = make_scatter(lanes, many_places_in_rows, True)

    scatter_images = make_scatter_images(lanes) if WINNER == 1 else None

    @inline
    def whole_images(args, first, last, scratch):
        """Images first .. last-1, some of them together."""
        size, outputs = args.rows * args.cols * args.channels, args.source_rows * args.source_cols * args.channels
        for image in range(first, last, args.together):
            count = min(args.together, last - image)
            target = args.dx + image * size * SIZE
            out, at = target if SIZE == WIDE else scratch, image * outputs
            values, winners = args.dy + at * SIZE, args.winners + at * WINNER
            scatter_images(args, values, winners, out, count, outputs, size, scratch + args.places_start)
            finish(target, out, count * size, count * size)

    def max_grad(args: ScatterMaxGrad, piece, scratch):
        in_row, out_row = args.cols * args.channels, args.source_cols * args.channels
        places = scratch + args.places_start
        if WINNER == 1 and args.together:
            whole_images(args, piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units), scratch)
            return
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            image, b = unit // args.blocks, unit % args.blocks
            first, last = get_int(args.block_row + 8 * b), get_int(args.block_row + 8 * b + 8)
            target = args.dx + (image * args.rows + first) * in_row * SIZE
            out, size, at = target if SIZE == WIDE else scratch, (last - first) * in_row, image * args.source_rows * out_row
            dy, winners = args.dy + at * SIZE, args.winners + at * WINNER
            i0, i1 = get_int(args.need_ptr + 8 * b), get_int(args.need_ptr + 8 * b + 8)
            if args.row_cells:
                zeroed = scatter_rows_of_planes(args, dy, winners, out_row, out, 0, size, first * in_row, i0, i1, places)
            else:
                zeroed = scatter_rows(args, dy, winners, out_row, out, 0, size, first * in_row, i0, i1, places)
            finish(target, out, zeroed, size)

    def max_grad_from_x(args: ScatterMaxGradFromX, piece, scratch):
        """The winners of each output row that a block of input rows needs are found again, then scattered."""
        in_row, out_row = args.cols * args.channels, args.source_cols * args.channels
        codes, arguments, places = scratch + args.code_start, scratch + args.find_start, scratch + args.places_start
        copy_bytes(arguments, args.find_block, 8 * args.find_words)
        find = forward_at(arguments, 0)
        find.x = args.x
        for unit in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.units)):
            image, b = unit // args.blocks, unit % args.blocks
            first, last = get_int(args.block_row + 8 * b), get_int(args.block_row + 8 * b + 8)
            target = args.dx + (image * args.rows + first) * in_row * SIZE
            out, size, zeroed = target if SIZE == WIDE else scratch, (last - first) * in_row, 0
            dy = args.dy + image * args.source_rows * out_row * SIZE
            for i in range(get_int(args.need_ptr + 8 * b), get_int(args.need_ptr + 8 * b + 8)):
                row = image * args.source_rows + get_int(args.need_row + 8 * i)
                find.winners = codes - row * out_row * WINNER
                call_piece(args.find, arguments, row, arguments + 8 * args.find_words)
                zeroed = scatter_rows(args, dy, codes, 0, out, zeroed, size, first * in_row, i, i + 1, places)
            finish(target, out, zeroed, size)

    def max_grad_from_indices(args: ScatterMaxGradFromIndices, piece, scratch):
        """An index outside its own image is counted in faults, and skipped."""
        dy, indices, count = args.dy, args.indices, args.target_image  # read here: no load is taken out of a condition
        for image in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.images)):
            low, begin = image * count, image * args.source_image
            target = args.dx + low * SIZE
            out = target if SIZE == WIDE else scratch
            zeroed = 0
            for i in range(begin, begin + args.source_image):
                place = get_int(indices + 8 * i) - low
                if not within(place, zeroed):
                    if place + low == -1:
                        continue
                    if not within(place, count):
                        atomic_add(args.faults, 1)
                        continue
                    upto = min(place + AHEAD, count)
                    fill_zero(out + zeroed * WIDE, (upto - zeroed) * WIDE)
                    zeroed = upto
                at = out + place * WIDE
                put_wide(at, get_wide(at) + get(dy + i * SIZE))
            finish(target, out, zeroed, count)

    return {"max_grad": max_grad, "max_grad_from_x": max_grad_from_x, "max_grad_from_indices": max_grad_from_indices}
