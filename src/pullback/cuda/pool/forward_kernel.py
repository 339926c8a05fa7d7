"""Max and average pooling in patches: every cell that a program loads serves all results of its patch.

A line of cells is first taken together along the width, once for all results of a column; then the lines of each window are.
"""

# ruff: noqa: RUF005 (the language of kernels has no unpacking)

import triton
import triton.language as tl

from pullback.cuda.depthwise.lines_kernel import among, entry, size_of, tap_at
from pullback.cuda.pool.lines_kernel import bases_of_tile, loaded, store_patch
from pullback.cuda.pool.windows_kernel import (
    NO_RESULT,
    WINNERS,
    cell_of_winner,
    first_winner,
    mean_of,
    takes_over,
)


@triton.jit
def winners_of_line(
    xs, first, there, readable, OFFSETS: tl.constexpr, PAIRS: tl.constexpr, TIES_FIRST: tl.constexpr, PROPAGATE: tl.constexpr
):  # fmt: skip
    """(bests, taps along the width) of one line, for each result along the width; taps -1 where no cell may win."""
    bests = ()
    taps = ()
    for rw in tl.static_range(size_of(PAIRS, 2)):
        best = xs[entry(PAIRS, 2, rw, 0, 0)]
        if TIES_FIRST and PROPAGATE:
            winner = tl.zeros(best.shape, tl.int32)
        else:
            valid = there & among(first + entry(OFFSETS, 2, entry(PAIRS, 2, rw, 0, 0)), readable)
            if not PROPAGATE:
                valid = valid & (best == best)
            winner = tl.where(valid, 0, -1)
        for n in tl.static_range(1, size_of(PAIRS, 2, rw)):
            value = xs[entry(PAIRS, 2, rw, n, 0)]
            valid = there & among(first + entry(OFFSETS, 2, entry(PAIRS, 2, rw, n, 0)), readable)
            takes = takes_over(value, valid, best, winner, TIES_FIRST, PROPAGATE)
            best = tl.where(takes, value, best)
            winner = tl.where(takes, n, winner)
        bests = bests + (best,)
        taps = taps + (winner,)
    return bests, taps


