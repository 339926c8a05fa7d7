"""Batch normalization in passes over memory: statistics of chunks, their merging, y; sums of chunks, dx. No sum depends on timing.

x is seen as (outer, channels, inner). LAST, where inner is 1: a tile has cells as rows and channels as columns. Else it has images
as rows and cells as columns, all of one channel. A program has a chunk of rows, tile by tile. VECTOR divides the columns' number.
"""

import triton
import triton.language as tl

# Numbers for whose divisors, or for which as 1, nothing is compiled anew: what loads need to know of them is in VECTOR.
SIZES = ("outer", "chunk", "chunks", "channels", "inner")
NONE, RELU, SILU = (tl.constexpr(i) for i in range(3))  # activations; a ReLU may end at TOP


@triton.jit
def sizes(channels, inner, VECTOR: tl.constexpr, LAST: tl.constexpr):
    """The numbers of channels and of inner cells, of which the columns' came as a multiple of VECTOR."""
    if LAST:
        channels = channels * VECTOR
    else:
        inner = inner * VECTOR
    return channels, inner


@triton.jit
def tile_at(
    step, first, end, block, channels, inner, BR: tl.constexpr, BC: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr
):
    """(offsets, inside) of a tile of a chunk of rows `first` .. `end` - 1; block: of channels, or one channel."""
    ahead = tl.arange(0, BR)[:, None]
    beside = tl.arange(0, BC)[None, :]
    if LAST:
        row = first + step * BR + ahead
        column = block * BC + beside
        columns = channels
    else:
        blocks = (inner + BC - 1) // BC
        row = first + step // blocks * BR + ahead
        column = step % blocks * BC + beside
        columns = inner
    inside = (row < end) & (column < columns)
    if WIDE:
        row = row.to(tl.int64)
    if not LAST:
        row = row * channels + block
    return row * columns + column, inside


