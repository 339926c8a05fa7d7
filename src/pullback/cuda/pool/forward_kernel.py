"""Max and average pooling: every output looks at the cells of its window, tap by tap."""

import triton
import triton.language as tl

from pullback.cuda.places_kernel import first_inside, taps_inside, tile_places

NO_RESULT, WINNERS, INDICES, COLUMN_MAJOR = (tl.constexpr(i) for i in range(4))  # what `found` takes
BY_TAPS, BY_PADDED_TAPS, BY_NUMBER = (tl.constexpr(i) for i in range(3))  # the divisors of means


@triton.jit
def not_at_most(a, b):
    """a > b, or one of them is NaN: one comparison of the GPU's."""
    return (a <= b) == 0


@triton.jit
def max_pool(
    x, y, found, rows, columns, channels, SIZE, OUT, PAD, READ,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, ORDER: tl.constexpr, TIES_FIRST: tl.constexpr, PROPAGATE: tl.constexpr,
    EMPTY: tl.constexpr, FOUND: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The winner of each window by the rules of `WinnerRule`, and in `found` its tap or the flat index of its cell."""
    KD: tl.constexpr = K[0]
    KH: tl.constexpr = K[1]
    KW: tl.constexpr = K[2]
    row, column, image, od, oh, ow, channel, inside = tile_places(rows, columns, OUT, BR, BC, ORDER, WIDE)
    best = tl.full((BR, BC), float("-inf"), SUM)
    winner = tl.full((BR, BC), -1, tl.int32)
    if TIES_FIRST and PROPAGATE:
        # The first tap inside has won until another is more than -inf: so no test is needed for a window that has none yet.
        first = first_inside(od * S[0] - PAD[0], KD, D[0]) * KH + first_inside(oh * S[1] - PAD[1], KH, D[1])
        first = first * KW + first_inside(ow * S[2] - PAD[2], KW, D[2])
        winner = tl.where(read_taps(od, oh, ow, PAD, READ, K, S, D) > 0, first, winner)
    for kd in tl.static_range(KD):
        d = od * S[0] - PAD[0] + kd * D[0]
        for kh in tl.static_range(KH):
            h = oh * S[1] - PAD[1] + kh * D[1]
            line = ((image * SIZE[0] + d) * SIZE[1] + h) * SIZE[2]
            there = inside & (d >= 0) & (d < READ[0]) & (h >= 0) & (h < READ[1])
            for kw in tl.static_range(KW):
                w = ow * S[2] - PAD[2] + kw * D[2]
                valid = there & (w >= 0) & (w < READ[2])
                value = tl.load(x + (line + w) * channels + channel, mask=valid, other=float("-inf")).to(SUM)
                if TIES_FIRST and PROPAGATE:
                    takes = not_at_most(value, best) & (best == best)  # a NaN wins, and keeps what it has won
                else:
                    if TIES_FIRST:
                        takes = value > best
                    else:
                        takes = value >= best
                    takes = takes | (winner < 0)
                    if PROPAGATE:
                        takes = (takes | (value != value)) & (best == best)
                    else:
                        takes = takes & (value == value)
                    takes = takes & valid
                best = tl.where(takes, value, best)
                winner = tl.where(takes, (kd * KH + kh) * KW + kw, winner)
    place = row * columns + column
    tl.store(y + place, tl.where(winner < 0, EMPTY, best).to(y.dtype.element_ty), mask=inside)
    if FOUND == WINNERS:
        tl.store(found + place, winner.to(found.dtype.element_ty), mask=inside)
    elif FOUND != NO_RESULT:
        d = (od * S[0] - PAD[0] + (winner // (KH * KW)) * D[0]).to(tl.int64)
        h = (oh * S[1] - PAD[1] + (winner // KW % KH) * D[1]).to(tl.int64)
        w = (ow * S[2] - PAD[2] + (winner % KW) * D[2]).to(tl.int64)
        cells = (image.to(tl.int64) * SIZE[0]) * SIZE[1] * SIZE[2]
        if FOUND == INDICES:
            cells += (d * SIZE[1] + h) * SIZE[2] + w
        else:
            cells += (w * SIZE[1] + h) * SIZE[0] + d
        tl.store(found + place, tl.where(winner < 0, -1, cells * channels + channel), mask=inside)


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
def avg_pool(
    x, y, rows, columns, channels, SIZE, OUT, PAD, READ, HIGH,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, ORDER: tl.constexpr, BY: tl.constexpr, NUMBER: tl.constexpr,
    EMPTY: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The sum of each window by its divisor."""
    KD: tl.constexpr = K[0]
    KH: tl.constexpr = K[1]
    KW: tl.constexpr = K[2]
    row, column, image, od, oh, ow, channel, inside = tile_places(rows, columns, OUT, BR, BC, ORDER, WIDE)
    total = tl.zeros((BR, BC), SUM)
    for kd in tl.static_range(KD):
        d = od * S[0] - PAD[0] + kd * D[0]
        for kh in tl.static_range(KH):
            h = oh * S[1] - PAD[1] + kh * D[1]
            line = ((image * SIZE[0] + d) * SIZE[1] + h) * SIZE[2]
            there = inside & (d >= 0) & (d < READ[0]) & (h >= 0) & (h < READ[1])
            for kw in tl.static_range(KW):
                w = ow * S[2] - PAD[2] + kw * D[2]
                valid = there & (w >= 0) & (w < READ[2])
                total += tl.load(x + (line + w) * channels + channel, mask=valid, other=0.0).to(SUM)
    if BY == BY_NUMBER:
        mean = total / NUMBER
    else:
        mean = total / divisor_of(od, oh, ow, SIZE, PAD, HIGH, READ, K, S, D, BY).to(SUM)
    mean = tl.where(read_taps(od, oh, ow, PAD, READ, K, S, D) == 0, EMPTY, mean)
    tl.store(y + row * columns + column, mean.to(y.dtype.element_ty), mask=inside)
