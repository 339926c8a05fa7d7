"""What the poolings compute of one window: whether a cell wins, how many cells count, the places of winners."""

import triton
import triton.language as tl

from pullback.cuda.places_kernel import first_inside, taps_inside

NO_RESULT, WINNERS, INDICES, COLUMN_MAJOR = (tl.constexpr(i) for i in range(4))  # what `found` takes
BY_TAPS, BY_PADDED_TAPS, BY_NUMBER = (tl.constexpr(i) for i in range(3))  # the divisors of means


@triton.jit
def takes_over(value, valid, best, winner, TIES_FIRST: tl.constexpr, PROPAGATE: tl.constexpr):
    """Whether `value`, which comes after `best`, wins, by the rules of `WinnerRule`. winner: -1 where nothing has won so far.

    With ties to the first and NaN propagated neither `valid` nor `winner` is looked at: the first tap inside has won until another
    is more than -inf, which is what cells beside the input are.
    """
    if TIES_FIRST and PROPAGATE:
        # `not (a <= b)` is one comparison of the GPU's: a NaN wins, and keeps what it has won.
        takes = ((value <= best) == 0) & (best == best)
    else:
        if TIES_FIRST:
            takes = value > best
        else:
            takes = value >= best
        takes = takes | (winner < 0)
        if PROPAGATE:
            takes = takes | (value != value)
            takes = takes & ((best == best) | (winner < 0))
        else:
            takes = takes & (value == value)
        takes = takes & valid
    return takes


@triton.jit
def first_winner(od, oh, ow, PAD, READ, K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, SOME_EMPTY: tl.constexpr):
    """The first tap of each window that is inside the input; -1 where there is none."""
    first = first_inside(od * S[0] - PAD[0], K[0], D[0]) * K[1] + first_inside(oh * S[1] - PAD[1], K[1], D[1])
    first = first * K[2] + first_inside(ow * S[2] - PAD[2], K[2], D[2])
    if SOME_EMPTY:
        first = tl.where(read_taps(od, oh, ow, PAD, READ, K, S, D) > 0, first, -1)
    return first


@triton.jit
def cell_of_winner(
    winner, image, od, oh, ow, channel, SIZE, PAD, channels, K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, FOUND: tl.constexpr
):  # fmt: skip
    """The flat index of the cell that a winning tap reads; -1 where nothing has won."""
    KH: tl.constexpr = K[1]
    KW: tl.constexpr = K[2]
    d = (od * S[0] - PAD[0] + (winner // (KH * KW)) * D[0]).to(tl.int64)
    h = (oh * S[1] - PAD[1] + (winner // KW % KH) * D[1]).to(tl.int64)
    w = (ow * S[2] - PAD[2] + (winner % KW) * D[2]).to(tl.int64)
    cells = (image.to(tl.int64) * SIZE[0]) * SIZE[1] * SIZE[2]
    if FOUND == COLUMN_MAJOR:
        cells += (w * SIZE[1] + h) * SIZE[0] + d
    else:
        cells += (d * SIZE[1] + h) * SIZE[2] + w
    return tl.where(winner < 0, -1, cells * channels + channel)


@triton.jit
def padded_taps(od, oh, ow, SIZE, PAD, HIGH, K: tl.constexpr, S: tl.constexpr, D: tl.constexpr):
    """Taps inside input and declared padding of each window. HIGH: the high padding."""
    return (
        taps_inside(od * S[0] - PAD[0], -PAD[0], SIZE[0] + HIGH[0], K[0], D[0])
        * taps_inside(oh * S[1] - PAD[1], -PAD[1], SIZE[1] + HIGH[1], K[1], D[1])
    ) * taps_inside(ow * S[2] - PAD[2], -PAD[2], SIZE[2] + HIGH[2], K[2], D[2])


@triton.jit
def read_taps(od, oh, ow, PAD, READ, K: tl.constexpr, S: tl.constexpr, D: tl.constexpr):
    """Taps of each window that are inside the input."""
    return (
        taps_inside(od * S[0] - PAD[0], 0, READ[0], K[0], D[0]) * taps_inside(oh * S[1] - PAD[1], 0, READ[1], K[1], D[1])
    ) * taps_inside(ow * S[2] - PAD[2], 0, READ[2], K[2], D[2])


@triton.jit
def divisor_of(od, oh, ow, SIZE, PAD, HIGH, READ, K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, BY: tl.constexpr):
    """The cells that count towards each mean; at least 1."""
    if BY == BY_TAPS:
        return tl.maximum(read_taps(od, oh, ow, PAD, READ, K, S, D), 1)
    return tl.maximum(padded_taps(od, oh, ow, SIZE, PAD, HIGH, K, S, D), 1)


@triton.jit
def mean_of(
    total, od, oh, ow, SIZE, PAD, HIGH, READ, K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, BY: tl.constexpr,
    NUMBER: tl.constexpr, EMPTY: tl.constexpr, SOME_EMPTY: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """Sums of windows by their divisors; EMPTY where a window has no cell."""
    if BY == BY_NUMBER:
        mean = total / NUMBER
    else:
        mean = total / divisor_of(od, oh, ow, SIZE, PAD, HIGH, READ, K, S, D, BY).to(SUM)
    if SOME_EMPTY:
        mean = tl.where(read_taps(od, oh, ow, PAD, READ, K, S, D) == 0, EMPTY, mean)
    return mean
