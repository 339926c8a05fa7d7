"""Which cells a window reads, and which outputs read a cell, along three axes: (depths and rows) as lines, columns as cells.

The plan says for each target row which lines it takes (first line, planes, rows in each, first tap). A kernel writes them into
scratch, once for all columns and for the next rows as long as only the first line moves: where each line begins from the first one
on, its tap, its number from the first one on (24 bytes). lines = (that table, its entries); cells = (where the first one lies in a
line, count, step, tap, step of the taps). Places and steps count elements: `width` of them are a line, `channels` a cell.
"""

from __future__ import annotations

from pullback.cpu.kernels.vectors import get_int, inline, put_int


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


NO_LINES = (-1, -1, -1)


@inline
def line_steps(table):
    """How lines and taps count from plane to plane and from row to row, out of the plan's table."""
    return get_int(table), get_int(table + 8), get_int(table + 16), get_int(table + 24)


@inline
def lines_of(target, known, table, steps, width, row):
    """(first line, what to know next time, lines) of a target row. Lines that are there already are not written again."""
    at = table + 32 + 32 * row
    found = (get_int(at + 8), get_int(at + 16), get_int(at + 24))
    planes, rows, tap = found
    if planes != known[0] or rows != known[1] or tap != known[2]:
        plane_step, row_step, plane_taps, row_taps = steps
        entry = target
        for a in range(planes):
            for e in range(rows):
                line = a * plane_step + e * row_step
                put_int(entry, line * width)
                put_int(entry + 8, tap + a * plane_taps + e * row_taps)
                put_int(entry + 16, line)
                entry += 24
    return get_int(at), found, (target, planes * rows)


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
