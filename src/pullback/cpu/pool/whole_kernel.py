"""Pooling whose one window is the whole image: global pooling where an image's cells lie side by side (channels_first).

x is (images, cells), y one number per image; tap numbers are cell numbers.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.pool.records import WholeAvgForward, WholeAvgGrad, WholeMaxForward, WholeMaxGrad, WholeMaxGradFromX
from pullback.cpu.pool.rules_kernel import make_takes
from pullback.cpu.simd.native import fill_zero
from pullback.cpu.simd.vectors import choose, equal, greater, inline, invert, put_int


def build(lanes: Any, ties: str = "first", nan: str = "propagate", floor: bool = False, losers: bool = False) -> dict[str, Any]:
    """The kernels for one element type and winner rule. `losers`: whether a window of cells may have no winner."""
    V, SIZE, WIDE, WINNER = lanes.count, lanes.size, lanes.compute_size, lanes.winner_size
    NONE = 256**WINNER - 1
    load, load_some, store, store_some = lanes.load, lanes.load_some, lanes.store, lanes.store_some
    splat, splat_winner, first_lanes, add_lanes = lanes.splat, lanes.splat_winner, lanes.first_lanes, lanes.add_lanes
    get, put, get_winner, put_winner = lanes.get, lanes.put, lanes.get_winner, lanes.put_winner
    get_wide, store_wide, store_winners, lane_numbers = (
        lanes.get_wide,
        lanes.store_wide,
        lanes.store_winners,
        lanes.lane_numbers,
    )
    takes = make_takes(lanes, ties, nan)
    first_wins = ties == "first"

    def make_fold(rotate):
        @inline
        def fold(best, number):
            """Each lane against the one that `rotate` brings to it: the rule for two cells of known numbers, in any order."""
            cell, at = rotate(best), rotate(number)
            earlier = greater(number, at)
            wins = greater(cell, best) | (equal(cell, best) & (earlier if first_wins else greater(at, number)))
            if nan == "propagate":
                is_nan, is_number = invert(equal(cell, cell)), equal(best, best)
                wins = (is_number & wins) | (is_nan & (is_number | earlier))
            elif nan == "ignore":
                wins = wins | (equal(cell, cell) & invert(equal(best, best)))
            return choose(wins, cell, best), choose(wins, at, number)

        return fold

    @inline
    def unfolded(best, number):
        return best, number

    fold1, fold2, fold3, fold4 = (*map(make_fold, lanes.rotations), *[unfolded] * 4)[:4]

    @inline
    def find(x, cells, scratch, above):
        """Value, number and existence of an image's winner."""
        best, block = load_some(x, min(V, cells)), splat_winner(0)
        for j in range(V, cells - V + 1, V):
            cell = load(x + j * SIZE, V)
            wins = takes(cell, best)
            best, block = choose(wins, cell, best), choose(wins, splat_winner(j), block)
        rest = cells % V if cells > V else 0
        if rest:
            j = cells - rest
            cell = load_some(x + j * SIZE, rest)
            wins = takes(cell, best) & first_lanes(rest)
            best, block = choose(wins, cell, best), choose(wins, splat_winner(j), block)
        if cells < V:  # lanes without a cell repeat the first
            there = first_lanes(cells)
            best, number = choose(there, best, splat(get(x))), choose(there, lane_numbers(), splat_winner(0))
        else:
            number = block + lane_numbers()
        best, number = fold1(best, number)
        best, number = fold2(best, number)
        best, number = fold3(best, number)
        best, number = fold4(best, number)
        # Through memory: LLVM 22 gets the comparisons wrong (float64, NaN) when it sees that only one lane is wanted.
        store_wide(scratch, best, V)
        store_winners(scratch + V * WIDE, number, V)
        value, winner = get_wide(scratch), get_winner(scratch + V * WIDE)
        has = True
        if losers and ((floor and not value > above) or (not floor and value != value)):
            has = False
        return value, winner, has

    def max_forward(args: WholeMaxForward, piece, scratch):
        for image in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.images)):
            value, winner, has = find(args.x + image * args.cells * SIZE, args.cells, scratch, args.above)
            if has:
                put(args.y + image * SIZE, value)
            else:
                put(args.y + image * SIZE, args.empty)
            if args.winners:
                put_winner(args.winners + image * WINNER, winner if has else NONE)
            if args.indices:
                put_int(args.indices + 8 * image, image * args.cells + winner if has else -1)

    def max_grad(args: WholeMaxGrad, piece, scratch):
        for image in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.images)):
            target = args.dx + image * args.cells * SIZE
            fill_zero(target, args.cells * SIZE)
            winner = get_winner(args.winners + image * WINNER)
            if winner < args.cells:
                put(target + winner * SIZE, get(args.dy + image * SIZE))

    def max_grad_from_x(args: WholeMaxGradFromX, piece, scratch):
        for image in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.images)):
            _, winner, has = find(args.x + image * args.cells * SIZE, args.cells, scratch, args.above)
            target = args.dx + image * args.cells * SIZE
            fill_zero(target, args.cells * SIZE)
            if has:
                put(target + winner * SIZE, get(args.dy + image * SIZE))

    def avg_forward(args: WholeAvgForward, piece, scratch):
        for image in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.images)):
            source = args.x + image * args.cells * SIZE
            total = splat(0.0)
            j = 0
            while j + V <= args.cells:
                total = total + load(source + j * SIZE, V)
                j += V
            if j < args.cells:
                total = total + load_some(source + j * SIZE, args.cells - j)
            put(args.y + image * SIZE, add_lanes(total) / args.cells)

    def avg_grad(args: WholeAvgGrad, piece, scratch):
        for image in range(piece * args.per_piece, min(piece * args.per_piece + args.per_piece, args.images)):
            value = splat(get(args.dy + image * SIZE) / args.cells)
            target = args.dx + image * args.cells * SIZE
            j = 0
            while j + V <= args.cells:
                store(target + j * SIZE, value, V)
                j += V
            if j < args.cells:
                store_some(target + j * SIZE, value, args.cells - j)

    return {
        "max_forward": max_forward,
        "max_grad": max_grad,
        "max_grad_from_x": max_grad_from_x,
        "avg_forward": avg_forward,
        "avg_grad": avg_grad,
    }
