"""Gradients of pooling without atomics: every input cell adds up the outputs that read it, in a fixed order.

A program makes the cells of all phases of the stride, and of several strides beside each other, so that each dy is loaded once for
all of them.
"""

# ruff: noqa: RUF005 (the language of kernels has no unpacking)

import triton
import triton.language as tl

from pullback.cuda.depthwise.lines_kernel import among, entry, size_of, tap_at
from pullback.cuda.pool.forward_kernel import sums_of_line
from pullback.cuda.pool.lines_kernel import bases_of_tile, loaded, store_patch
from pullback.cuda.pool.windows_kernel import BY_NUMBER, divisor_of


@triton.jit
def plane(
    sums, td: tl.constexpr, dy, winners, image, d, bh, bw, channel, inside, channels, SIZE, OUT, PAD, READ, HIGH,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, OFFSETS: tl.constexpr, PAIRS: tl.constexpr, STEP: tl.constexpr,
    VECTOR: tl.constexpr, LAST: tl.constexpr, MAX: tl.constexpr, BY: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """The sums of results at one depth, with what the outputs of one plane pass on by depth tap `td`."""
    RH: tl.constexpr = size_of(PAIRS, 1)
    RW: tl.constexpr = size_of(PAIRS, 2)
    for j in tl.static_range(size_of(OFFSETS, 1)):
        h = bh * STEP[1] + entry(OFFSETS, 1, j)
        there = inside & among(d, OUT[0]) & among(h, OUT[1])
        line = (image * OUT[0] + d) * OUT[1] + h
        gs = loaded(dy, line, bw, there, OUT[2], OUT[2], channels, channel, OFFSETS, STEP[2], LAST, VECTOR, 0.0, SUM)
        if MAX:
            taps = loaded(
                winners, line, bw, there, OUT[2], OUT[2], channels, channel, OFFSETS, STEP[2], LAST, VECTOR, 0, tl.int32
            )
        else:
            if BY != BY_NUMBER:
                shares = ()
                for i in tl.static_range(size_of(OFFSETS, 2)):
                    w = bw * STEP[2] + entry(OFFSETS, 2, i)
                    shares = shares + (gs[i] * (1.0 / divisor_of(d, h, w, SIZE, PAD, HIGH, READ, K, S, D, BY).to(SUM)),)
                gs = shares
            line_sums = sums_of_line(gs, PAIRS)
        new = ()
        for r in tl.static_range(RH * RW):
            total = sums[r]
            if tap_at(PAIRS, r // RW, j) >= 0:
                if MAX:
                    for n in tl.static_range(size_of(PAIRS, 2, r % RW)):
                        tap = (td * K[1] + tap_at(PAIRS, r // RW, j)) * K[2] + entry(PAIRS, 2, r % RW, n, 1)
                        total += tl.where(taps[entry(PAIRS, 2, r % RW, n, 0)] == tap, gs[entry(PAIRS, 2, r % RW, n, 0)], 0.0)
                else:
                    total += line_sums[r % RW]
            new = new + (total,)
        sums = new
    return sums


@triton.jit
def patches(
    dy, winners, dx, rows, columns, vectors, BASES, SIZE, OUT, PAD, READ, HIGH,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, OFFSETS: tl.constexpr, PAIRS: tl.constexpr, STEP: tl.constexpr,
    CELLS: tl.constexpr, VECTOR: tl.constexpr, STORE: tl.constexpr, LAST: tl.constexpr, MAX: tl.constexpr, BY: tl.constexpr,
    NUMBER: tl.constexpr, CROPS: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx of a patch of cells for each base. NUMBER: what means are divided by in the end. CROPS: some cells may not be read.

    vectors: of channels, so that VECTOR is known to divide those.
    """
    RD: tl.constexpr = size_of(PAIRS, 0)
    RH: tl.constexpr = size_of(PAIRS, 1)
    RW: tl.constexpr = size_of(PAIRS, 2)
    channels = vectors
    if LAST:
        channels = vectors * VECTOR
        columns = channels
    image, bd, bh, bw, channel, inside = bases_of_tile(rows, columns, BASES, BR, BC, LAST, WIDE)
    sums = ()
    for rd in tl.static_range(RD):
        part = ()
        for _ in tl.static_range(RH * RW):
            part = part + (tl.zeros((BR, BC), SUM),)
        for i in tl.static_range(size_of(PAIRS, 0, rd)):
            d = bd * STEP[0] + entry(OFFSETS, 0, entry(PAIRS, 0, rd, i, 0))
            part = plane(
                part, entry(PAIRS, 0, rd, i, 1), dy, winners, image, d, bh, bw, channel, inside, channels,
                SIZE, OUT, PAD, READ, HIGH, K, S, D, OFFSETS, PAIRS, STEP, VECTOR, LAST, MAX, BY, SUM,
            )  # fmt: skip
        for r in tl.static_range(RH * RW):
            total = part[r] * (1.0 / NUMBER)
            if CROPS:
                reads = (
                    (bd * CELLS[0] + rd < READ[0]) & (bh * CELLS[1] + r // RW < READ[1]) & (bw * CELLS[2] + r % RW < READ[2])
                )
                total = tl.where(reads, total, 0.0)
            sums = sums + (total,)
    # Stores come last: before them the compiler may take equal loads for one.
    store_patch(dx, sums, image, bd, bh, bw, inside, SIZE, channels, channel, PAIRS, CELLS, LAST, STORE)
