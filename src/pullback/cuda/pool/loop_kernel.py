"""Poolings and their gradients by loops at run time, cell by cell: for windows and strides too large to write their taps out."""

import triton
import triton.language as tl

from pullback.cuda.depthwise.lines_kernel import among
from pullback.cuda.places_kernel import tile_places
from pullback.cuda.pool.windows_kernel import (
    BY_NUMBER,
    NO_RESULT,
    WINNERS,
    cell_of_winner,
    divisor_of,
    first_winner,
    mean_of,
    takes_over,
)


@triton.jit
def cell_of_tap(
    tap, image, od, oh, ow, channel, inside, SIZE, PAD, READ, channels, K: tl.constexpr, S: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """(place, whether there is one) of the cell that windows read by a tap."""
    KH: tl.constexpr = K[1]
    KW: tl.constexpr = K[2]
    d = od * S[0] - PAD[0] + tap // (KH * KW) * D[0]
    h = oh * S[1] - PAD[1] + tap // KW % KH * D[1]
    w = ow * S[2] - PAD[2] + tap % KW * D[2]
    valid = inside & among(d, READ[0]) & among(h, READ[1]) & among(w, READ[2])
    return (((image * SIZE[0] + d) * SIZE[1] + h) * SIZE[2] + w) * channels + channel, valid


@triton.jit
def max_pool(
    x, y, found, rows, columns, channels, SIZE, OUT, PAD, READ,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, ORDER: tl.constexpr, TIES_FIRST: tl.constexpr, PROPAGATE: tl.constexpr,
    SOME_EMPTY: tl.constexpr, EMPTY: tl.constexpr, FOUND: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The winner of each window by the rules of `WinnerRule`, and in `found` its tap or the flat index of its cell."""
    TAPS: tl.constexpr = K[0] * K[1] * K[2]
    row, column, image, od, oh, ow, channel, inside = tile_places(rows, columns, OUT, BR, BC, ORDER, WIDE)
    best = tl.full((BR, BC), float("-inf"), SUM)
    winner = tl.full((BR, BC), -1, tl.int32)
    if TIES_FIRST and PROPAGATE:
        winner += 1 + first_winner(od, oh, ow, PAD, READ, K, S, D, SOME_EMPTY)
    for tap in range(TAPS):
        place, valid = cell_of_tap(tap, image, od, oh, ow, channel, inside, SIZE, PAD, READ, channels, K, S, D)
        value = tl.load(x + place, mask=valid, other=float("-inf")).to(SUM)
        takes = takes_over(value, valid, best, winner, TIES_FIRST, PROPAGATE)
        best = tl.where(takes, value, best)
        winner = tl.where(takes, tap, winner)
    place = row * columns + column
    tl.store(y + place, tl.where(winner < 0, EMPTY, best).to(y.dtype.element_ty), mask=inside)
    if FOUND == WINNERS:
        tl.store(found + place, winner.to(found.dtype.element_ty), mask=inside)
    elif FOUND != NO_RESULT:
        cell = cell_of_winner(winner, image, od, oh, ow, channel, SIZE, PAD, channels, K, S, D, FOUND)
        tl.store(found + place, cell, mask=inside)


@triton.jit
def avg_pool(
    x, y, rows, columns, channels, SIZE, OUT, PAD, READ, HIGH,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, ORDER: tl.constexpr, BY: tl.constexpr, NUMBER: tl.constexpr,
    SOME_EMPTY: tl.constexpr, EMPTY: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The sum of each window by its divisor."""
    TAPS: tl.constexpr = K[0] * K[1] * K[2]
    row, column, image, od, oh, ow, channel, inside = tile_places(rows, columns, OUT, BR, BC, ORDER, WIDE)
    total = tl.zeros((BR, BC), SUM)
    for tap in range(TAPS):
        place, valid = cell_of_tap(tap, image, od, oh, ow, channel, inside, SIZE, PAD, READ, channels, K, S, D)
        total += tl.load(x + place, mask=valid, other=0.0).to(SUM)
    mean = mean_of(total, od, oh, ow, SIZE, PAD, HIGH, READ, K, S, D, BY, NUMBER, EMPTY, SOME_EMPTY, SUM)
    tl.store(y + row * columns + column, mean.to(y.dtype.element_ty), mask=inside)


@triton.jit
def reader(
    cell, number, K: tl.constexpr, G: tl.constexpr, STEP: tl.constexpr, DSTEP: tl.constexpr, INVERSE: tl.constexpr
):  # fmt: skip
    """(output, tap) of one of those that read cells; output -1 where there are fewer. `cell` is counted from the padding on."""
    whole = cell // G
    tap = whole * INVERSE % STEP + number * STEP
    ahead = whole - tap * DSTEP
    return tl.where((cell % G == 0) & (tap < K) & (ahead >= 0), ahead // STEP, -1), tap


@triton.jit
def gradient(
    dy, winners, dx, rows, columns, channels, SIZE, OUT, PAD, READ, HIGH,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, READERS: tl.constexpr, ORDER: tl.constexpr, MAX: tl.constexpr,
    BY: tl.constexpr, NUMBER: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx of one cell each, which finds the outputs that read it. READERS: `Axes.readers`; NUMBER: what means are divided by."""
    ND: tl.constexpr = READERS[4][0]
    NH: tl.constexpr = READERS[4][1]
    NW: tl.constexpr = READERS[4][2]
    row, column, image, d, h, w, channel, inside = tile_places(rows, columns, SIZE, BR, BC, ORDER, WIDE)
    read = inside & (d < READ[0]) & (h < READ[1]) & (w < READ[2])
    read = read & (d + PAD[0] >= 0) & (h + PAD[1] >= 0) & (w + PAD[2] >= 0)  # a negative pad crops
    total = tl.zeros((BR, BC), SUM)
    for i in range(ND * NH * NW):
        n = ND * NH * NW - 1 - i  # outputs ascend
        od, td = reader(d + PAD[0], n // (NH * NW), K[0], READERS[0][0], READERS[1][0], READERS[2][0], READERS[3][0])
        oh, th = reader(h + PAD[1], n // NW % NH, K[1], READERS[0][1], READERS[1][1], READERS[2][1], READERS[3][1])
        ow, tw = reader(w + PAD[2], n % NW, K[2], READERS[0][2], READERS[1][2], READERS[2][2], READERS[3][2])
        there = read & among(od, OUT[0]) & among(oh, OUT[1]) & among(ow, OUT[2])
        place = (((image * OUT[0] + od) * OUT[1] + oh) * OUT[2] + ow) * channels + channel
        g = tl.load(dy + place, mask=there, other=0.0).to(SUM)
        if MAX:
            won = tl.load(winners + place, mask=there, other=0).to(tl.int32) == (td * K[1] + th) * K[2] + tw
            g = tl.where(won, g, 0.0)
        elif BY != BY_NUMBER:
            g = g * (1.0 / divisor_of(od, oh, ow, SIZE, PAD, HIGH, READ, K, S, D, BY).to(SUM))
        total += g
    tl.store(dx + row * columns + column, (total * (1.0 / NUMBER)).to(dx.dtype.element_ty), mask=inside)
