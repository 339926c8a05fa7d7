"""Which taps of an axis meet a source cell: arithmetic on the words that a plan keeps of each axis of a phase (conv_sweep).

Words of an axis: how many taps; the lowest offset, and the distance of offsets; whether offsets fall from tap to tap; where the
cells of the first tap lie from the first place of a base in bytes, and the distance from tap to tap there.
"""

from __future__ import annotations

from pullback.cpu.simd.vectors import get_int, inline

AXIS_WORDS = 6


@inline
def tap_range(axis: int, cell: int, size: int) -> tuple[int, int]:
    """First and last (exclusive) tap that meets one of `size` source cells, for the base whose offset 0 is `cell`."""
    taps, begin, apart = get_int(axis), cell + get_int(axis + 8), get_int(axis + 16)
    low = min(taps, max(0, -(begin // apart)))
    high = max(low, min(taps, (size - 1 - begin) // apart + 1))
    return (taps - high, taps - low) if get_int(axis + 24) else (low, high)


@inline
def base_range(axis: int, tap: int, step: int, size: int) -> tuple[int, int]:
    """First and last (exclusive) base, `step` cells apart, for which a tap meets one of `size` source cells."""
    number = get_int(axis) - 1 - tap if get_int(axis + 24) else tap
    offset = get_int(axis + 8) + number * get_int(axis + 16)
    return -(offset // step), (size - 1 - offset) // step + 1


@inline
def whole_range(axis: int, step: int, size: int) -> tuple[int, int]:
    """First and last (exclusive) base for which all taps meet a source cell; there may be none between them."""
    low = get_int(axis + 8)
    high = low + (get_int(axis) - 1) * get_int(axis + 16)
    return -(low // step), (size - 1 - high) // step + 1


@inline
def tap_place(axis: int, tap: int) -> int:
    return get_int(axis + 32) + tap * get_int(axis + 40)
