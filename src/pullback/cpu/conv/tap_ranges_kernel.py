"""Which taps of an axis meet a source cell: arithmetic on the PhaseAxis of each axis."""

from __future__ import annotations

from pullback.cpu.conv.records import PHASE_PITCH, Phase, PhaseAxis
from pullback.cpu.simd.record_types import records_at
from pullback.cpu.simd.vectors import inline

phase_at, _axis_at = records_at(Phase, pitch=PHASE_PITCH), records_at(PhaseAxis)
AXES = Phase.BYTES


@inline
def axes_of(phase):
    """The depth, row and column axis of a phase."""
    axes = phase.bases_d_at + AXES
    return _axis_at(axes, 0), _axis_at(axes, 1), _axis_at(axes, 2)


@inline
def tap_range(axis, cell, size):
    """First and last (exclusive) tap that meets one of `size` source cells, for the base whose offset 0 is `cell`."""
    begin = cell + axis.low
    low = min(axis.taps, max(0, -(begin // axis.apart)))
    return low, max(low, min(axis.taps, (size - 1 - begin) // axis.apart + 1))


@inline
def base_range(axis, tap, step, size):
    """First and last (exclusive) base, `step` cells apart, for which a tap meets one of `size` source cells."""
    offset = axis.low + tap * axis.apart
    return -(offset // step), (size - 1 - offset) // step + 1


@inline
def whole_range(axis, step, size):
    """First and last (exclusive) base for which all taps meet a source cell; there may be none between them."""
    high = axis.low + (axis.taps - 1) * axis.apart
    return -(axis.low // step), (size - 1 - high) // step + 1
