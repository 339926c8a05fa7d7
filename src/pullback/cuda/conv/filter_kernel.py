"""Filter gradients on tensor cores: products of source cells and dy over a chunk of outputs, whose sums are then added in order.

A border's zeros times an infinite dy are NaN: where a chunk's sums are not finite, they are made again by plain sums.
"""

import triton
import triton.language as tl

from pullback.cuda.conv.gather_kernel import (
    appended,
    base_places,
    load_source,
    loads_in,
    multiplied,
    parts_of,
    plain_source,
    python_number,
    replaced,
    sum_of,
    uses_in,
    weight_of,
)


@triton.jit
def load_outputs(dy, image_place, bd, bh, bw, inside, channels, channel_there, OUT, pitch, ROWS: tl.constexpr, Q: tl.constexpr):
    """dy of row Q of the bases' boxes."""
    h = bh * ROWS + Q
    there = (inside & (h < OUT[1]))[:, None]
    if channel_there is not None:
        there = there & channel_there
    return tl.load(dy + ((image_place + ((bd * OUT[1] + h) * OUT[2] + bw) * pitch)[:, None] + channels), mask=there, other=0.0)


@triton.jit
def add_product(sums, parts, outs, LOADS: tl.constexpr, LOAD: tl.constexpr, USE: tl.constexpr, PRECISION: tl.constexpr):
    TAP: tl.constexpr = weight_of(LOADS, LOAD, USE)
    g = parts_of(outs[sum_of(LOADS, LOAD, USE)], PRECISION)
    return replaced(sums, TAP, multiplied(parts, g, sums[TAP], PRECISION))


@triton.jit
def add_products(sums, value, outs, LOADS: tl.constexpr, LOAD: tl.constexpr, PRECISION: tl.constexpr):
    """The sums of all taps with what load LOAD adds to them."""
    USES: tl.constexpr = uses_in(LOADS, LOAD)
    parts = parts_of(tl.trans(value), PRECISION)
    for use in tl.static_range(USES):
        sums = add_product(sums, parts, outs, LOADS, LOAD, use, PRECISION)
    return sums