@triton.jit
def steps_of(rows, inner, BR: tl.constexpr, BC: tl.constexpr, LAST: tl.constexpr):
    """How many tiles so many rows are."""
    steps = (rows + BR - 1) // BR
    if not LAST:
        steps = steps * ((inner + BC - 1) // BC)
    return steps


@triton.jit
def chunk_at(outer, chunk, channels, BC: tl.constexpr, LAST: tl.constexpr):
    """(number, first row, end, block of channels, the channels themselves) of this program; blocks of a chunk are neighbours."""
    blocks = (channels + BC - 1) // BC if LAST else channels
    pid = tl.program_id(0)
    number = pid // blocks
    block = pid % blocks
    first = number * chunk
    if LAST:
        channel = (block * BC + tl.arange(0, BC))[None, :]
    else:
        channel = tl.full((1, 1), 0, tl.int32) + block
    return number, first, tl.minimum(first + chunk, outer), block, channel


@triton.jit
def over_rows(total, LAST: tl.constexpr):
    """The sum of a tile for each of its channels."""
    found = tl.sum(total, axis=0)[None, :]
    if not LAST:
        found = tl.sum(found, axis=1)[:, None]
    return found


@triton.jit
def activated(value, ACT: tl.constexpr, TOP: tl.constexpr):
    """A NaN stays one."""
    if ACT == RELU:
        value = tl.where(value <= 0, 0.0, value)
        if TOP > 0:
            value = tl.where(value >= TOP, TOP, value)
    if ACT == SILU:
        value = value / (1 + tl.exp(-value))
    return value


@triton.jit
def passed(dy, value, ACT: tl.constexpr, TOP: tl.constexpr):
    """What reaches the activation's input, `value`, or, of a ReLU, whose output that may be as well."""
    if ACT == RELU:
        dy = tl.where(value <= 0, 0.0, dy)
        if TOP > 0:
            dy = tl.where(value >= TOP, 0.0, dy)
    if ACT == SILU:
        sigmoid = 1 / (1 + tl.exp(-value))
        dy = dy * sigmoid * (1 + value * (1 - sigmoid))
    return dy


@triton.jit(do_not_specialize=SIZES)
def chunk_statistics(
    x, part, outer, chunk, channels, inner,
    VECTOR: tl.constexpr, LAST: tl.constexpr, STAGES: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """part[chunk, 0, channel]: the mean, part[chunk, 1, channel]: the sum of squared distances from it. What is summed are the
    distances from the chunk's first number, so that a large mean costs no digits.
    """
    channels, inner = sizes(channels, inner, VECTOR, LAST)
    number, first, end, block, channel = chunk_at(outer, chunk, channels, BC, LAST)
    kept = channel < channels
    if LAST:
        begin = first.to(tl.int64) * channels + channel
    else:
        begin = (first.to(tl.int64) * channels + channel) * inner
    shift = tl.load(x + begin, mask=kept, other=0.0).to(SUM)
    once = tl.zeros((BR, BC), SUM)
    twice = tl.zeros((BR, BC), SUM)
    for step in tl.range(steps_of(end - first, inner, BR, BC, LAST), num_stages=STAGES):
        place, inside = tile_at(step, first, end, block, channels, inner, BR, BC, LAST, WIDE)
        far = tl.where(inside, tl.load(x + place, mask=inside, other=0.0).to(SUM) - shift, 0.0)
        once += far
        twice += far * far
    count = ((end - first) * inner).to(SUM)
    mean = over_rows(once, LAST) / count
    spread = over_rows(twice, LAST) - mean * mean * count
    place = number.to(tl.int64) * 2 * channels + channel
    tl.store(part + place, shift + mean, mask=kept)
    tl.store(part + place + channels, spread, mask=kept)


@triton.jit
def keep(found, mean, variance, shift, channel, channels, EPS: tl.constexpr, SHIFT: tl.constexpr):
    """Rows of mean, variance, 1 / sqrt(variance + EPS), and of the shift as it is now: the backward pass wants it again."""
    TYPE: tl.constexpr = found.dtype.element_ty
    kept = channel < channels
    tl.store(found + channel, mean.to(TYPE), mask=kept)
    tl.store(found + channels + channel, variance.to(TYPE), mask=kept)
    tl.store(found + 2 * channels + channel, (1 / tl.sqrt(variance + EPS)).to(TYPE), mask=kept)
    if SHIFT:
        tl.store(found + 3 * channels + channel, of_channels(shift, channel, channels, TYPE), mask=kept)
    else:
        tl.store(found + 3 * channels + channel, tl.zeros_like(mean).to(TYPE), mask=kept)


@triton.jit(do_not_specialize=SIZES)
def take_statistics(mean, variance, shift, found, channels, EPS: tl.constexpr, SHIFT: tl.constexpr, BC: tl.constexpr):
    """The same rows of statistics that are given."""
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    means = of_channels(mean, channel, channels, tl.float64)
    keep(found, means, of_channels(variance, channel, channels, tl.float64), shift, channel, channels, EPS, SHIFT)


@triton.jit(do_not_specialize=SIZES)
def merge_statistics(
    part, shift, found, mean_kept, variance_kept, batches, outer, chunk, chunks, channels, inner,
    EPS: tl.constexpr, SHIFT: tl.constexpr, MOMENTUM: tl.constexpr, RUNNING: tl.constexpr, COUNTS: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """found: see `keep`. RUNNING: statistics that are kept move by MOMENTUM, or, below 0, by 1 / batches. COUNTS: batches grows by
    one (then it is not read).
    """
    channel = (tl.program_id(0) * BC + tl.arange(0, BC))[None, :]
    kept = channel < channels
    total = tl.zeros((BR, BC), tl.float64)
    for first in range(0, chunks, BR):
        number = first + tl.arange(0, BR)[:, None]
        rows = tl.minimum(outer - number * chunk, chunk).to(tl.float64)
        inside = (number < chunks) & kept
        mean = tl.load(part + number * 2 * channels + channel, mask=inside, other=0.0).to(tl.float64)
        total += tl.where(inside, mean * rows, 0.0)
    count = (tl.zeros((1, 1), tl.float64) + outer) * inner  # `outer` may be known when this is compiled
    mean = tl.sum(total, axis=0)[None, :] * inner / count
    total = tl.zeros((BR, BC), tl.float64)
    for first in range(0, chunks, BR):
        number = first + tl.arange(0, BR)[:, None]
        cells = tl.minimum(outer - number * chunk, chunk).to(tl.float64) * inner
        inside = (number < chunks) & kept
        far = tl.load(part + number * 2 * channels + channel, mask=inside, other=0.0).to(tl.float64) - mean
        spread = tl.load(part + (number * 2 + 1) * channels + channel, mask=inside, other=0.0).to(tl.float64)
        total += tl.where(inside, spread + far * far * cells, 0.0)
    spread = tl.sum(total, axis=0)[None, :]
    variance = spread / count
    keep(found, mean, variance, shift, channel, channels, EPS, SHIFT)
    if RUNNING:
        if MOMENTUM >= 0:
            share = tl.full((1, 1), MOMENTUM, tl.float64)
        else:
            share = 1 / (tl.load(batches).to(tl.float64) + tl.zeros((1, 1), tl.float64))
        before = tl.load(mean_kept + channel, mask=kept, other=0.0).to(tl.float64)
        tl.store(mean_kept + channel, (before + share * (mean - before)).to(mean_kept.dtype.element_ty), mask=kept)
        before = tl.load(variance_kept + channel, mask=kept, other=0.0).to(tl.float64)
        moved = before + share * (spread / (count - 1) - before)
        tl.store(variance_kept + channel, moved.to(variance_kept.dtype.element_ty), mask=kept)
    if COUNTS and tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def of_channels(numbers, channel, channels, SUM: tl.constexpr):
    return tl.load(numbers + channel, mask=channel < channels, other=0.0).to(SUM)


@triton.jit
def coefficients(found, scale, channel, channels, SCALE: tl.constexpr, SUM: tl.constexpr):
    """(mean, inverse deviation, that times the scale, shift) of channels; found: see `keep`."""
    mean = of_channels(found, channel, channels, SUM)
    inverse = of_channels(found + 2 * channels, channel, channels, SUM)
    slope = inverse
    if SCALE:
        slope = slope * of_channels(scale, channel, channels, SUM)
    return mean, inverse, slope, of_channels(found + 3 * channels, channel, channels, SUM)


@triton.jit
def normalized(far, slope, shift, TYPE: tl.constexpr, SUM: tl.constexpr):
    """From x - mean. Rounded as the result of a layer of its own is, so that what follows sees the same numbers."""
    return (far * slope + shift).to(TYPE).to(SUM)


@triton.jit(do_not_specialize=SIZES)
def normalize(
    x, found, scale, add, y, outer, chunk, channels, inner,
    ACT: tl.constexpr, TOP: tl.constexpr, ADD: tl.constexpr, SCALE: tl.constexpr, VECTOR: tl.constexpr, LAST: tl.constexpr,
    SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y = activation(normalized x + add)."""
    channels, inner = sizes(channels, inner, VECTOR, LAST)
    _, first, end, block, channel = chunk_at(outer, chunk, channels, BC, LAST)
    mean, _, slope, shift = coefficients(found, scale, channel, channels, SCALE, SUM)
    TYPE: tl.constexpr = y.dtype.element_ty
    for step in range(steps_of(end - first, inner, BR, BC, LAST)):
        place, inside = tile_at(step, first, end, block, channels, inner, BR, BC, LAST, WIDE)
        value = tl.load(x + place, mask=inside, other=0.0).to(SUM)
        if ADD:
            other = tl.load(add + place, mask=inside, other=0.0).to(SUM)
        value = normalized(value - mean, slope, shift, TYPE, SUM)
        if ADD:
            value = (value + other).to(TYPE).to(SUM)
        tl.store(y + place, activated(value, ACT, TOP).to(TYPE), mask=inside)


@triton.jit
def reaching(
    dy, x, y, place, inside, mean, slope, shift,
    ACT: tl.constexpr, TOP: tl.constexpr, BY_Y: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """(what reaches the normalization, x - mean): a ReLU's mask is found from y where something was added, else from x."""
    TYPE: tl.constexpr = x.dtype.element_ty
    g = tl.load(dy + place, mask=inside, other=0.0).to(SUM)
    far = tl.load(x + place, mask=inside, other=0.0).to(SUM) - mean
    if ACT != NONE:
        if BY_Y:
            value = tl.load(y + place, mask=inside, other=0.0).to(SUM)
        else:
            value = normalized(far, slope, shift, TYPE, SUM)
        g = passed(g, value, ACT, TOP).to(TYPE).to(SUM)
    return g, tl.where(inside, far, 0.0)


@triton.jit(do_not_specialize=SIZES)
def chunk_sums(
    dy, x, y, found, scale, masked, part, outer, chunk, channels, inner,
    ACT: tl.constexpr, TOP: tl.constexpr, BY_Y: tl.constexpr, MASKED: tl.constexpr, SCALE: tl.constexpr, VECTOR: tl.constexpr,
    LAST: tl.constexpr, STAGES: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """part[chunk, 0, channel]: the sum of g, part[chunk, 1, channel]: of g times normalized x, g what reaches the normalization.
    MASKED: g is stored, too.
    """
    channels, inner = sizes(channels, inner, VECTOR, LAST)
    number, first, end, block, channel = chunk_at(outer, chunk, channels, BC, LAST)
    kept = channel < channels
    mean, inverse, slope, shift = coefficients(found, scale, channel, channels, SCALE, SUM)
    plain = tl.zeros((BR, BC), SUM)
    product = tl.zeros((BR, BC), SUM)
    for step in tl.range(steps_of(end - first, inner, BR, BC, LAST), num_stages=STAGES):
        place, inside = tile_at(step, first, end, block, channels, inner, BR, BC, LAST, WIDE)
        g, far = reaching(dy, x, y, place, inside, mean, slope, shift, ACT, TOP, BY_Y, SUM)
        if MASKED:
            tl.store(masked + place, g.to(masked.dtype.element_ty), mask=inside)
        plain += tl.where(inside, g, 0.0)
        product += tl.where(inside, g * far, 0.0)
    place = number.to(tl.int64) * 2 * channels + channel
    tl.store(part + place, over_rows(plain, LAST), mask=kept)
    tl.store(part + place + channels, over_rows(product, LAST) * inverse, mask=kept)


@triton.jit(do_not_specialize=SIZES)
def input_gradient(
    dy, x, found, scale, sums, dx, outer, chunk, channels, inner,
    ACT: tl.constexpr, TOP: tl.constexpr, BATCH: tl.constexpr, SCALE: tl.constexpr, VECTOR: tl.constexpr, LAST: tl.constexpr,
    SUM: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx; sums: of g and of g times normalized x. BATCH: the statistics are the batch's own."""
    channels, inner = sizes(channels, inner, VECTOR, LAST)
    _, first, end, block, channel = chunk_at(outer, chunk, channels, BC, LAST)
    mean, inverse, slope, shift = coefficients(found, scale, channel, channels, SCALE, SUM)
    if BATCH:
        count = (tl.zeros((1, 1), SUM) + outer) * inner
        mean_g = of_channels(sums, channel, channels, SUM) / count
        by_far = of_channels(sums + channels, channel, channels, SUM) / count * inverse
    for step in range(steps_of(end - first, inner, BR, BC, LAST)):
        place, inside = tile_at(step, first, end, block, channels, inner, BR, BC, LAST, WIDE)
        g, far = reaching(dy, x, x, place, inside, mean, slope, shift, ACT, TOP, False, SUM)
        if BATCH:
            g = g - mean_g - far * by_far
        tl.store(dx + place, (g * slope).to(dx.dtype.element_ty), mask=inside)
