"""Which cells a window reads, and which outputs read a cell, along three axes: (depths and rows) as lines, columns as cells.

The plan says for each target row its first line and its kind: rows of one kind take the same lines from the first one on. A kernel
writes these into scratch, once for all columns and all rows of a kind that follow each other: where each line begins, its tap, its
number (24 bytes). lines = (that table, its entries); cells = (where the first one lies in a line, count, step, tap, step of the
taps). Places and steps count elements: `width` of them are a line, `channels` a cell.
"""

from __future__ import annotations

from pullback.cpu.simd.vectors import get_int, inline, put_int


@inline
def axis_of(axes, number):
    """Outputs, cells, taps, stride, dilation and first cell of one axis, out of the plan's table."""
    at = axes + 48 * number
    return get_int(at), get_int(at + 8), get_int(at + 16), get_int(at + 24), get_int(at + 32), get_int(at + 40)


@inline
def taps_inside(axis, output):
    """(cell of the first tap inside the input, that tap, how many taps) of an output. Divides only where a window sticks out."""
    _, size, taps, stride, dilation, first = axis
    start = output * stride + first
    t0, t1 = 0, taps
    if start < 0:
        t0 = (dilation - 1 - start) // dilation
    if start + (taps - 1) * dilation >= size:
        t1 = (size - 1 - start) // dilation + 1 if start < size else 0
    return start + t0 * dilation, t0, max(0, t1 - t0)


NO_LINES = -1  # a kind that no row has


@inline
def line_kinds(table):
    """The plan's table of lines: where its rows begin (first line and kind), where its kinds do, and the table itself."""
    kinds = table + 40
    return kinds + 24 * get_int(table + 32), kinds, table


@inline
def lines_of(target, known, lines, kinds, width, row):
    """(first line, kind, lines) of a target row; `lines` are those that have been written for the kind `known`."""
    at = kinds[0] + 16 * row
    kind = get_int(at + 8)
    if kind != known:
        steps, this = kinds[2], kinds[1] + 24 * kind
        planes, rows, tap = get_int(this), get_int(this + 8), get_int(this + 16)
        entry = target
        for a in range(planes):
            for e in range(rows):
                line = a * get_int(steps) + e * get_int(steps + 8)
                put_int(entry, line * width)
                put_int(entry + 8, tap + a * get_int(steps + 16) + e * get_int(steps + 24))
                put_int(entry + 16, line)
                entry += 24
        lines = (target, planes * rows)
    return get_int(at), kind, lines


@inline
def cells_read(col_axis, channels, col):
    """The cells of a line that an output column reads."""
    cell, tap, count = taps_inside(col_axis, col)
    return cell * channels, count, col_axis[4] * channels, tap, 1


@inline
def readers_in(table):
    """The plan's table of who reads each cell of an axis: where it begins, the steps of outputs and taps."""
    return table + 16, get_int(table), get_int(table + 8)


@inline
def readers_of(readers, cell):
    """(first output, its tap, count) of the outputs that read a cell of an axis."""
    at = readers[0] + 24 * cell
    return get_int(at), get_int(at + 8), get_int(at + 16)


@inline
def cells_reading(col_readers, channels, col):
    """The output columns that read an input column."""
    cell, tap, count = readers_of(col_readers, col)
    return cell * channels, count, col_readers[1] * channels, tap, col_readers[2]
