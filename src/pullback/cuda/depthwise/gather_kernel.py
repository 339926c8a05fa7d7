"""Depthwise forward and input gradient: every result gathers its cells, by the tables of `plan`; or tap by tap.

Cells beside the source are loaded as 0, which times a weight that is infinite or NaN is NaN where the tap should be skipped. So a
program that finds a NaN among its sums makes its tile again tap by tap, choosing: rare, and nothing to pay otherwise.
"""

# ruff: noqa: RUF005 (the language of kernels has no unpacking)

import triton
import triton.language as tl

from pullback.cuda.depthwise.lines_kernel import (
    among,
    any_nan,
    cells_of_line,
    entry,
    first_cell,
    first_tap,
    joined,
    next_cell,
    next_tap,
    rows_of_taps,
    size_of,
    slots,
)


@triton.jit
def places(bases, columns, channels, BASES, BR: tl.constexpr, BC: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr):
    """(image, d, h, w, channel, inside) of this program's tile of bases; in channels_first every channel is an image."""
    blocks = (columns + BC - 1) // BC
    pid = tl.program_id(0)
    if LAST:
        first = (pid // blocks) * BR
        column = ((pid % blocks) * BC + tl.arange(0, BC))[None, :]
        if WIDE:
            first = first.to(tl.int64)
        row = (first + tl.arange(0, BR))[:, None]
        inside = (row < bases) & (column < columns)
    else:
        first = pid * BC
        if WIDE:
            first = pid.to(tl.int64) * BC
        row = (first + tl.arange(0, BC))[None, :]
        column = 0
        inside = row < bases
    w = (row % BASES[2]).to(tl.int32)
    rest = row // BASES[2]
    h = (rest % BASES[1]).to(tl.int32)
    rest = rest // BASES[1]
    d = (rest % BASES[0]).to(tl.int32)
    image = rest // BASES[0]
    if LAST:
        channel = tl.broadcast_to(column, (BR, BC))
    else:
        channel = (image % channels).to(tl.int32)
    return image, d, h, w, channel, inside


@triton.jit
def weight(w, tap, channel, channels, inside, TAPS: tl.constexpr, LAST: tl.constexpr, SUM: tl.constexpr):
    """Weights of a tap: [taps, channels] in channels_last, else [channels, taps]."""
    if LAST:
        return tl.load(w + tap * channels + channel, mask=inside, other=0.0).to(SUM)
    return tl.load(w + channel * TAPS + tap, mask=inside, other=0.0).to(SUM)


@triton.jit
def shift_of(bias, channel, inside, BIAS: tl.constexpr, SUM: tl.constexpr, SHAPE: tl.constexpr):
    """What is added to each result of a channel."""
    if BIAS:
        shift = tl.broadcast_to(tl.load(bias + channel, mask=inside, other=0.0).to(SUM), SHAPE)
    else:
        shift = tl.zeros(SHAPE, SUM)
    return shift


@triton.jit
def tap_by_tap(
    src, weights, image, d, h, w, channel, inside, channels, stored, SIZE, OUT, PAD, READ,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, GRADIENT: tl.constexpr, LAST: tl.constexpr, SUM: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """Results at cells (d, h, w), no tap of which is taken where it has no cell; the taps in the order of `gather`."""
    KD: tl.constexpr = K[0]
    KH: tl.constexpr = K[1]
    KW: tl.constexpr = K[2]
    total = tl.zeros(SHAPE, SUM)
    for step in range(KD * KH * KW):
        if GRADIENT:
            tap = KD * KH * KW - 1 - step
        else:
            tap = step
        td = tap // (KH * KW)
        th = tap // KW % KH
        tw = tap % KW
        if GRADIENT:  # the output o with o s - p + t d = cell
            ad = d + PAD[0] - td * D[0]
            ah = h + PAD[1] - th * D[1]
            aw = w + PAD[2] - tw * D[2]
            there = inside & (ad % S[0] == 0) & (ah % S[1] == 0) & (aw % S[2] == 0) & (ad >= 0) & (ah >= 0) & (aw >= 0)
            sd = ad // S[0]
            sh = ah // S[1]
            sw = aw // S[2]
            there = there & (sd < OUT[0]) & (sh < OUT[1]) & (sw < OUT[2]) & (d < READ[0]) & (h < READ[1]) & (w < READ[2])
            place = ((image * OUT[0] + sd) * OUT[1] + sh) * OUT[2] + sw
        else:
            sd = d * S[0] - PAD[0] + td * D[0]
            sh = h * S[1] - PAD[1] + th * D[1]
            sw = w * S[2] - PAD[2] + tw * D[2]
            there = inside & among(sd, READ[0]) & among(sh, READ[1]) & among(sw, READ[2])
            place = ((image * SIZE[0] + sd) * SIZE[1] + sh) * SIZE[2] + sw
        if LAST:
            place = place * stored + channel
        value = tl.load(src + place, mask=there, other=0.0).to(SUM)
        total = tl.where(there, total + value * weight(weights, tap, channel, channels, there, KD * KH * KW, LAST, SUM), total)
    return total


@triton.jit
def plane(
    sums, td, src, weights, image, d, bh, bw, channel, inside, channels, SOURCE, CELLS_READ,
    K: tl.constexpr, OFFSETS: tl.constexpr, PAIRS: tl.constexpr, STEP: tl.constexpr, LAST: tl.constexpr, VECTOR: tl.constexpr,
    SUM: tl.constexpr,
):  # fmt: skip
    """The sums of results at one depth, with what one plane of the source adds by depth tap `td`."""
    LINES: tl.constexpr = size_of(OFFSETS, 1)
    RH: tl.constexpr = size_of(PAIRS, 1)
    RW: tl.constexpr = size_of(PAIRS, 2)
    TAPS: tl.constexpr = K[0] * K[1] * K[2]
    KW: tl.constexpr = K[2]
    ws = ()
    for j in tl.static_range(LINES):
        h = bh * STEP[1] + entry(OFFSETS, 1, j)
        there = inside & among(d, CELLS_READ[0]) & among(h, CELLS_READ[1])
        xs = cells_of_line(
            src, (image * SOURCE[0] + d) * SOURCE[1] + h, bw, there, SOURCE[2], CELLS_READ[2], channels, channel,
            OFFSETS, STEP[2], LAST, VECTOR, SUM,
        )  # fmt: skip
        for i in tl.static_range(size_of(rows_of_taps(PAIRS, j))):
            for tw in tl.static_range(KW):
                tap = (td * K[1] + entry(rows_of_taps(PAIRS, j), i)) * K[2] + tw
                ws = ws + (weight(weights, tap, channel, channels, inside, TAPS, LAST, SUM),)
        new = ()
        for r in tl.static_range(RH * RW):
            total = sums[r]
            for n in tl.static_range(size_of(slots(PAIRS, j, r, K[2]))):
                total += xs[entry(slots(PAIRS, j, r, K[2]), n, 0)] * ws[entry(slots(PAIRS, j, r, K[2]), n, 1)]
            new = new + (total,)
        sums = new
    return sums


@triton.jit
def looped(
    rd: tl.constexpr, rh: tl.constexpr, MANY: tl.constexpr, src, weights, image, bd, bh, bw, channel, inside, channels,
    SOURCE, CELLS_READ, K: tl.constexpr, OFFSETS: tl.constexpr, PAIRS: tl.constexpr, STEP: tl.constexpr, LAST: tl.constexpr,
    VECTOR: tl.constexpr, SUM: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """The sums of MANY lines of results by a loop at run time over their kernel rows: taps and cells go by even steps there, and
    lines from `rh` on take the same taps.
    """
    RW: tl.constexpr = size_of(PAIRS, 2)
    KW: tl.constexpr = K[2]
    TAPS: tl.constexpr = K[0] * K[1] * K[2]
    LINES: tl.constexpr = size_of(PAIRS, 1, rh)
    sums = ()
    for _ in tl.static_range(MANY * RW):
        sums = sums + (tl.zeros(SHAPE, SUM),)
    for i in range(size_of(PAIRS, 0, rd) * LINES):
        d = bd * STEP[0] + first_cell(OFFSETS, PAIRS, 0, rd) + i // LINES * next_cell(OFFSETS, PAIRS, 0, rd)
        td = first_tap(PAIRS, 0, rd) + i // LINES * next_tap(PAIRS, 0, rd)
        th = first_tap(PAIRS, 1, rh) + i % LINES * next_tap(PAIRS, 1, rh)
        ws = ()
        for tw in tl.static_range(KW):
            ws = ws + (weight(weights, (td * K[1] + th) * KW + tw, channel, channels, inside, TAPS, LAST, SUM),)
        new = ()
        for m in tl.static_range(MANY):
            h = bh * STEP[1] + first_cell(OFFSETS, PAIRS, 1, rh + m) + i % LINES * next_cell(OFFSETS, PAIRS, 1, rh)
            there = inside & among(d, CELLS_READ[0]) & among(h, CELLS_READ[1])
            xs = cells_of_line(
                src, (image * SOURCE[0] + d) * SOURCE[1] + h, bw, there, SOURCE[2], CELLS_READ[2], channels, channel,
                OFFSETS, STEP[2], LAST, VECTOR, SUM,
            )  # fmt: skip
            for r in tl.static_range(RW):
                total = sums[m * RW + r]
                for n in tl.static_range(size_of(PAIRS, 2, r)):
                    total += xs[entry(PAIRS, 2, r, n, 0)] * ws[entry(PAIRS, 2, r, n, 1)]
                new = new + (total,)
        sums = new
    return sums


@triton.jit
def gather(
    src, weights, bias, dst, bases, channels, BASES, SIZE, OUT, PAD, READ,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, OFFSETS: tl.constexpr, PAIRS: tl.constexpr, STEP: tl.constexpr,
    CELLS: tl.constexpr, LOOP: tl.constexpr, GRADIENT: tl.constexpr, GUARD: tl.constexpr, LAST: tl.constexpr,
    VECTOR: tl.constexpr, STORE: tl.constexpr, BIAS: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """A patch of results for each base. LOOP: over lines at run time, where there are many taps. GUARD: sums may be NaN
    because of cells beside the source. channels: in groups of VECTOR in channels_last, so that it is known to divide them.
    """
    RD: tl.constexpr = size_of(PAIRS, 0)
    RH: tl.constexpr = size_of(PAIRS, 1)
    RW: tl.constexpr = size_of(PAIRS, 2)
    if LAST:
        channels = channels * VECTOR
    image, bd, bh, bw, channel, inside = places(bases, channels, channels, BASES, BR, BC, LAST, WIDE)
    if GRADIENT:
        source, readable, made, kept = OUT, OUT, SIZE, READ
    else:
        source, readable, made, kept = SIZE, READ, OUT, OUT
    MANY: tl.constexpr = RH if not GRADIENT or S[1] == 1 else 1
    sums = ()
    for rd in tl.static_range(RD):
        if LOOP:
            for rh in tl.static_range(RH // MANY):
                sums = sums + looped(
                    rd, rh * MANY, MANY, src, weights, image, bd, bh, bw, channel, inside, channels, source, readable,
                    K, OFFSETS, PAIRS, STEP, LAST, VECTOR, SUM, (BR, BC),
                )  # fmt: skip
        else:
            part = ()
            for _ in tl.static_range(RH * RW):
                part = part + (tl.zeros((BR, BC), SUM),)
            for i in tl.static_range(size_of(PAIRS, 0, rd)):
                d = bd * STEP[0] + entry(OFFSETS, 0, entry(PAIRS, 0, rd, i, 0))
                part = plane(
                    part, entry(PAIRS, 0, rd, i, 1), src, weights, image, d, bh, bw, channel, inside, channels, source, readable,
                    K, OFFSETS, PAIRS, STEP, LAST, VECTOR, SUM,
                )  # fmt: skip
            sums = sums + part
    again = False
    if GUARD:
        total = sums[0]
        for i in tl.static_range(1, RD * RH * RW):
            total += sums[i]
        again = any_nan(tl.where(inside, total, 0.0))
    shift = shift_of(bias, channel, inside, BIAS, SUM, (BR, BC))
    if again:
        for r in range(RD * RH * RW):
            d = bd * CELLS[0] + r // (RH * RW)
            h = bh * CELLS[1] + r // RW % RH
            w = bw * CELLS[2] + r % RW
            there = inside & (d < made[0]) & (h < made[1]) & (w < made[2])
            total = tap_by_tap(
                src, weights, image, d, h, w, channel, there, channels, channels, SIZE, OUT, PAD, READ,
                K, S, D, GRADIENT, LAST, SUM, (BR, BC),
            ) + shift  # fmt: skip
            place = ((image * made[0] + d) * made[1] + h) * made[2] + w
            if LAST:
                place = place * channels + channel
            tl.store(dst + place, total.to(dst.dtype.element_ty), mask=there)
    else:
        if BIAS:
            shifted = ()
            for i in tl.static_range(RD * RH * RW):
                shifted = shifted + (sums[i] + shift,)
            sums = shifted
        for rd in tl.static_range(RD):
            d = bd * CELLS[0] + rd
            for rh in tl.static_range(RH):
                h = bh * CELLS[1] + rh
                there = inside & (d < made[0]) & (h < made[1])
                reads = (d < kept[0]) & (h < kept[1])
                line = (image * made[0] + d) * made[1] + h
                store_line(
                    dst,
                    sums,
                    (rd * RH + rh) * RW,
                    line,
                    bw,
                    there,
                    reads,
                    made[2],
                    kept[2],
                    channels,
                    channel,
                    RW,
                    CELLS[2],
                    LAST,
                    STORE,
                    GRADIENT,
                )


@triton.jit
def store_line(
    dst, sums, AT: tl.constexpr, line, bw, there, reads, width, kept, channels, channel, RW: tl.constexpr, CELLS: tl.constexpr,
    LAST: tl.constexpr, STORE: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """Store RW results of each base along the width; of cells that no window may read, 0."""
    first = bw * CELLS
    if LAST or STORE == 1:
        for rw in tl.static_range(RW):
            value = sums[AT + rw]
            if GRADIENT:
                value = tl.where(reads & (first + rw < kept), value, 0.0)
            place = line * width + first + rw
            if LAST:
                place = place * channels + channel
            tl.store(dst + place, value.to(dst.dtype.element_ty), mask=there & (first + rw < width))
    else:
        place = (line * (width // STORE) + bw * (CELLS // STORE)) * STORE
        for g in tl.static_range(RW // STORE):
            parts = ()
            for i in tl.static_range(STORE):
                value = sums[AT + g * STORE + i]
                if GRADIENT:
                    value = tl.where(reads & (first + (g * STORE + i) < kept), value, 0.0)
                parts = parts + (value.to(dst.dtype.element_ty),)
            places = tl.expand_dims(place + g * STORE, 2) + tl.arange(0, STORE)[None, None, :]
            mask = tl.expand_dims(there & (first + g * STORE < width), 2)
            tl.store(dst + places, joined(parts, STORE), mask=tl.broadcast_to(mask, places.shape))


@triton.jit
def by_cells(
    src, weights, bias, dst, bases, channels, BASES, SIZE, OUT, PAD, READ,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, GRADIENT: tl.constexpr, LAST: tl.constexpr, BIAS: tl.constexpr,
    SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Every cell by itself, for strides and windows whose patches are too large to write out. BASES: the cells made."""
    image, d, h, w, channel, inside = places(bases, channels, channels, BASES, BR, BC, LAST, WIDE)
    total = tap_by_tap(
        src, weights, image, d, h, w, channel, inside, channels, channels, SIZE, OUT, PAD, READ,
        K, S, D, GRADIENT, LAST, SUM, (BR, BC),
    ) + shift_of(bias, channel, inside, BIAS, SUM, (BR, BC))  # fmt: skip
    place = ((image * BASES[0] + d) * BASES[1] + h) * BASES[2] + w
    if LAST:
        place = place * channels + channel
    tl.store(dst + place, total.to(dst.dtype.element_ty), mask=inside)
