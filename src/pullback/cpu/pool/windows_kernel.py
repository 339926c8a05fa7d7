"""Which cells a window reads, and which outputs read a cell, along three axes: (depths and rows) as lines, columns as cells.

The plan says for each target row its first line and its kind: rows of one kind take the same lines from the first one on. A kernel
writes these into scratch, once for all columns and all rows of a kind that follow each other. lines = (that table, its entries);
cells = (where the first one lies in a line, count, step, tap, step of the taps). Places and steps count elements: `width` of them
are a line, `channels` a cell.
"""

from __future__ import annotations

from pullback.cpu.pool.records import Axis, Line, LineKind, LineRow, LineTable, Reader, ReaderSteps
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.vectors import inline

axis_at, line_at = records_at(Axis), records_at(Line)
_table_at, _kind_at, _row_at = records_at(LineTable), records_at(LineKind), records_at(LineRow)
_steps_at, _reader_at = records_at(ReaderSteps), records_at(Reader)
TABLE_BYTES, KIND_BYTES, STEPS_BYTES = LineTable.BYTES, LineKind.BYTES, ReaderSteps.BYTES


@inline
def axes_of(args):
    """The depth, row and column axis."""
    return axis_at(args.axes, 0), axis_at(args.axes, 1), axis_at(args.axes, 2)


@inline
def taps_inside(axis, output):
    """(cell of the first tap inside the input, that tap, how many taps) of an output. Divides only where a window sticks out."""
    start = output * axis.stride + axis.first
    t0, t1 = 0, axis.taps
    if start < 0:
        t0 = (axis.dilation - 1 - start) // axis.dilation
    if start + (axis.taps - 1) * axis.dilation >= axis.cells:
        t1 = (axis.cells - 1 - start) // axis.dilation + 1 if start < axis.cells else 0
    return start + t0 * axis.dilation, t0, max(0, t1 - t0)


NO_LINES = -1  # a kind that no row has


@inline
def lines_of(target, known, lines, args, width, row):
    """(first line, kind, lines) of a target row; `lines` are those that have been written to `target` for the kind `known`."""
    table, kinds = _table_at(args.line_table, 0), args.line_table + TABLE_BYTES
    this = _row_at(kinds + KIND_BYTES * table.kinds, row)
    if this.kind != known:
        kind = _kind_at(kinds, this.kind)
        for p in range(kind.planes):
            for r in range(kind.rows):
                line = line_at(target, p * kind.rows + r)
                line.number = p * table.plane_step + r * table.row_step
                line.place = (p * table.plane_step + r * table.row_step) * width
                line.tap = kind.tap + p * table.plane_tap + r * table.row_tap
        lines = (target, kind.planes * kind.rows)
    return this.line, this.kind, lines


@inline
def cells_read(col_axis, channels, col):
    """The cells of a line that an output column reads."""
    cell, tap, count = taps_inside(col_axis, col)
    return cell * channels, count, col_axis.dilation * channels, tap, 1


@inline
def readers_of(table, cell):
    """(first output, its tap, count, steps of outputs and taps) of the outputs that read a cell of an axis."""
    reader, steps = _reader_at(table + STEPS_BYTES, cell), _steps_at(table, 0)
    return reader.first, reader.tap, reader.count, steps.output, steps.tap


@inline
def cells_reading(col_readers, channels, col):
    """The output columns that read an input column."""
    cell, tap, count, step, tap_step = readers_of(col_readers, col)
    return cell * channels, count, step * channels, tap, tap_step
