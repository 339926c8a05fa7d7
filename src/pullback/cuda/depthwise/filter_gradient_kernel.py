"""The filter gradient of depthwise convolution in two steps of fixed order: sums of chunks of positions, then sums of chunks.

A program has some channels, a block of kernel rows, and a chunk of the bases (patches of outputs, see `plan`). It loads the dy and
the x of a patch once for all taps of its block, and keeps a tile of sums for each tap, added up over its positions in the end.
"""

# ruff: noqa: RUF005 (the language of kernels has no unpacking)

import triton
import triton.language as tl

from pullback.cuda.depthwise.lines_kernel import among, any_nan, cells_of_line, entry, size_of, tap_at


@triton.jit
def chunk_places(at, end, BASES, BP: tl.constexpr, LAST: tl.constexpr):
    """(image, d, h, w, inside) of the bases from `at` on, along the axis of positions."""
    base = at + tl.arange(0, BP)
    if LAST:
        base = base[:, None]
    else:
        base = base[None, :]
    w = (base % BASES[2]).to(tl.int32)
    rest = base // BASES[2]
    h = (rest % BASES[1]).to(tl.int32)
    rest = rest // BASES[1]
    d = (rest % BASES[0]).to(tl.int32)
    return rest // BASES[0], d, h, w, base < end


@triton.jit
def store_sum(part, total, place, channel, channels, kept, LAST: tl.constexpr):
    """Store the sums of one tap over positions."""
    if LAST:
        tl.store(part + place * channels + channel, tl.sum(total, axis=0)[None, :], mask=kept)
    else:
        tl.store(part + place * channels + channel, tl.sum(total, axis=1)[:, None], mask=kept)


