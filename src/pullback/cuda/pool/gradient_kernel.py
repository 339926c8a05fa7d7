"""Gradients of pooling without atomics: every input cell adds up the outputs that read it, in a fixed order.

`by_phases`: a tile makes the cells of all phases of the stride, so that each dy is loaded once for all of them. `by_cells`: a tile
of cells, each of which finds the outputs that read it; for large strides.
"""

import triton
import triton.language as tl

from pullback.cuda.places_kernel import LINES, count, interleaved, length, shift_of, tap_of, tile_places
from pullback.cuda.pool.forward_kernel import BY_NUMBER, divisor_of


@triton.jit
def passed_on(
    dy, winners, image, od, oh, ow, channel, channels, tap, inside, SIZE, OUT, PAD, READ, HIGH,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, MAX: tl.constexpr, BY: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """What outputs pass on to the cells that they read by this tap; nothing where there is no such output."""
    there = inside & (od >= 0) & (od < OUT[0]) & (oh >= 0) & (oh < OUT[1]) & (ow >= 0) & (ow < OUT[2])
    place = (((image * OUT[0] + od) * OUT[1] + oh) * OUT[2] + ow) * channels + channel
    g = tl.load(dy + place, mask=there, other=0.0).to(SUM)
    if MAX:
        won = tl.load(winners + place, mask=there, other=0).to(tl.int32) == tap
        g = tl.where(won, g, 0.0)
    elif BY != BY_NUMBER:
        g = g * (1.0 / divisor_of(od, oh, ow, SIZE, PAD, HIGH, READ, K, S, D, BY).to(SUM))
    return g


@triton.jit
def by_phases(
    dy, winners, dx, rows, columns, channels, SIZE, OUT, PAD, READ, HIGH, BASES,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, PHASES: tl.constexpr, ORDER: tl.constexpr, MAX: tl.constexpr,
    BY: tl.constexpr, NUMBER: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx of the cells base * S + phase, for all phases. NUMBER: what means are divided by in the end."""
    PD: tl.constexpr = count(PHASES, 0)
    PH: tl.constexpr = count(PHASES, 1)
    PW: tl.constexpr = count(PHASES, 2)
    row, _, image, bd, bh, bw, channel, inside = tile_places(rows, columns, BASES, BR, BC, ORDER, WIDE)
    sums = ()
    for pd in tl.static_range(PD):
        for ph in tl.static_range(PH):
            for pw in tl.static_range(PW):
                total = tl.zeros((BR, BC), SUM)
                for nd in tl.static_range(length(PHASES, 0, pd)):
                    for nh in tl.static_range(length(PHASES, 1, ph)):
                        for nw in tl.static_range(length(PHASES, 2, pw)):
                            tap = (tap_of(PHASES, 0, pd, nd) * K[1] + tap_of(PHASES, 1, ph, nh)) * K[2] + tap_of(
                                PHASES, 2, pw, nw
                            )
                            total += passed_on(
                                dy, winners, image, bd + shift_of(PHASES, 0, pd, nd), bh + shift_of(PHASES, 1, ph, nh),
                                bw + shift_of(PHASES, 2, pw, nw), channel, channels, tap, inside,
                                SIZE, OUT, PAD, READ, HIGH, K, S, D, MAX, BY, SUM,
                            )  # fmt: skip
                sums = sums + (total * (1.0 / NUMBER),)
    # Stores come last: before them the compiler may take equal loads for one.
    for pd in tl.static_range(PD):
        d = bd * S[0] + pd
        for ph in tl.static_range(PH):
            h = bh * S[1] + ph
            line = ((image * SIZE[0] + d) * SIZE[1] + h) * SIZE[2]
            reads = (d < READ[0]) & (h < READ[1])
            there = inside & (d < SIZE[0]) & (h < SIZE[1])
            if ORDER != LINES or (PW & (PW - 1)) != 0 or S[2] != PW:
                for pw in tl.static_range(PW):
                    w = bw * S[2] + pw
                    value = tl.where(reads & (w < READ[2]), sums[(pd * PH + ph) * PW + pw], 0.0).to(dx.dtype.element_ty)
                    tl.store(dx + (line + w) * channels + channel, value, mask=there & (w < SIZE[2]))
            else:  # whole runs of cells, not every second one
                value = interleaved(sums, (pd * PH + ph) * PW, 1, PW)
                first = tl.program_id(0) % ((columns + BC - 1) // BC) * (BC * PW)
                w = (first + tl.arange(0, BC * PW))[None, :]
                h_there = (row < rows) & (d < SIZE[0]) & (h < SIZE[1])
                value = tl.where(reads & (w < READ[2]), value, 0.0).to(dx.dtype.element_ty)
                tl.store(dx + line + w, value, mask=h_there & (w < SIZE[2]))


@triton.jit
def reader(
    cell, number: tl.constexpr, K: tl.constexpr, G: tl.constexpr, STEP: tl.constexpr, DSTEP: tl.constexpr,
    INVERSE: tl.constexpr,
):  # fmt: skip
    """(output, tap) of one of those that read cells; output -1 where there are fewer. `cell` is counted from the padding on."""
    whole = cell // G
    tap = whole * INVERSE % STEP + number * STEP
    ahead = whole - tap * DSTEP
    return tl.where((cell % G == 0) & (tap < K) & (ahead >= 0), ahead // STEP, -1), tap


@triton.jit
def by_cells(
    dy, winners, dx, rows, columns, channels, SIZE, OUT, PAD, READ, HIGH,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, READERS: tl.constexpr, ORDER: tl.constexpr, MAX: tl.constexpr,
    BY: tl.constexpr, NUMBER: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx of one cell each. READERS: `Axes.readers`."""
    ND: tl.constexpr = READERS[4][0]
    NH: tl.constexpr = READERS[4][1]
    NW: tl.constexpr = READERS[4][2]
    row, column, image, d, h, w, channel, inside = tile_places(rows, columns, SIZE, BR, BC, ORDER, WIDE)
    read = inside & (d < READ[0]) & (h < READ[1]) & (w < READ[2])
    read = read & (d + PAD[0] >= 0) & (h + PAD[1] >= 0) & (w + PAD[2] >= 0)  # a negative pad crops
    total = tl.zeros((BR, BC), SUM)
    for nd in tl.static_range(ND):
        od, td = reader(d + PAD[0], nd, K[0], READERS[0][0], READERS[1][0], READERS[2][0], READERS[3][0])
        for nh in tl.static_range(NH):
            oh, th = reader(h + PAD[1], nh, K[1], READERS[0][1], READERS[1][1], READERS[2][1], READERS[3][1])
            for nw in tl.static_range(NW):
                ow, tw = reader(w + PAD[2], nw, K[2], READERS[0][2], READERS[1][2], READERS[2][2], READERS[3][2])
                total += passed_on(
                    dy, winners, image, od, oh, ow, channel, channels, (td * K[1] + th) * K[2] + tw, read,
                    SIZE, OUT, PAD, READ, HIGH, K, S, D, MAX, BY, SUM,
                )  # fmt: skip
    tl.store(dx + row * columns + column, (total * (1.0 / NUMBER)).to(dx.dtype.element_ty), mask=inside)
