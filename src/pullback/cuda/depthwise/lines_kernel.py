"""What the depthwise kernels share: loading the cells of a line that a patch reads, and the tables of `plan` at compile time.

A tile has two axes: [positions, channels] in channels_last, and [channels, positions] in channels_first, so that what lies beside
each other in memory is last.
"""

# ruff: noqa: RUF005, RET505 (the language of kernels has no unpacking, and goes on behind a branch that returns)

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


@triton.constexpr_function
def rows_of_lines(pairs, line):
    """Of each line up to this one, the kernel rows that no line before it uses."""
    found = []
    for at in range(line + 1):
        new = [tap for of_result in pairs[1] for i, tap in of_result if i == at]
        found.append(tuple(dict.fromkeys(tap for tap in new if not any(tap in rows for rows in found))))
    return found


@triton.constexpr_function
def rows_of_taps(pairs, line):
    """The kernel rows that are first used at a line."""
    return rows_of_lines(pairs, line)[-1]


@triton.constexpr_function
def slots(pairs, line, result, width):
    """Of each of a result's taps at a line: (index of the cell, index of the weight), weights in order of their rows' first use."""
    order = [tap for rows in rows_of_lines(pairs, line) for tap in rows]
    return tuple(
        (i, order.index(row) * width + tap)
        for at, row in pairs[1][result // len(pairs[2])] if at == line
        for i, tap in pairs[2][result % len(pairs[2])]
    )  # fmt: skip


@triton.constexpr_function
def first_cell(offsets, pairs, axis, result):
    """The first offset that a result reads; then they go by even steps (0 is given where there is none)."""
    own = pairs[axis][result]
    return offsets[axis][own[0][0]] if own else 0


@triton.constexpr_function
def next_cell(offsets, pairs, axis, result):
    own = pairs[axis][result]
    return offsets[axis][own[1][0]] - offsets[axis][own[0][0]] if len(own) > 1 else 0


@triton.constexpr_function
def first_tap(pairs, axis, result):
    own = pairs[axis][result]
    return own[0][1] if own else 0


@triton.constexpr_function
def next_tap(pairs, axis, result):
    own = pairs[axis][result]
    return own[1][1] - own[0][1] if len(own) > 1 else 0


@triton.jit
def among(cell, size):
    """Whether 0 <= cell < size, in one comparison."""
    return cell.to(tl.uint32, bitcast=True) < tl.cast(size, tl.uint32)


@triton.jit
def side_by_side(value, COUNT: tl.constexpr):
    """The tensors of value[:, :, i], COUNT of them (1, 2 or 4), all in the registers of a thread."""
    ROWS: tl.constexpr = value.shape[0]
    COLUMNS: tl.constexpr = value.shape[1]
    if COUNT == 1:
        return (tl.reshape(value, (ROWS, COLUMNS)),)
    elif COUNT == 2:
        first, second = tl.split(value)
        return (first, second)
    else:
        even, odd = tl.split(tl.reshape(value, (ROWS, COLUMNS, 2, 2)))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        return (first, second, third, fourth)


@triton.jit
def joined(parts, COUNT: tl.constexpr):
    """The inverse of `side_by_side`."""
    if COUNT == 1:
        return tl.expand_dims(parts[0], 2)
    elif COUNT == 2:
        return tl.join(parts[0], parts[1])
    else:
        both = tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[3]))
        return tl.reshape(both, (parts[0].shape[0], parts[0].shape[1], 4))


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
            mask = there & among(first + entry(OFFSETS, 2, i), readable)
            value = tl.load(src + place + entry(OFFSETS, 2, i) * channels, mask=mask, other=0.0)
            found = found + (value.to(SUM),)
    elif VECTOR == 1:
        place = line * width + first
        for i in tl.static_range(COUNT):
            mask = there & among(first + entry(OFFSETS, 2, i), readable)
            value = tl.load(src + (place + entry(OFFSETS, 2, i)), mask=mask, other=0.0)
            found = found + (value.to(SUM),)
    else:  # groups of cells that lie whole in the line or beside it
        place = (line * (width // VECTOR) + base * (STEP // VECTOR)) * VECTOR
        for g in tl.static_range(COUNT // VECTOR):
            mask = there & among(first + entry(OFFSETS, 2, g * VECTOR), readable)
            places = tl.expand_dims(place + entry(OFFSETS, 2, g * VECTOR), 2) + tl.arange(0, VECTOR)[None, None, :]
            group = tl.load(src + places, mask=tl.broadcast_to(tl.expand_dims(mask, 2), places.shape), other=0.0)
            parts = side_by_side(group, VECTOR)
            for i in tl.static_range(VECTOR):
                found = found + (parts[i].to(SUM),)
    return found


@triton.jit
def any_nan(total):
    """Whether there is a NaN in a tile of sums."""
    return tl.max(tl.max((total != total).to(tl.int32), axis=1), axis=0) != 0