@triton.jit
def chunk_sums(
    x, dy, part, bases, chunk, row_blocks, channels, BASES, SIZE, OUT, PAD, READ,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, OFFSETS: tl.constexpr, PAIRS: tl.constexpr,
    STEP: tl.constexpr, CELLS: tl.constexpr, LAST: tl.constexpr, GUARD: tl.constexpr, VECTOR: tl.constexpr,
    DY_OFFSETS: tl.constexpr, DY_VECTOR: tl.constexpr, SUM: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """part[chunk, tap, channel]. chunk: its bases. ROWS: kernel rows of a program, of row_blocks blocks; PAIRS[1]: of output rows
    of a patch, by the tap's row in the block."""
    RH: tl.constexpr = size_of(PAIRS, 1)
    RW: tl.constexpr = size_of(PAIRS, 2)
    LINES: tl.constexpr = size_of(OFFSETS, 1)
    DYS: tl.constexpr = size_of(DY_OFFSETS, 2)
    KW: tl.constexpr = K[2]
    if LAST:
        channels = channels * VECTOR
    pid = tl.program_id(0)
    row_block = pid % row_blocks
    kd = pid // row_blocks % K[0]
    rest = pid // (row_blocks * K[0])
    blocks = (channels + BC - 1) // BC
    number = rest // blocks
    if LAST:
        channel = ((rest % blocks) * BC + tl.arange(0, BC))[None, :]
        spread = tl.broadcast_to(channel, (BP, BC))
        sums_of: tl.constexpr = (BP, BC)
    else:
        channel = ((rest % blocks) * BC + tl.arange(0, BC))[:, None]
        spread = channel
        sums_of: tl.constexpr = (BC, BP)
    first_row = row_block * ROWS
    first = number.to(tl.int64) * chunk if WIDE else number * chunk
    end = tl.minimum(first + chunk, bases)
    sums = ()
    for _ in tl.static_range(ROWS * KW):
        sums = sums + (tl.zeros(sums_of, SUM),)
    for at in range(first, end, BP):
        image, od, bh, bw, inside = chunk_places(at, end, BASES, BP, LAST)
        inside = inside & (channel < channels)
        if not LAST:
            image = image * channels + channel
        dys = ()
        for rh in tl.static_range(RH):
            oh = bh * CELLS[1] + rh
            dys = dys + cells_of_line(
                dy, (image * OUT[0] + od) * OUT[1] + oh, bw, inside & (oh < OUT[1]), OUT[2], OUT[2], channels, spread,
                DY_OFFSETS, CELLS[2], LAST, DY_VECTOR, SUM,
            )  # fmt: skip
        d = od * S[0] - PAD[0] + kd * D[0]
        for j in tl.static_range(LINES):
            h = bh * STEP[1] + first_row * D[1] + entry(OFFSETS, 1, j)
            there = inside & among(d, READ[0]) & among(h, READ[1])
            xs = cells_of_line(
                x, (image * SIZE[0] + d) * SIZE[1] + h, bw, there, SIZE[2], READ[2], channels, spread,
                OFFSETS, STEP[2], LAST, VECTOR, SUM,
            )  # fmt: skip
            for rh in tl.static_range(RH):
                if tap_at(PAIRS, rh, j) >= 0:
                    new = ()
                    for i in tl.static_range(ROWS * KW):
                        if i // KW == tap_at(PAIRS, rh, j):
                            total = sums[i]
                            for rw in tl.static_range(RW):
                                total += xs[entry(PAIRS, 2, rw, i % KW, 0)] * dys[rh * DYS + rw]
                            new = new + (total,)
                        else:
                            new = new + (sums[i],)
                    sums = new
    place = number.to(tl.int64) * (K[0] * K[1] * KW) + (kd * K[1] + first_row) * KW
    again = False
    if GUARD:
        total = sums[0]
        for i in tl.static_range(1, ROWS * KW):
            total += sums[i]
        again = any_nan(total)
    if again:
        for tap in range(ROWS * KW):
            total = tl.zeros(sums_of, SUM)
            for at in range(first, end, BP):
                image, od, bh, bw, inside = chunk_places(at, end, BASES, BP, LAST)
                inside = inside & (channel < channels)
                if not LAST:
                    image = image * channels + channel
                d = od * S[0] - PAD[0] + kd * D[0]
                for r in range(RH * RW):
                    oh = bh * CELLS[1] + r // RW
                    ow = bw * CELLS[2] + r % RW
                    h = oh * S[1] - PAD[1] + (first_row + tap // KW) * D[1]
                    w = ow * S[2] - PAD[2] + (tap % KW) * D[2]
                    there = inside & (oh < OUT[1]) & (ow < OUT[2])
                    there = there & among(d, READ[0]) & among(h, READ[1]) & among(w, READ[2])
                    out = ((image * OUT[0] + od) * OUT[1] + oh) * OUT[2] + ow
                    cell = ((image * SIZE[0] + d) * SIZE[1] + h) * SIZE[2] + w
                    if LAST:
                        out = out * channels + spread
                        cell = cell * channels + spread
                    value = tl.load(x + cell, mask=there, other=0.0).to(SUM) * tl.load(dy + out, mask=there, other=0.0).to(SUM)
                    total = tl.where(there, total + value, total)
            kept = (channel < channels) & (first_row + tap // KW < K[1])
            store_sum(part, total, place + tap, channel, channels, kept, LAST)
    else:
        for tap in tl.static_range(ROWS * KW):
            kept = (channel < channels) & (first_row + tap // KW < K[1])
            store_sum(part, sums[tap], place + tap, channel, channels, kept, LAST)


@triton.jit
def add_chunks(part, df, chunks, columns, channels, TAPS: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """df[channel, tap] from part[chunk, tap, channel]; columns: of all taps and channels."""
    column = (tl.program_id(0) * BC + tl.arange(0, BC))[None, :]
    row = tl.arange(0, BR)[:, None]
    total = tl.zeros((BR, BC), SUM)
    for first in range(0, chunks, BR):
        chunk = first + row
        total += tl.load(part + chunk.to(tl.int64) * columns + column, mask=(chunk < chunks) & (column < columns), other=0.0)
    place = column % channels * TAPS + column // channels
    tl.store(df + place, tl.sum(total, axis=0)[None, :].to(df.dtype.element_ty), mask=column < columns)