@triton.jit
def max_pool(
    x, y, found, rows, columns, vectors, BASES, SIZE, OUT, PAD, READ,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, OFFSETS: tl.constexpr, PAIRS: tl.constexpr, STEP: tl.constexpr,
    CELLS: tl.constexpr, VECTOR: tl.constexpr, STORE: tl.constexpr, LAST: tl.constexpr, TIES_FIRST: tl.constexpr,
    PROPAGATE: tl.constexpr, SOME_EMPTY: tl.constexpr, EMPTY: tl.constexpr, FOUND: tl.constexpr, SUM: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The winner of each window by the rules of `WinnerRule`, and in `found` its tap or the flat index of its cell.

    vectors: of channels, so that VECTOR is known to divide those.
    """
    RH: tl.constexpr = size_of(PAIRS, 1)
    RW: tl.constexpr = size_of(PAIRS, 2)
    channels = vectors
    if LAST:
        channels = vectors * VECTOR
        columns = channels
    image, bd, bh, bw, channel, inside = bases_of_tile(rows, columns, BASES, BR, BC, LAST, WIDE)
    bests = ()
    winners = ()
    for r in tl.static_range(RH * RW):
        bests = bests + (tl.full((BR, BC), float("-inf"), SUM),)
        winner = tl.full((BR, BC), -1, tl.int32)
        if TIES_FIRST and PROPAGATE:
            winner += 1 + first_winner(bd, bh * CELLS[1] + r // RW, bw * CELLS[2] + r % RW, PAD, READ, K, S, D, SOME_EMPTY)
        winners = winners + (winner,)
    for i in tl.static_range(size_of(PAIRS, 0, 0)):
        d = bd * STEP[0] + entry(OFFSETS, 0, entry(PAIRS, 0, 0, i, 0))
        for j in tl.static_range(size_of(OFFSETS, 1)):
            h = bh * STEP[1] + entry(OFFSETS, 1, j)
            there = inside & among(d, READ[0]) & among(h, READ[1])
            xs = loaded(
                x, (image * SIZE[0] + d) * SIZE[1] + h, bw, there, SIZE[2], READ[2], channels, channel,
                OFFSETS, STEP[2], LAST, VECTOR, float("-inf"), SUM,
            )  # fmt: skip
            values, taps = winners_of_line(xs, bw * STEP[2], there, READ[2], OFFSETS, PAIRS, TIES_FIRST, PROPAGATE)
            new_bests = ()
            new_winners = ()
            for r in tl.static_range(RH * RW):
                best = bests[r]
                winner = winners[r]
                if tap_at(PAIRS, r // RW, j) >= 0:
                    value = values[r % RW]
                    tap = taps[r % RW]
                    takes = takes_over(value, tap >= 0, best, winner, TIES_FIRST, PROPAGATE)
                    best = tl.where(takes, value, best)
                    winner = tl.where(takes, tap + (entry(PAIRS, 0, 0, i, 1) * K[1] + tap_at(PAIRS, r // RW, j)) * K[2], winner)
                new_bests = new_bests + (best,)
                new_winners = new_winners + (winner,)
            bests = new_bests
            winners = new_winners
    if SOME_EMPTY or not (TIES_FIRST and PROPAGATE):
        ys = ()
        for r in tl.static_range(RH * RW):
            ys = ys + (tl.where(winners[r] < 0, EMPTY, bests[r]),)
    else:
        ys = bests
    store_patch(y, ys, image, bd, bh, bw, inside, OUT, channels, channel, PAIRS, CELLS, LAST, STORE)
    if FOUND != NO_RESULT:
        if FOUND == WINNERS:
            cells = winners
        else:
            cells = ()
            for r in tl.static_range(RH * RW):
                cell = cell_of_winner(
                    winners[r], image, bd, bh * CELLS[1] + r // RW, bw * CELLS[2] + r % RW, channel, SIZE, PAD, channels,
                    K, S, D, FOUND,
                )  # fmt: skip
                cells = cells + (cell,)
        store_patch(found, cells, image, bd, bh, bw, inside, OUT, channels, channel, PAIRS, CELLS, LAST, STORE)


@triton.jit
def sums_of_line(xs, PAIRS: tl.constexpr):
    """For each result along the width, the sum of its cells of one line."""
    sums = ()
    for rw in tl.static_range(size_of(PAIRS, 2)):
        total = tl.zeros(xs[0].shape, xs[0].dtype)
        for n in tl.static_range(size_of(PAIRS, 2, rw)):
            total += xs[entry(PAIRS, 2, rw, n, 0)]
        sums = sums + (total,)
    return sums


@triton.jit
def avg_pool(
    x, y, rows, columns, vectors, BASES, SIZE, OUT, PAD, READ, HIGH,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, OFFSETS: tl.constexpr, PAIRS: tl.constexpr, STEP: tl.constexpr,
    CELLS: tl.constexpr, VECTOR: tl.constexpr, STORE: tl.constexpr, LAST: tl.constexpr, BY: tl.constexpr,
    NUMBER: tl.constexpr, SOME_EMPTY: tl.constexpr, EMPTY: tl.constexpr, SUM: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The sum of each window by its divisor."""
    RH: tl.constexpr = size_of(PAIRS, 1)
    RW: tl.constexpr = size_of(PAIRS, 2)
    channels = vectors
    if LAST:
        channels = vectors * VECTOR
        columns = channels
    image, bd, bh, bw, channel, inside = bases_of_tile(rows, columns, BASES, BR, BC, LAST, WIDE)
    totals = ()
    for _ in tl.static_range(RH * RW):
        totals = totals + (tl.zeros((BR, BC), SUM),)
    for i in tl.static_range(size_of(PAIRS, 0, 0)):
        d = bd * STEP[0] + entry(OFFSETS, 0, entry(PAIRS, 0, 0, i, 0))
        for j in tl.static_range(size_of(OFFSETS, 1)):
            h = bh * STEP[1] + entry(OFFSETS, 1, j)
            there = inside & among(d, READ[0]) & among(h, READ[1])
            xs = loaded(
                x, (image * SIZE[0] + d) * SIZE[1] + h, bw, there, SIZE[2], READ[2], channels, channel,
                OFFSETS, STEP[2], LAST, VECTOR, 0.0, SUM,
            )  # fmt: skip
            sums = sums_of_line(xs, PAIRS)
            new = ()
            for r in tl.static_range(RH * RW):
                total = totals[r]
                if tap_at(PAIRS, r // RW, j) >= 0:
                    total += sums[r % RW]
                new = new + (total,)
            totals = new
    means = ()
    for r in tl.static_range(RH * RW):
        mean = mean_of(
            totals[r], bd, bh * CELLS[1] + r // RW, bw * CELLS[2] + r % RW, SIZE, PAD, HIGH, READ, K, S, D, BY, NUMBER,
            EMPTY, SOME_EMPTY, SUM,
        )  # fmt: skip
        means = means + (mean,)
    store_patch(y, means, image, bd, bh, bw, inside, OUT, channels, channel, PAIRS, CELLS, LAST, STORE)
