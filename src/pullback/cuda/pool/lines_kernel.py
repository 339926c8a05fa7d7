"""What the pooling kernels that make patches share: loading the cells of a line that a patch reads, and storing its results."""

# ruff: noqa: RUF005 (the language of kernels has no unpacking)

import triton
import triton.language as tl

from pullback.cuda.depthwise.lines_kernel import among, entry, joined, side_by_side, size_of
from pullback.cuda.places_kernel import FLAT, LAST, tile_places


@triton.jit
def bases_of_tile(rows, columns, BASES, BR: tl.constexpr, BC: tl.constexpr, IS_LAST: tl.constexpr, WIDE: tl.constexpr):
    """(image, d, h, w, channel, inside) of this program's bases."""
    ORDER: tl.constexpr = LAST if IS_LAST else FLAT
    _, _, image, d, h, w, channel, inside = tile_places(rows, columns, BASES, BR, BC, ORDER, WIDE)
    return image, d, h, w, channel, inside


@triton.jit
def loaded(
    src, line, base, there, width, readable, channels, channel,
    OFFSETS: tl.constexpr, STEP: tl.constexpr, IS_LAST: tl.constexpr, VECTOR: tl.constexpr, OTHER: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """The cells base * STEP + offset of lines, OTHER where there is none; `line` counts lines of the source."""
    COUNT: tl.constexpr = size_of(OFFSETS, 2)
    first = base * STEP
    found = ()
    if IS_LAST or VECTOR == 1:
        place = line * width + first
        for i in tl.static_range(COUNT):
            mask = there & among(first + entry(OFFSETS, 2, i), readable)
            cell = place + entry(OFFSETS, 2, i)
            if IS_LAST:
                cell = cell * channels + channel
            found = found + (tl.load(src + cell, mask=mask, other=OTHER).to(TYPE),)
    else:  # groups of cells that lie whole in the line or beside it
        place = (line * (width // VECTOR) + base * (STEP // VECTOR)) * VECTOR
        for g in tl.static_range(COUNT // VECTOR):
            mask = tl.expand_dims(there & among(first + entry(OFFSETS, 2, g * VECTOR), readable), 2)
            places = tl.expand_dims(place + entry(OFFSETS, 2, g * VECTOR), 2) + tl.arange(0, VECTOR)[None, None, :]
            parts = side_by_side(tl.load(src + places, mask=tl.broadcast_to(mask, places.shape), other=OTHER), VECTOR)
            for i in tl.static_range(VECTOR):
                found = found + (parts[i].to(TYPE),)
    return found


@triton.jit
def store_patch(
    dst, values, image, bd, bh, bw, inside, SIZE, channels, channel, PAIRS: tl.constexpr, CELLS: tl.constexpr,
    IS_LAST: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Store the results of each base at the cells base * CELLS + number."""
    RD: tl.constexpr = size_of(PAIRS, 0)
    RH: tl.constexpr = size_of(PAIRS, 1)
    RW: tl.constexpr = size_of(PAIRS, 2)
    first = bw * CELLS[2]
    for rd in tl.static_range(RD):
        d = bd * CELLS[0] + rd
        for rh in tl.static_range(RH):
            h = bh * CELLS[1] + rh
            there = inside & (d < SIZE[0]) & (h < SIZE[1])
            line = (image * SIZE[0] + d) * SIZE[1] + h
            if IS_LAST or STORE == 1:
                for rw in tl.static_range(RW):
                    place = line * SIZE[2] + first + rw
                    if IS_LAST:
                        place = place * channels + channel
                    value = values[(rd * RH + rh) * RW + rw].to(dst.dtype.element_ty)
                    tl.store(dst + place, value, mask=there & (first + rw < SIZE[2]))
            else:
                place = (line * (SIZE[2] // STORE) + bw * (CELLS[2] // STORE)) * STORE
                for g in tl.static_range(RW // STORE):
                    parts = ()
                    for i in tl.static_range(STORE):
                        parts = parts + (values[(rd * RH + rh) * RW + g * STORE + i].to(dst.dtype.element_ty),)
                    places = tl.expand_dims(place + g * STORE, 2) + tl.arange(0, STORE)[None, None, :]
                    mask = tl.expand_dims(there & (first + g * STORE < SIZE[2]), 2)
                    tl.store(dst + places, joined(parts, STORE), mask=tl.broadcast_to(mask, places.shape))
