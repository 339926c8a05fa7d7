"""What the depthwise kernels share: loading the cells of a line that a patch reads, and the tables of `plan` at compile time.

A tile has two axes: [positions, channels] in channels_last, and [channels, positions] in channels_first, so that what lies beside
each other in memory is last.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def entry(table, *path):
    """table[i][j]...: the language itself takes no tuple of tuples apart."""
    for index in path:
        table = table[index]
    return table


@triton.constexpr_function
def size_of(table, *path):
    for index in path:
        table = table[index]
    return len(table)


@triton.constexpr_function
def tap_at(pairs, result, index):
    """The tap, along the height, by which a result takes an offset; -1 where it does not."""
    for i, tap in pairs[1][result]:
        if i == index:
            return tap
    return -1


@triton.jit
def among(cell, size):
    """Whether 0 <= cell < size, in one comparison."""
    return cell.to(tl.uint32, bitcast=True) < size.to(tl.uint32, bitcast=True)


@triton.jit
def part_of(value, index: tl.constexpr, COUNT: tl.constexpr):
    """Tensor [a, b, COUNT] at one index of its last axis, all in the registers of a thread."""
    if COUNT == 1:
        return tl.reshape(value, (value.shape[0], value.shape[1]))
    even, odd = tl.split(tl.reshape(value, (value.shape[0], value.shape[1], COUNT // 2, 2)))
    if index % 2 == 0:
        return part_of(even, index // 2, COUNT // 2)
    return part_of(odd, index // 2, COUNT // 2)


@triton.jit
def joined(parts, START: tl.constexpr, STEP: tl.constexpr, COUNT: tl.constexpr):
    """parts[START], parts[START + STEP], ..., COUNT of them (a power of two), beside each other along a new last axis."""
    if COUNT == 1:
        return tl.expand_dims(parts[START], 2)
    return tl.reshape(
        tl.join(joined(parts, START, 2 * STEP, COUNT // 2), joined(parts, START + STEP, 2 * STEP, COUNT // 2)),
        (parts[START].shape[0], parts[START].shape[1], COUNT),
    )


@triton.jit
def cells_of_line(
    src, line, base, there, width, readable, channels, channel,
    OFFSETS: tl.constexpr, STEP: tl.constexpr, LAST: tl.constexpr, VECTOR: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """The cells base * STEP + offset of lines, 0 where there is none; `line` counts lines of the source."""
    COUNT: tl.constexpr = size_of(OFFSETS, 2)
    first = base * STEP
    found = ()
    if LAST:
        place = (line * width + first) * channels + channel
        for i in tl.static_range(COUNT):
            OFFSET: tl.constexpr = entry(OFFSETS, 2, i)
            value = tl.load(src + place + OFFSET * channels, mask=there & among(first + OFFSET, readable), other=0.0)
            found = found + (value.to(SUM),)
    elif VECTOR == 1:
        place = line * width + first
        for i in tl.static_range(COUNT):
            OFFSET: tl.constexpr = entry(OFFSETS, 2, i)
            value = tl.load(src + (place + OFFSET), mask=there & among(first + OFFSET, readable), other=0.0)
            found = found + (value.to(SUM),)
    else:  # groups of cells that lie whole in the line or beside it
        place = (line * (width // VECTOR) + base * (STEP // VECTOR)) * VECTOR
        for g in tl.static_range(COUNT // VECTOR):
            OFFSET: tl.constexpr = entry(OFFSETS, 2, g * VECTOR)
            mask = there & among(first + OFFSET, readable)
            places = tl.expand_dims(place + OFFSET, 2) + tl.arange(0, VECTOR)[None, None, :]
            group = tl.load(src + places, mask=tl.broadcast_to(tl.expand_dims(mask, 2), places.shape), other=0.0)
            for i in tl.static_range(VECTOR):
                found = found + (part_of(group, i, VECTOR).to(SUM),)
    return found


@triton.jit
def any_nan(total):
    """Whether there is a NaN in a tile of sums."""
    return tl.max(tl.max((total != total).to(tl.int32), axis=1), axis=0) != 0