@triton.jit
def plain_filter(
    x, dy, partial, first, steps, bases, group_in, channel_out, out_there, BASES, SRC, READ, OUT, PAD, x_pitch,
    dy_pitch, x_image,
    dy_image, channel_x, channel_dy, tap0,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, T: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    KI: tl.constexpr, NO: tl.constexpr, PRECISION: tl.constexpr, BP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sums of a chunk over what is read alone, of every channel of the group that each output channel is of."""
    n = tl.arange(0, NO)
    for t in range(T):
        td = (t + tap0) // (K[1] * K[2])
        th = (t + tap0) // K[2] % K[1]
        tw = (t + tap0) % K[2]
        for k in range(A):
            total = tl.zeros((NO,), tl.float32)
            for step in range(python_number(steps) if PRECISION == "upcast" else steps):
                image, d, bh, w, inside = base_places((first + step) * BP, bases, BASES, BP, WIDE)
                for q in range(ROWS):
                    h = bh * ROWS + q
                    yd, d_there = plain_source(d, td, PAD[0], READ[0], True, S[0], D[0])
                    yh, h_there = plain_source(h, th, PAD[1], READ[1], True, S[1], D[1])
                    yw, w_there = plain_source(w, tw, PAD[2], READ[2], True, S[2], D[2])
                    valid = (inside & (h < OUT[1]) & d_there & h_there & w_there)[:, None] & out_there[None, :]
                    cells = image * x_image + ((yd * SRC[1] + yh) * SRC[2] + yw) * x_pitch
                    outs = image * dy_image + ((d * OUT[1] + h) * OUT[2] + w) * dy_pitch
                    a = tl.load(x + (cells[:, None] + ((group_in + k) * channel_x)[None, :]), mask=valid, other=0.0)
                    g = tl.load(dy + (outs[:, None] + (channel_out * channel_dy)[None, :]), mask=valid, other=0.0)
                    total += tl.sum(tl.where(valid, a.to(tl.float32) * g.to(tl.float32), 0.0), 0)
            tl.store(partial + (t * KI + n // B * A + k) * NO + n, total, mask=out_there)


@triton.jit
def chunk_sums(
    x, dy, partials, bases, chunk_tiles, bundles, BASES, SRC, READ, OUT, PAD, in_channels, out_channels, tap0,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, EXTENT: tl.constexpr, STEP: tl.constexpr, LOADS: tl.constexpr,
    T: tl.constexpr, BUNDLE: tl.constexpr, A: tl.constexpr, B: tl.constexpr, KI: tl.constexpr, NO: tl.constexpr,
    FULL: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr, BP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """[chunk, bundle, tap, input channel, output channel]: the sums of a bundle of groups over a chunk of tiles, for T taps.

    `plan.forward` has the loads: of the rows of a base's outputs (EXTENT), with the taps as the weights.
    """
    bundle = tl.program_id(0) % bundles
    chunk = tl.program_id(0) // bundles
    first = chunk * chunk_tiles
    x_cells = SRC[0] * SRC[1] * SRC[2]
    dy_cells = OUT[0] * OUT[1] * OUT[2]
    if LAST:
        x_pitch, channel_x, dy_pitch, channel_dy = in_channels, 1, out_channels, 1
    else:
        x_pitch, channel_x, dy_pitch, channel_dy = 1, x_cells, 1, dy_cells
    x_image = x_cells * in_channels
    dy_image = dy_cells * out_channels
    k = tl.arange(0, KI)
    n = tl.arange(0, NO)
    if WIDE:
        k = k.to(tl.int64)
        n = n.to(tl.int64)
    channel_in = k + bundle * (BUNDLE * A)
    channel_out = n + bundle * (BUNDLE * B)
    in_there = None
    out_there = None
    if not FULL or BUNDLE * A != KI:
        in_there = ((k < BUNDLE * A) & (channel_in < in_channels))[None, :]
    if not FULL or BUNDLE * B != NO:
        out_there = ((n < BUNDLE * B) & (channel_out < out_channels))[None, :]
    ROWS: tl.constexpr = EXTENT[1]
    COUNT: tl.constexpr = loads_in(LOADS)
    sums = ()
    for _ in tl.static_range(T):
        sums = appended(sums, tl.zeros((KI, NO), tl.float32))
    for step in range(python_number(chunk_tiles) if PRECISION == "upcast" else chunk_tiles):
        image, bd, bh, bw, inside = base_places((first + step) * BP, bases, BASES, BP, WIDE)
        d = bd * STEP[0] - PAD[0]
        h = bh * STEP[1] - PAD[1]
        w = bw * STEP[2] - PAD[2]
        cells = (image * x_image + ((d * SRC[1] + h) * SRC[2] + w) * x_pitch)[:, None]
        places = x + (cells + (channel_in * channel_x)[None, :])
        outs = ()
        for q in tl.static_range(ROWS):
            columns = (channel_out * channel_dy)[None, :]
            g = load_outputs(dy, image * dy_image, bd, bh, bw, inside, columns, out_there, OUT, dy_pitch, ROWS, q)
            outs = appended(outs, g)
        for i in tl.static_range(COUNT):
            value = load_source(places, d, h, w, inside, in_there, SRC, READ, x_pitch, LOADS, i)
            sums = add_products(sums, value, outs, LOADS, i, PRECISION)
    wrong = sums[0] * 0.0  # NaN where a sum is not finite
    for t in tl.static_range(1, T):
        wrong += sums[t] * 0.0
    partial = partials + (chunk.to(tl.int64) * bundles + bundle) * (T * KI * NO)
    if tl.max((wrong != wrong).to(tl.int32)) > 0:
        plain_filter(
            x, dy, partial, first, chunk_tiles, bases, channel_out // B * A, channel_out,
            (n < BUNDLE * B) & (channel_out < out_channels),
            BASES, SRC, READ, OUT, PAD, x_pitch, dy_pitch, x_image, dy_image, channel_x, channel_dy, tap0,
            K, S, D, ROWS, T, A, B, KI, NO, PRECISION, BP, WIDE,
        )  # fmt: skip
    else:
        place = partial + (tl.arange(0, KI)[:, None] * NO + tl.arange(0, NO)[None, :])
        for t in tl.static_range(T):
            tl.store(place + t * (KI * NO), sums[t])


@triton.jit
def add_chunks(
    partials, dw, chunks, total, bundles, groups, tap0, TAPS, T: tl.constexpr, BUNDLE: tl.constexpr, A: tl.constexpr,
    B: tl.constexpr,
    KI: tl.constexpr, NO: tl.constexpr, BC: tl.constexpr, BE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dw, contiguous as (output channel, input channel of the group, tap): the sums of all chunks, in their order."""
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    n = e % (BUNDLE * B)
    k = e // (BUNDLE * B) % A
    t = e // (BUNDLE * B * A) % T
    bundle = e // (BUNDLE * B * A * T)
    channel = bundle * (BUNDLE * B) + n
    there = (e < total) & (channel < groups * B)
    place = ((bundle * T + t) * KI + n // B * A + k) * NO + n
    pitch = bundles * (T * KI * NO)
    sums = tl.zeros((BC, BE), tl.float32)
    for first in range(0, python_number(chunks) if PRECISION == "upcast" else chunks, BC):
        chunk = first + tl.arange(0, BC)
        rows = chunk.to(tl.int64)[:, None] * pitch
        sums += tl.load(partials + (rows + place[None, :]), mask=(chunk < chunks)[:, None] & there[None, :], other=0.0)
    value = tl.sum(sums, 0)
    tl.store(dw + ((channel * A + k) * TAPS + tap0 + t), value.to(dw.dtype.element_ty), mask=there)
