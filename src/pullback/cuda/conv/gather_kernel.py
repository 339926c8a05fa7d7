"""Forward convolution and input gradient on tensor cores: per source cell and tap one small matrix product over its channels.

Sums, sources and results of a tile are [bases, channels]. (Where neither lie side by side for all the compiler knows, it has the
lanes of a warp along the first, as channels_first needs it.) `plan.Gather` says which source cells a base loads and which of its
sums they add to.

In a product with zeros (beside the input, outside a group) an infinity becomes a NaN that does not belong there. So where a sum of
a tile is not finite, the tile is made again by plain sums that skip what is not read.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def loads_in(loads):
    return len(loads)


@triton.constexpr_function
def offset_of(loads, i, axis):
    return loads[i][0][axis]


@triton.constexpr_function
def uses_in(loads, i):
    return len(loads[i][1])


@triton.constexpr_function
def sum_of(loads, i, use):
    return loads[i][1][use][0]


@triton.constexpr_function
def weight_of(loads, i, use):
    return loads[i][1][use][1]


@triton.constexpr_function
def cells_of(extent):
    return extent[0] * extent[1] * extent[2]


@triton.constexpr_function
def python_number(n):
    """A number as Python's: Triton's interpreter has it in an array, of which `range` knows nothing."""
    return int(n.handle.data.item()) if hasattr(n, "handle") else n


@triton.jit
def parts_of(v, PRECISION: tl.constexpr):
    """What is multiplied of a factor: "tf32x3" has it as the sum of two numbers of TF32's 11 bits. "upcast" is for Triton's
    interpreter, which does not know bfloat16.
    """
    if PRECISION == "tf32x3":
        high = ((v.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        parts = (high, v - high)
    elif PRECISION == "upcast":
        parts = (v.to(tl.float32),)
    else:
        parts = (v,)
    return parts


@triton.jit
def multiplied(a, b, total, PRECISION: tl.constexpr):
    """total + a b, of their parts."""
    if PRECISION == "tf32x3":
        total = tl.dot(a[1], b[0], total, input_precision="tf32")
        total = tl.dot(a[0], b[1], total, input_precision="tf32")
        total = tl.dot(a[0], b[0], total, input_precision="tf32")
    else:
        total = tl.dot(a[0], b[0], total, input_precision="ieee")
    return total


@triton.jit
def pack_groups(
    weight, packed, total, groups, W_TAP, W_IN, W_OUT,
    T: tl.constexpr, BUNDLE: tl.constexpr, A: tl.constexpr, B: tl.constexpr, KI: tl.constexpr, NO: tl.constexpr,
    FORWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weights of a bundle of groups as one block-diagonal matrix a tap: [bundle, tap, source channel, result channel]."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = e % NO
    k = e // NO % KI
    t = e // (KI * NO) % T
    group = e // (KI * NO * T) * BUNDLE + k // A
    there = (e < total) & (k // A == n // B) & (k // A < BUNDLE) & (group < groups)
    if FORWARD:
        place = (k % A) * W_IN + (group * B + n % B) * W_OUT
    else:
        place = (n % B) * W_IN + (group * A + k % A) * W_OUT
    tl.store(packed + e, tl.load(weight + (place + t * W_TAP), mask=there, other=0.0), mask=e < total)


@triton.jit
def axis_tap(cell, number, low, pad, K: tl.constexpr, S: tl.constexpr, D: tl.constexpr):
    """(tap, there) by which a cell of an inner box is read from its source of this number."""
    ahead = cell + pad - (number + low) * S
    return ahead // D, (ahead >= 0) & (ahead % D == 0) & (ahead // D < K)


@triton.jit
def pack_cells(
    weight, packed, total, contracted, W_D, W_H, W_W, W_IN, W_OUT, PAD,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, INNER: tl.constexpr, LOW: tl.constexpr, COUNT: tl.constexpr,
    B: tl.constexpr, KI: tl.constexpr, NO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weights of few input channels: [block of source channels, source cell, source channel, (cell of the inner box, channel)]."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = e % NO
    k = e // NO % KI
    u = e // (KI * NO)
    k += u // (COUNT[0] * COUNT[1] * COUNT[2]) * KI
    cell = n // B
    td, d_there = axis_tap(
        cell // (INNER[1] * INNER[2]), u // (COUNT[1] * COUNT[2]) % COUNT[0], LOW[0], PAD[0], K[0], S[0], D[0]
    )
    th, h_there = axis_tap(cell // INNER[2] % INNER[1], u // COUNT[2] % COUNT[1], LOW[1], PAD[1], K[1], S[1], D[1])
    tw, w_there = axis_tap(cell % INNER[2], u % COUNT[2], LOW[2], PAD[2], K[2], S[2], D[2])
    there = (e < total) & (k < contracted) & (cell < INNER[0] * INNER[1] * INNER[2]) & d_there & h_there & w_there
    place = td * W_D + th * W_H + tw * W_W + (n % B) * W_IN + k * W_OUT
    tl.store(packed + e, tl.load(weight + place, mask=there, other=0.0), mask=e < total)


@triton.jit
def base_places(first, bases, BASES, BP: tl.constexpr, WIDE: tl.constexpr):
    """(image, d, h, w, inside) of the bases of a tile."""
    if WIDE:
        first = first.to(tl.int64)
    base = first + tl.arange(0, BP)
    rest = base // BASES[2]
    return rest // BASES[1] // BASES[0], rest // BASES[1] % BASES[0], rest % BASES[1], base % BASES[2], base < bases


@triton.jit
def load_source(places, d, h, w, inside, channel_there, SRC, READ, pitch, LOADS: tl.constexpr, LOAD: tl.constexpr):
    """The tile of source cells of load LOAD; zeros beside the input."""
    OD: tl.constexpr = offset_of(LOADS, LOAD, 0)
    OH: tl.constexpr = offset_of(LOADS, LOAD, 1)
    OW: tl.constexpr = offset_of(LOADS, LOAD, 2)
    h_there = (h + OH >= 0) & (h + OH < READ[1])
    there = h_there & (w + OW >= 0) & (w + OW < READ[2]) & inside & (d + OD >= 0) & (d + OD < READ[0])
    there = there[:, None]
    if channel_there is not None:
        there = there & channel_there
    return tl.load(places + ((OD * SRC[1] + OH) * SRC[2] + OW) * pitch, mask=there, other=0.0)


@triton.jit
def replaced(parts, NUMBER: tl.constexpr, part):
    """A tuple with another part in this place."""
    return parts[:NUMBER] + (part,) + parts[NUMBER + 1 :]  # noqa: RUF005


@triton.jit
def appended(parts, part):
    return parts + (part,)  # noqa: RUF005


@triton.jit
def add_use(
    sums, x, factors, LOADS: tl.constexpr, LOAD: tl.constexpr, USE: tl.constexpr, MATRIX: tl.constexpr, PRECISION: tl.constexpr
):
    NUMBER: tl.constexpr = sum_of(LOADS, LOAD, USE)
    f = parts_of(tl.load(factors + weight_of(LOADS, LOAD, USE) * MATRIX), PRECISION)
    return replaced(sums, NUMBER, multiplied(x, f, sums[NUMBER], PRECISION))


@triton.jit
def add_load(sums, x, factors, LOADS: tl.constexpr, LOAD: tl.constexpr, MATRIX: tl.constexpr, PRECISION: tl.constexpr):
    """The sums with what load LOAD adds to them."""
    USES: tl.constexpr = uses_in(LOADS, LOAD)
    parts = parts_of(x, PRECISION)
    for use in tl.static_range(USES):
        sums = add_use(sums, parts, factors, LOADS, LOAD, use, MATRIX, PRECISION)
    return sums


@triton.jit
def plain_source(c, t, pad, size, FORWARD: tl.constexpr, S: tl.constexpr, D: tl.constexpr):
    """(source cell, there) of a result cell by a tap."""
    if FORWARD:
        y = c * S - pad + t * D
        return y, (y >= 0) & (y < size)
    ahead = c + pad - t * D
    return ahead // S, (ahead >= 0) & (ahead % S == 0) & (ahead // S < size)


@triton.jit
def plain_sums(
    src, weight, dst, image, bd, bh, bw, inside, group, channel, channel_there, SRC, READ, DST, DST_READ, PAD,
    src_pitch, dst_pitch,
    src_image, dst_image, channel_src, channel_dst, W_D, W_H, W_W, W_IN, W_OUT,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, BOX: tl.constexpr, FIRST: tl.constexpr, CELLS: tl.constexpr,
    A, B: tl.constexpr, FORWARD: tl.constexpr, BP: tl.constexpr, NO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of results by sums of what is read alone."""
    for cell in range(CELLS[0] * CELLS[1] * CELLS[2]):
        d = bd * BOX[0] + FIRST[0] + cell // (CELLS[1] * CELLS[2])
        h = bh * BOX[1] + FIRST[1] + cell // CELLS[2] % CELLS[1]
        w = bw * BOX[2] + FIRST[2] + cell % CELLS[2]
        total = tl.zeros((BP, NO), tl.float32)
        for t in range(K[0] * K[1] * K[2]):
            td = t // (K[1] * K[2])
            th = t // K[2] % K[1]
            tw = t % K[2]
            yd, d_there = plain_source(d, td, PAD[0], READ[0], FORWARD, S[0], D[0])
            yh, h_there = plain_source(h, th, PAD[1], READ[1], FORWARD, S[1], D[1])
            yw, w_there = plain_source(w, tw, PAD[2], READ[2], FORWARD, S[2], D[2])
            valid = (inside & d_there & h_there & w_there)[:, None] & channel_there[None, :]
            cells = (image * src_image + ((yd * SRC[1] + yh) * SRC[2] + yw) * src_pitch)[:, None]
            tap = td * W_D + th * W_H + tw * W_W
            for k in range(python_number(A) if PRECISION == "upcast" else A):
                if FORWARD:
                    place = tap + k * W_IN + channel * W_OUT
                else:
                    place = tap + (channel % B) * W_IN + (group * A + k) * W_OUT
                factor = (tl.load(weight + place, mask=channel_there, other=0.0).to(tl.float32))[None, :]
                value = tl.load(src + (cells + ((group * A + k) * channel_src)[None, :]), mask=valid, other=0.0)
                total += tl.where(valid, value.to(tl.float32) * factor, 0.0)
        there = inside & (d < DST[0]) & (h < DST[1]) & (w < DST[2])
        read = (d < DST_READ[0]) & (h < DST_READ[1]) & (w < DST_READ[2])
        total = tl.where(read[:, None], total, 0.0).to(dst.dtype.element_ty)
        place = (image * dst_image + ((d * DST[1] + h) * DST[2] + w) * dst_pitch)[:, None] + (channel * channel_dst)[None, :]
        tl.store(dst + place, total, mask=there[:, None] & channel_there[None, :])


