"""Which cells a window reads, and which outputs read a cell, along three axes: (depths and rows) as lines, columns as cells.

lines = (first row, planes, rows in each, row step from plane to plane and from row to row, tap and its two steps); rows and taps
are numbered through all planes, taps by rows of the window times its columns. cells = (first column, count, step, tap, tap step).
"""

from __future__ import annotations

from pullback.cpu.kernels.vectors import get_int, inline


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


@inline
def lines_read(depth_axis, row_axis, kernel_cols, row):
    """The lines that an output row reads."""
    plane, plane_tap, planes = taps_inside(depth_axis, row // row_axis[0])
    line, line_tap, rows = taps_inside(row_axis, row % row_axis[0])
    in_rows, kernel_rows = row_axis[1], row_axis[2]
    tap = (plane_tap * kernel_rows + line_tap) * kernel_cols
    steps = (depth_axis[4] * in_rows, row_axis[4], tap, kernel_rows * kernel_cols, kernel_cols)
    return (plane * in_rows + line, planes, rows, *steps)


@inline
def cells_read(col_axis, col):
    """The cells of a line that an output column reads."""
    cell, tap, count = taps_inside(col_axis, col)
    return cell, count, col_axis[4], tap, 1


@inline
def readers_of(table, cell):
    """(first output, its tap, count, steps of both) of the outputs that read a cell of an axis."""
    at = table + 16 + 24 * cell
    return get_int(at), get_int(at + 8), get_int(at + 16), get_int(table), get_int(table + 8)


@inline
def lines_reading(depth_readers, row_readers, in_rows, out_rows, kernel_rows, kernel_cols, row):
    """The output lines that read an input row."""
    plane, plane_tap, planes, plane_step, plane_tap_step = readers_of(depth_readers, row // in_rows)
    line, line_tap, rows, line_step, line_tap_step = readers_of(row_readers, row % in_rows)
    tap = (plane_tap * kernel_rows + line_tap) * kernel_cols
    taps = (tap, plane_tap_step * kernel_rows * kernel_cols, line_tap_step * kernel_cols)
    return (plane * out_rows + line, planes, rows, plane_step * out_rows, line_step, *taps)


@inline
def cells_reading(col_readers, col):
    """The output columns that read an input column."""
    cell, tap, count, step, tap_step = readers_of(col_readers, col)
    return cell, count, step, tap, tap_step
