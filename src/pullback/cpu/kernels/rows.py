"""Rows in scratch: unpacking a row into padded planes by stride, and weaving planes back into a row.

A row is `width` cells of `channels` elements. Unpacked, cell q * stride + r is place q of plane r, so that a kernel whose
windows move by `stride` cells reads consecutive places; places outside the row hold a neutral value. Scratch holds the type
that sums are made in ("wide"). Writing a plane may run one vector past its end: rows are unpacked in ascending order, so that
the next row mends that, and scratch has a vector of slack. Reading may run past a row too, where more of its array follows.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.vectors import inline, outline, stay_outline


def make_rows(lanes: Any) -> tuple[Any, Any, Any]:
    """(fill, unpack, pack) for one element type."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    splat, get, put, get_wide, put_wide = lanes.splat, lanes.get, lanes.put, lanes.get_wide, lanes.put_wide
    load, load_some, store, store_some = lanes.load, lanes.load_some, lanes.store, lanes.store_some
    load_wide, store_wide = lanes.load_wide, lanes.store_wide
    few = lanes.narrow(4)
    F = few.count
    few_load, few_store, few_load_wide, few_store_wide = few.load, few.store, few.load_wide, few.store_wide

    @inline
    def fill(target, count, value):
        """count wide elements set to a value; may run up to a vector past the end."""
        for j in range(0, count, V):
            store_wide(target + j * WIDE, splat(value), V)

    @inline
    def widen_run(source, target, count):
        """Consecutive elements into scratch, reading none past the end."""
        j = 0
        while j + V <= count:
            store_wide(target + j * WIDE, load(source + j * SIZE, V), V)
            j += V
        if j < count:
            store_wide(target + j * WIDE, load_some(source + j * SIZE, count - j), V)

    @inline
    def narrow_run(source, target, count):
        """Consecutive elements out of scratch, writing none past the end."""
        j = 0
        while j + V <= count:
            store(target + j * SIZE, load_wide(source + j * WIDE, V), V)
            j += V
        if j < count:
            store_some(target + j * SIZE, load_wide(source + j * WIDE, V), count - j)

    @inline
    def unpack_plane(source, target, count, channels, stride):
        """Cells 0, stride, 2 * stride, ... (count of them) of a row, side by side."""
        if stride == 1:
            widen_run(source, target, count * channels)
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
        start, inside = source + begin * stride * channels * SIZE, (begin - low) * channels * WIDE
        for r in range(stride):
            plane = target + r * distance
            end = max(begin, min(low + places, (width - r + stride - 1) // stride))
            if begin > low:
                fill(plane, (begin - low) * channels, neutral)
            count = (end - begin) * channels
            if stride == 1 and start + (count + V) * SIZE <= limit:
                for j in range(0, count, V):
                    store_wide(plane + inside + j * WIDE, load(start + j * SIZE, V), V)
            else:
                unpack_plane(start + r * channels * SIZE, plane + inside, end - begin, channels, stride)
            if end < low + places:
                fill(plane + (end - low) * channels * WIDE, (low + places - end) * channels, neutral)

    def make_weave(stride):
        group = lanes.times(stride)
        store_group, store_group_some, weave_planes = group.store, group.store_some, group.weave

        @inline
        def weave(planes, target, width, distance):
            """Planes of single elements into a row."""
            j = 0
            while (j + V) * stride <= width:
                store_group(target + j * stride * SIZE, weave_planes(planes + j * WIDE, distance), V)
                j += V
            if j * stride < width:
                last = weave_planes(planes + j * WIDE, distance)
                store_group_some(target + j * stride * SIZE, last, width - j * stride)

        return weave

    weave3, weave4 = make_weave(3), make_weave(4)

    @outline
    def pack(planes, target, width, channels, stride, distance):
        """`stride` planes, `distance` bytes apart, woven into one row of `width` cells."""
        stay_outline()
        if stride == 1:
            narrow_run(planes, target, width * channels)
        elif channels == 1 and stride == 3:
            weave3(planes, target, width, distance)
        elif channels == 1 and stride == 4:
            weave4(planes, target, width, distance)
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