@triton.jit
def store_sums(
    sums, dst, image, bd, bh, bw, inside, n, bundle, DST, DST_READ, dst_channels, dst_pitch, dst_image, channel_dst,
    BOX: tl.constexpr, FIRST: tl.constexpr, EXTENT: tl.constexpr, INNER: tl.constexpr, BUNDLE: tl.constexpr, B: tl.constexpr,
    NO: tl.constexpr, FULL: tl.constexpr, GROUPED: tl.constexpr, FORWARD: tl.constexpr,
):  # fmt: skip
    column = n // B
    if GROUPED:
        channel = n + bundle * (BUNDLE * B)
        n_there = (n < BUNDLE * B) & (channel < dst_channels)
        cd, ch, cw = 0, 0, 0
    else:
        channel = n % B
        n_there = column < INNER[0] * INNER[1] * INNER[2]
        cd = (column // (INNER[1] * INNER[2]))[None, :]
        ch = (column // INNER[2] % INNER[1])[None, :]
        cw = (column % INNER[2])[None, :]
    SUMS: tl.constexpr = cells_of(EXTENT)
    for i in tl.static_range(SUMS):
        od = (bd * BOX[0] + (FIRST[0] + i // (EXTENT[1] * EXTENT[2]) * INNER[0]))[:, None] + cd
        oh = (bh * BOX[1] + (FIRST[1] + i // EXTENT[2] % EXTENT[1] * INNER[1]))[:, None] + ch
        ow = (bw * BOX[2] + (FIRST[2] + i % EXTENT[2] * INNER[2]))[:, None] + cw
        there = inside[:, None] & (od < DST[0]) & (oh < DST[1]) & (ow < DST[2])
        if not GROUPED or not FULL or BUNDLE * B != NO:
            there = there & n_there[None, :]
        value = sums[i]
        if not FORWARD:  # a negative high pad crops the last cells
            value = tl.where((od < DST_READ[0]) & (oh < DST_READ[1]) & (ow < DST_READ[2]), value, 0.0)
        place = (image * dst_image)[:, None] + ((od * DST[1] + oh) * DST[2] + ow) * dst_pitch
        place = place + (channel * channel_dst)[None, :]
        tl.store(dst + place, value.to(dst.dtype.element_ty), mask=there)


@triton.jit
def gather(
    src, packed, weight, dst, bases, BASES, SRC, READ, DST, DST_READ, SHIFT, PAD, src_channels, dst_channels, contracted,
    W_D, W_H, W_W, W_IN, W_OUT, blocks,
    K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, BOX: tl.constexpr, FIRST: tl.constexpr, EXTENT: tl.constexpr,
    INNER: tl.constexpr, STEP: tl.constexpr, LOADS: tl.constexpr, T: tl.constexpr, AHEAD: tl.constexpr,
    BUNDLE: tl.constexpr, A: tl.constexpr, B: tl.constexpr, KI: tl.constexpr, NO: tl.constexpr, FULL: tl.constexpr,
    GROUPED: tl.constexpr, FORWARD: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr, BP: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Results of a tile of bases and a bundle of groups (GROUPED), or of all channels of a box's cells.

    A and B: source and result channels of a group. blocks: of KI source channels, which are summed over one after the other. SHIFT:
    what source cells are shifted back by. FULL: no channel of a block is beside the tensor.
    """
    tiles = (bases + BP - 1) // BP
    bundle = tl.program_id(0) // tiles
    image, bd, bh, bw, inside = base_places(tl.program_id(0) % tiles * BP, bases, BASES, BP, WIDE)
    d = bd * STEP[0] - SHIFT[0]
    h = bh * STEP[1] - SHIFT[1]
    w = bw * STEP[2] - SHIFT[2]
    src_cells = SRC[0] * SRC[1] * SRC[2]
    dst_cells = DST[0] * DST[1] * DST[2]
    if LAST:
        src_pitch, channel_src, dst_pitch, channel_dst = src_channels, 1, dst_channels, 1
    else:
        src_pitch, channel_src, dst_pitch, channel_dst = 1, src_cells, 1, dst_cells
    src_image = src_cells * src_channels
    dst_image = dst_cells * dst_channels
    k = tl.arange(0, KI)
    n = tl.arange(0, NO)
    matrix = k[:, None] * NO + n[None, :]
    if WIDE:
        k = k.to(tl.int64)
        n = n.to(tl.int64)
    SUMS: tl.constexpr = cells_of(EXTENT)
    COUNT: tl.constexpr = loads_in(LOADS)
    sums = ()
    for _ in tl.static_range(SUMS):
        sums = appended(sums, tl.zeros((BP, NO), tl.float32))
    cells = (image * src_image + ((d * SRC[1] + h) * SRC[2] + w) * src_pitch)[:, None]
    for block in range(python_number(blocks) if PRECISION == "upcast" else blocks):
        channel = k + (bundle * (BUNDLE * A) if GROUPED else block * KI)
        places = src + (cells + (channel * channel_src)[None, :])
        channel_there = None
        if not FULL:
            if GROUPED:
                channel_there = ((k < BUNDLE * A) & (channel < contracted))[None, :]
            else:
                channel_there = (channel < contracted)[None, :]
        factors = packed + ((bundle if GROUPED else block) * (T * KI * NO) + matrix)
        tiles_ahead = ()
        for i in tl.static_range(COUNT + AHEAD):
            if i < COUNT:
                tile = load_source(places, d, h, w, inside, channel_there, SRC, READ, src_pitch, LOADS, i)
                tiles_ahead = appended(tiles_ahead, tile)
            if i >= AHEAD:
                sums = add_load(sums, tiles_ahead[i - AHEAD], factors, LOADS, i - AHEAD, KI * NO, PRECISION)
    wrong = sums[0] * 0.0  # NaN where a sum is not finite
    for i in tl.static_range(1, SUMS):
        wrong += sums[i] * 0.0
    if tl.max((wrong != wrong).to(tl.int32)) > 0:
        C: tl.constexpr = BUNDLE * B if GROUPED else B
        channel = n + bundle * C
        plain_sums(
            src, weight, dst, image, bd, bh, bw, inside, channel // B if GROUPED else 0 * n, channel,
            (n < C) & (channel < dst_channels), SRC, READ, DST, DST_READ, PAD, src_pitch, dst_pitch, src_image, dst_image,
            channel_src, channel_dst, W_D, W_H, W_W, W_IN, W_OUT, K, S, D, BOX, FIRST,
            (EXTENT[0] * INNER[0], EXTENT[1] * INNER[1], EXTENT[2] * INNER[2]),
            A if GROUPED else contracted, B, FORWARD, BP, NO, PRECISION,
        )  # fmt: skip
    else:
        store_sums(
            sums, dst, image, bd, bh, bw, inside, n, bundle, DST, DST_READ, dst_channels, dst_pitch, dst_image, channel_dst,
            BOX, FIRST, EXTENT, INNER, BUNDLE, B, NO, FULL, GROUPED, FORWARD,
        )  # fmt: skip
