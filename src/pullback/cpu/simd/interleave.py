"""Rows in scratch: unpacking a row into padded planes by stride, and interleaving planes back into a row.

A row is `width` cells of `channels` elements. Unpacked, cell q * stride + r is place q of plane r, so that a kernel whose
windows move by `stride` cells reads consecutive places; places outside the row hold a neutral value. Scratch holds the type
that sums are made in ("wide"). Writing a plane may run one vector past its end: rows are unpacked in ascending order, so that
the next row overwrites that, and scratch has a vector of slack. Reading may run past a row too, where more of its array follows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pullback.cpu.simd.runs import make_runs
from pullback.cpu.simd.vectors import inline, outline, stay_outline

# Planes that are split and interleaved by shuffles when cells are single elements.
SHUFFLED_STRIDES = (2, 3, 4)


@cache
def make_every(lanes: Any) -> Any:
    """every(source, target, count, stride): every stride-th element into scratch, by shuffles at strides 2 to 4.

    Nothing is read past the last of them, and nothing else is written.
    """
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    get, put_wide, store_wide, store_wide_some = lanes.get, lanes.put_wide, lanes.store_wide, lanes.store_wide_some
    widen_run, _ = make_runs(lanes)

    def make_split(stride):
        group = lanes.times(stride)
        take, load_group, load_group_some = group.takes[0], group.load, group.load_some

        @inline
        def split(source, target, count):
            j = 0
            while j + V < count:
                store_wide(target + j * WIDE, take(load_group(source + j * stride * SIZE, V * stride)), V)
                j += V
            if j < count:
                reach = (count - 1 - j) * stride + 1
                store_wide_some(target + j * WIDE, take(load_group_some(source + j * stride * SIZE, reach)), count - j)

        return split

    split2, split3, split4 = (make_split(stride) for stride in SHUFFLED_STRIDES)

    @inline
    def every(source, target, count, stride):
        if stride == 1:
            widen_run(source, target, count)
        elif stride == 2:
            split2(source, target, count)
        elif stride == 3:
            split3(source, target, count)
        elif stride == 4:
            split4(source, target, count)
        else:
            for q in range(count):
                put_wide(target + q * WIDE, get(source + q * stride * SIZE))

    return every


@cache
def make_rows(lanes: Any, *, shuffles: bool = False) -> tuple[Any, Any, Any]:
    """(fill, unpack, pack) for one element type; `shuffles` makes rows of single elements quick at strides 2 to 4, at more code."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    widen_run, narrow_run = make_runs(lanes)
    splat, get, put, get_wide, put_wide = lanes.splat, lanes.get, lanes.put, lanes.get_wide, lanes.put_wide
    load, store_wide = lanes.load, lanes.store_wide
    few = lanes.narrow(4)
    F = few.count
    few_load, few_store, few_load_wide, few_store_wide = few.load, few.store, few.load_wide, few.store_wide

    @inline
    def fill(target, count, value):
        """count wide elements set to a value; may run up to a vector past the end."""
        for j in range(0, count, V):
            store_wide(target + j * WIDE, splat(value), V)

    load2, (take20, take21) = lanes.times(2).load, lanes.times(2).takes
    load3, (take30, take31, take32) = lanes.times(3).load, lanes.times(3).takes
    load4, (take40, take41, take42, take43) = lanes.times(4).load, lanes.times(4).takes
    every = make_every(lanes)

    @inline
    def split_all2(source, target, count, distance):
        """`count` elements for each of two planes, or up to a vector more; reads as far as that takes."""
        for j in range(0, count, V):
            cells = load2(source + j * 2 * SIZE, 2 * V)
            store_wide(target + j * WIDE, take20(cells), V)
            store_wide(target + distance + j * WIDE, take21(cells), V)

    @inline
    def split_all3(source, target, count, distance):
        for j in range(0, count, V):
            cells = load3(source + j * 3 * SIZE, 3 * V)
            store_wide(target + j * WIDE, take30(cells), V)
            store_wide(target + distance + j * WIDE, take31(cells), V)
            store_wide(target + 2 * distance + j * WIDE, take32(cells), V)

    @inline
    def split_all4(source, target, count, distance):
        for j in range(0, count, V):
            cells = load4(source + j * 4 * SIZE, 4 * V)
            store_wide(target + j * WIDE, take40(cells), V)
            store_wide(target + distance + j * WIDE, take41(cells), V)
            store_wide(target + 2 * distance + j * WIDE, take42(cells), V)
            store_wide(target + 3 * distance + j * WIDE, take43(cells), V)

    @inline
    def unpack_plane(source, target, count, channels, stride):
        """Cells 0, stride, 2 * stride, ... (count of them) of a row, side by side."""
        if stride == 1:
            widen_run(source, target, count * channels)
        elif shuffles and channels == 1 and stride <= 4:
            every(source, target, count, stride)
        else:
            step = stride * channels
            q = 0
            if channels <= F:
                # A register more than a cell is copied; the next cell overwrites what was too much.
                while q + F < count:
                    few_store_wide(target + q * channels * WIDE, few_load(source + q * step * SIZE, F), F)
                    q += 1
            while q < count:
                if channels >= V:
                    widen_run(source + q * step * SIZE, target + q * channels * WIDE, channels)
                else:
                    for c in range(channels):
                        put_wide(target + (q * channels + c) * WIDE, get(source + (q * step + c) * SIZE))
                q += 1

    @outline
    def unpack(source, target, width, channels, stride, low, places, distance, neutral, limit):
        """A whole row: `stride` planes of `places` cells, `distance` bytes apart, the first of which is number `low`.

        limit: the address where the row's array ends.
        """
        stay_outline()
        begin = min(max(low, 0), low + places)
        most = max(0, min(low + places, (width + stride - 1) // stride) - begin)  # cells of the fullest plane
        start = source + begin * stride * channels * SIZE
        split = shuffles and channels == 1 and stride <= 4
        quick = (stride == 1 or split) and start + (most * channels + V) * stride * SIZE <= limit
        for r in range(stride):
            if begin > low:
                fill(target + r * distance, (begin - low) * channels, neutral)
        inside = target + (begin - low) * channels * WIDE
        if quick:
            if stride == 1:
                for j in range(0, most * channels, V):
                    store_wide(inside + j * WIDE, load(start + j * SIZE, V), V)
            elif shuffles and stride == 2:
                split_all2(start, inside, most, distance)
            elif shuffles and stride == 3:
                split_all3(start, inside, most, distance)
            elif shuffles:
                split_all4(start, inside, most, distance)
        for r in range(stride):
            end = max(begin, min(low + places, (width - r + stride - 1) // stride))
            if not quick:
                unpack_plane(start + r * channels * SIZE, inside + r * distance, end - begin, channels, stride)
            if end < low + places:
                fill(target + r * distance + (end - low) * channels * WIDE, (low + places - end) * channels, neutral)

    def make_interleave(stride):
        group = lanes.times(stride)
        store_group, store_group_some, interleave_planes = group.store, group.store_some, group.interleave

        @inline
        def interleave(planes, target, width, distance):
            """Planes of single elements into a row."""
            j = 0
            while (j + V) * stride <= width:
                store_group(target + j * stride * SIZE, interleave_planes(planes + j * WIDE, distance), V)
                j += V
            if j * stride < width:
                last = interleave_planes(planes + j * WIDE, distance)
                store_group_some(target + j * stride * SIZE, last, width - j * stride)

        return interleave

    interleave2, interleave3, interleave4 = (make_interleave(stride) for stride in SHUFFLED_STRIDES)

    @outline
    def pack(planes, target, width, channels, stride, distance):
        """`stride` planes, `distance` bytes apart, interleaved into one row of `width` cells."""
        stay_outline()
        if stride == 1:
            narrow_run(planes, target, width * channels)
        elif shuffles and channels == 1 and stride == 2:
            interleave2(planes, target, width, distance)
        elif channels == 1 and stride == 3:
            interleave3(planes, target, width, distance)
        elif channels == 1 and stride == 4:
            interleave4(planes, target, width, distance)
        else:
            i = 0
            if channels <= F:
                # In order of the target, so that the next cell overwrites what a register stored too much.
                q = 0
                while (q + 1) * stride + F < width:
                    for r in range(stride):
                        cell = few_load_wide(planes + r * distance + q * channels * WIDE, F)
                        few_store(target + (q * stride + r) * channels * SIZE, cell, F)
                    q += 1
                i = q * stride
            while i < width:
                source = planes + i % stride * distance + i // stride * channels * WIDE
                if channels >= V:
                    narrow_run(source, target + i * channels * SIZE, channels)
                else:
                    for c in range(channels):
                        put(target + (i * channels + c) * SIZE, get_wide(source + c * WIDE))
                i += 1

    return fill, unpack, pack
