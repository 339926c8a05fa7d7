"""Pooling of single elements row by row: channels_first (or one channel), the cells of a row split by their stride in registers.

An output row reads the lines that exist (windows_kernel.py); along it, two registers of outputs read every stride-th cell from each
tap on. One load of `stride` times as many serves that many neighbouring taps. Only at the ends of a row are lanes masked.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.pool.exact_kernel import make_exact
from pullback.cpu.pool.records import RowsAvgForward, RowsMaxForward
from pullback.cpu.pool.rules_kernel import MINUS_INFINITY, make_takes
from pullback.cpu.pool.windows_kernel import NO_LINES, axes_of, cells_read, line_at, lines_of
from pullback.cpu.simd.vectors import any_lane, choose, equal, get_int, greater, inline, invert, outline, stay_outline


def build(
    lanes: Any,
    stride: int,
    ties: str = "first",
    nan: str = "propagate",
    floor: bool = False,
    losers: bool = False,
) -> dict[str, Any]:
    """The kernels for one element type, stride of the last axis (1, 2 or 4) and winner rule."""
    unit = lanes.times(2)
    V, SIZE, WIDE, WINNER = unit.count, lanes.size, lanes.compute_size, lanes.winner_size
    NONE = 256**WINNER - 1
    group = unit.times(stride)
    load, load_between, splat_group = group.load, group.load_between, group.splat
    splat, splat_winner, first_lanes = unit.splat, unit.splat_winner, unit.first_lanes
    store, store_some, store_winners, store_winners_some = (
        unit.store,
        unit.store_some,
        unit.store_winners,
        unit.store_winners_some,
    )
    load_wide, put = unit.load_wide, lanes.put
    takes_cell = make_takes(unit, ties, "ignore" if nan == "leading" else nan)
    leading = nan == "leading"
    REACH = V * stride  # elements from one register of outputs to the next
    take0, take1, take2, take3 = (group.takes[min(r, stride - 1)] for r in range(4))

    def make_visit(is_max):
        if is_max:

            @inline
            def visit(cell, tap, best, winner, odd):
                wins = takes_cell(cell, best)
                if leading:
                    odd = odd | invert(equal(cell, cell))
                return choose(wins, cell, best), choose(wins, splat_winner(tap), winner), odd

            return visit

        @inline
        def add(cell, tap, best, winner, odd):
            return best + cell, winner, odd

        return add

    def make_outputs(is_max):
        visit, start = make_visit(is_max), MINUS_INFINITY if is_max else 0.0

        @inline
        def neighbours(cells, taps, tap, best, winner, odd):
            """The first `taps` (at most stride) taps from one load: the lanes of each are stride apart."""
            best, winner, odd = visit(take0(cells), tap, best, winner, odd)
            if stride > 1 and taps > 1:
                best, winner, odd = visit(take1(cells), tap + 1, best, winner, odd)
            if stride > 2 and taps > 2:
                best, winner, odd = visit(take2(cells), tap + 2, best, winner, odd)
            if stride > 3 and taps > 3:
                best, winner, odd = visit(take3(cells), tap + 3, best, winner, odd)
            return best, winner, odd

        @inline
        def outputs(x, at, inside, width, lines, kernel, dilation):
            """A register of neighbouring outputs whose first tap lies at column `at`. inside: no lane need be masked."""
            best, winner, odd = splat(start), splat_winner(NONE), invert(equal(splat(0.0), splat(0.0)))
            step = stride if dilation == 1 else 1
            line_table, line_count = lines
            for e in range(line_count):
                line = line_at(line_table, e)
                row, base = x + line.place * SIZE, line.tap
                for k in range(0, kernel, step):
                    col = at + k * dilation
                    if inside:
                        cells = load(row + col * SIZE, REACH)
                    else:
                        cells = load_between(row + col * SIZE, -col, width - col, splat_group(start))
                    best, winner, odd = neighbours(cells, min(kernel - k, step), base + k, best, winner, odd)
            return best, winner, odd

        return outputs

    best_outputs, sum_outputs = make_outputs(True), make_outputs(False)

    @inline
    def inside_row(x, at, n, width, lines, kernel, dilation, limit):
        """Whether n outputs from column `at` on read only cells of their rows, and a whole register none past the array."""
        reach = at + (kernel - 1) * dilation
        line_table, line_count = lines
        if at < 0 or reach + (n - 1) * stride >= width or line_count == 0:
            return False
        return x + (line_at(line_table, line_count - 1).place + reach + REACH + stride) * SIZE <= limit

    @outline
    def max_row(x, y, winners, lines, col_axis, above, limit):
        """One output row; whether a window of it may have no winner and must be looked at again. y or winners may be 0."""
        stay_outline()
        cols, width, kernel, dilation, first = (
            col_axis.outputs,
            col_axis.cells,
            col_axis.taps,
            col_axis.dilation,
            col_axis.first,
        )
        again = invert(equal(splat(0.0), splat(0.0)))
        for j in range(0, cols, V):
            n, at = min(V, cols - j), first + j * stride
            if inside_row(x, at, n, width, lines, kernel, dilation, limit):
                best, winner, odd = best_outputs(x, at, True, width, lines, kernel, dilation)
            else:
                best, winner, odd = best_outputs(x, at, False, width, lines, kernel, dilation)
            doubtful = invert(greater(best, splat(above))) if floor else equal(best, splat(MINUS_INFINITY))
            again = again | ((doubtful | odd) & first_lanes(n))
            if n == V:
                if y:
                    store(y + j * SIZE, best, V)
                if winners:
                    store_winners(winners + j * WINNER, winner, V)
            else:
                if y:
                    store_some(y + j * SIZE, best, n)
                if winners:
                    store_winners_some(winners + j * WINNER, winner, n)
        return any_lane(again)

    look_again, index_row = make_exact(lanes, ties, nan, floor, losers)

    def max_forward(args: RowsMaxForward, piece, scratch):
        depth_axis, row_axis, col_axis = axes_of(args)
        cols, width = col_axis.outputs, col_axis.cells
        source_image = depth_axis.cells * row_axis.cells * width
        limit = args.x + args.images * source_image * SIZE
        known, lines = NO_LINES, (0, 0)
        image, r = piece * args.block // args.rows, piece * args.block % args.rows
        for row in range(piece * args.block, min(piece * args.block + args.block, args.images * args.rows)):
            own = scratch if args.indices and not args.winners else (args.winners + row * cols * WINNER if args.winners else 0)
            line, known, lines = lines_of(scratch + args.lines_start, known, lines, args, width, r)
            source = args.x + (image * source_image + line * width) * SIZE
            target = args.y + row * cols * SIZE if args.y else 0
            if max_row(source, target, own, lines, col_axis, args.above, limit):
                look_again(args, source, target, own, 1, lines, col_axis)
            if args.indices:
                index_row(args, args.indices + 8 * row * cols, own, 0, cols, 1, image, r)
            r += 1
            if r == args.rows:
                image, r = image + 1, 0

    @outline
    def mean_row(x, y, lines, col_axis, row_divisor, col_div, share, limit):
        """One output row; share: of RowsAvgForward."""
        stay_outline()
        cols, width, kernel, dilation, first = (
            col_axis.outputs,
            col_axis.cells,
            col_axis.taps,
            col_axis.dilation,
            col_axis.first,
        )
        for j in range(0, cols, V):
            n, at = min(V, cols - j), first + j * stride
            if inside_row(x, at, n, width, lines, kernel, dilation, limit):
                total, _, _ = sum_outputs(x, at, True, width, lines, kernel, dilation)
            else:
                total, _, _ = sum_outputs(x, at, False, width, lines, kernel, dilation)
            if share != 0.0:  # products are quicker than quotients
                mean = total * splat(share)
            else:
                mean = total / (splat(row_divisor) * load_wide(col_div + j * WIDE, V))
            if n == V:
                store(y + j * SIZE, mean, V)
            else:
                store_some(y + j * SIZE, mean, n)

    def avg_forward(args: RowsAvgForward, piece, scratch):
        """Divisors of empty windows are 1, their sums 0."""
        depth_axis, row_axis, col_axis = axes_of(args)
        cols, width = col_axis.outputs, col_axis.cells
        source_image = depth_axis.cells * row_axis.cells * width
        limit = args.x + args.images * source_image * SIZE
        known, lines = NO_LINES, (0, 0)
        image, r = piece * args.block // args.rows, piece * args.block % args.rows
        for row in range(piece * args.block, min(piece * args.block + args.block, args.images * args.rows)):
            source, target = args.x + image * source_image * SIZE, args.y + row * cols * SIZE
            line, known, lines = lines_of(scratch + args.lines_start, known, lines, args, width, r)
            row_divisor = float(get_int(args.row_div + 8 * r))
            mean_row(source + line * width * SIZE, target, lines, col_axis, row_divisor, args.col_div, args.share, limit)
            if args.empty != 0.0:
                for col in range(cols):
                    if lines[1] * cells_read(col_axis, 1, col)[1] == 0:
                        put(target + col * SIZE, args.empty)
            r += 1
            if r == args.rows:
                image, r = image + 1, 0

    return {"max_forward": max_forward, "avg_forward": avg_forward}
