"""Filter gradient of few input channels on tensor cores: (tap, input channel) are the rows of one product over a chunk of outputs.

A border's zeros times an infinite dy are NaN: where a chunk's sums are not finite, they are made again by plain sums.
"""

import triton
import triton.language as tl

from pullback.cuda.conv.gather_kernel import appended, base_places, multiplied, parts_of, plain_source, python_number, replaced


@triton.jit
def row_places(row, K: tl.constexpr, A: tl.constexpr):
    """(tap of the depth, of the height, of the width, input channel) of rows."""
    tap = row // A
    return tap // (K[1] * K[2]), tap // K[2] % K[1], tap % K[2], row % A


@triton.jit
def load_windows(
    x, image_place, d, h, w, inside, SRC, READ, pitch, channel_pitch, FIRST: tl.constexpr, K: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """[outputs, rows]: what rows FIRST ... of the windows that begin at these cells read."""
    row = FIRST + tl.arange(0, ROWS)
    td, th, tw, channel = row_places(row, K, A)
    td, th, tw = td * D[0], th * D[1], tw * D[2]
    there = inside[:, None] & (row < K[0] * K[1] * K[2] * A)[None, :]
    if K[0] > 1:
        yd = d[:, None] + td[None, :]
        there = there & (yd >= 0) & (yd < READ[0])
    else:
        there = there & ((d >= 0) & (d < READ[0]))[:, None]
    yh = h[:, None] + th[None, :]
    yw = w[:, None] + tw[None, :]
    there = there & (yh >= 0) & (yh < READ[1]) & (yw >= 0) & (yw < READ[2])
    cells = image_place + ((d * SRC[1] + h) * SRC[2] + w) * pitch
    places = ((td * SRC[1] + th) * SRC[2] + tw) * pitch + channel * channel_pitch
    return tl.load(x + (cells[:, None] + places[None, :]), mask=there, other=0.0)


@triton.jit
def plain_rows(
    x, dy, partial, first, steps, outs, out, out_there, CELLS, SRC, READ, PAD, x_pitch, dy_pitch, x_image, dy_image,
    channel_x, channel_dy,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, A: tl.constexpr, NO: tl.constexpr, PRECISION: tl.constexpr,
    BP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sums of a chunk over what is read alone."""
    for row in range(K[0] * K[1] * K[2] * A):
        td, th, tw, channel = row_places(row, K, A)
        total = tl.zeros((NO,), tl.float32)
        for step in range(python_number(steps) if PRECISION == "upcast" else steps):
            image, d, h, w, inside = base_places((first + step) * BP, outs, CELLS, BP, WIDE)
            yd, d_there = plain_source(d, td, PAD[0], READ[0], True, S[0], D[0])
            yh, h_there = plain_source(h, th, PAD[1], READ[1], True, S[1], D[1])
            yw, w_there = plain_source(w, tw, PAD[2], READ[2], True, S[2], D[2])
            valid = inside & d_there & h_there & w_there
            place = image * x_image + ((yd * SRC[1] + yh) * SRC[2] + yw) * x_pitch + channel * channel_x
            a = tl.load(x + place, mask=valid, other=0.0).to(tl.float32)[:, None]
            valid = valid[:, None] & out_there[None, :]
            place = image * dy_image + ((d * CELLS[1] + h) * CELLS[2] + w) * dy_pitch
            g = tl.load(dy + (place[:, None] + (out * channel_dy)[None, :]), mask=valid, other=0.0).to(tl.float32)
            total += tl.sum(tl.where(valid, a * g, 0.0), 0)
        tl.store(partial + row * NO + tl.arange(0, NO), total, mask=out_there)


@triton.jit
def window_sums(
    x, dy, partials, outs, chunk_tiles, out_blocks, CELLS, SRC, READ, PAD, out_channels,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, A: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    NO: tl.constexpr,
    FULL: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr, BP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """[chunk, block of output channels, (tap, input channel), output channel]: sums over a chunk of tiles of outputs, in PARTS of
    ROWS rows.
    """
    block = tl.program_id(0) % out_blocks
    chunk = tl.program_id(0) // out_blocks
    first = chunk * chunk_tiles
    x_cells = SRC[0] * SRC[1] * SRC[2]
    dy_cells = CELLS[0] * CELLS[1] * CELLS[2]
    if LAST:
        x_pitch, channel_x, dy_pitch, channel_dy = A, 1, out_channels, 1
    else:
        x_pitch, channel_x, dy_pitch, channel_dy = 1, x_cells, 1, dy_cells
    x_image = x_cells * A
    dy_image = dy_cells * out_channels
    n = tl.arange(0, NO)
    if WIDE:
        n = n.to(tl.int64)
    out = n + block * NO
    sums = ()
    for _ in tl.static_range(PARTS):
        sums = appended(sums, tl.zeros((ROWS, NO), tl.float32))
    for step in range(python_number(chunk_tiles) if PRECISION == "upcast" else chunk_tiles):
        image, od, oh, ow, inside = base_places((first + step) * BP, outs, CELLS, BP, WIDE)
        there = inside[:, None]
        if not FULL:
            there = there & (out < out_channels)[None, :]
        place = image * dy_image + ((od * CELLS[1] + oh) * CELLS[2] + ow) * dy_pitch
        g = tl.load(dy + (place[:, None] + (out * channel_dy)[None, :]), mask=there, other=0.0)
        d = od * S[0] - PAD[0]
        h = oh * S[1] - PAD[1]
        w = ow * S[2] - PAD[2]
        windows = ()
        for i in tl.static_range(PARTS):
            part = load_windows(x, image * x_image, d, h, w, inside, SRC, READ, x_pitch, channel_x, i * ROWS, K, D, A, ROWS)
            windows = appended(windows, part)
        g = parts_of(g, PRECISION)
        for i in tl.static_range(PARTS):
            sums = replaced(sums, i, multiplied(parts_of(tl.trans(windows[i]), PRECISION), g, sums[i], PRECISION))
    wrong = sums[0] * 0.0  # NaN where a sum is not finite
    for i in tl.static_range(1, PARTS):
        wrong += sums[i] * 0.0
    partial = partials + (chunk.to(tl.int64) * out_blocks + block) * (PARTS * ROWS * NO)
    if tl.max((wrong != wrong).to(tl.int32)) > 0:
        plain_rows(
            x, dy, partial, first, chunk_tiles, outs, out, out < out_channels, CELLS, SRC, READ, PAD, x_pitch,
            dy_pitch, x_image,
            dy_image, channel_x, channel_dy, K, S, D, A, NO, PRECISION, BP, WIDE,
        )  # fmt: skip
    else:
        place = partial + (tl.arange(0, ROWS)[:, None] * NO + tl.arange(0, NO)[None, :])
        for i in tl.static_range(PARTS):
            tl.store(place + i * (ROWS * NO), sums[i])


@triton.jit
def add_rows(
    partials, dw, chunks, total, out_blocks, out_channels, TAPS: tl.constexpr, A: tl.constexpr, HIGH: tl.constexpr,
    NO: tl.constexpr,
    BC: tl.constexpr, BE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dw, contiguous as (output channel, input channel, tap): the sums of all chunks, in their order. HIGH: rows of a partial."""
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    n = e % NO
    row = e // NO % (TAPS * A)
    block = e // (NO * TAPS * A)
    channel = block * NO + n
    there = (e < total) & (channel < out_channels)
    place = (block * HIGH + row) * NO + n
    sums = tl.zeros((BC, BE), tl.float32)
    for first in range(0, python_number(chunks) if PRECISION == "upcast" else chunks, BC):
        chunk = first + tl.arange(0, BC)
        rows = chunk.to(tl.int64)[:, None] * (out_blocks * (HIGH * NO))
        sums += tl.load(partials + (rows + place[None, :]), mask=(chunk < chunks)[:, None] & there[None, :], other=0.0)
    value = tl.sum(sums, 0)
    tl.store(dw + ((channel * A + row % A) * TAPS + row // A), value.to(dw.dtype.element_ty), mask=there)
