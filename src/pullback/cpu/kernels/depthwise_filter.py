"""Filter gradient of grouped convolution, channels_last, with vectors of output channels.

Each (tap, part, output channel) sums source times dy over all output cells. A piece takes a range of output rows and adds to sums
of its own, (tap and part, output channel) in the compute type; `add` then adds the pieces' sums in their order. Behind the sums
lies room for one tap more, where tiles with more taps than are left put what nobody asked for.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.kernels.groups import make_spread
from pullback.cpu.kernels.native import fill_zero
from pullback.cpu.kernels.tiles import PAIR, make_products_tile
from pullback.cpu.kernels.vectors import get_int, inline, outline, put_int, stay_outline

MOST = 9  # taps of a tile


def make_run(lanes: Any, group: Any, masked: bool, wide_source: bool, wide_other: bool) -> Any:
    """All taps of a list over a run of cells, in tiles of 1, 3, 5, 7 or 9."""

    def make(taps: int) -> Any:
        tile = make_products_tile(group, taps, masked, wide_source, wide_other)

        @outline
        def outlined(source, other, sums, n, entries, count, source_step, other_step):
            stay_outline()
            tile(source, other, sums, n, entries, count, source_step, other_step)

        return outlined

    one, three, five, seven, nine = (make(taps) for taps in (1, 3, 5, 7, 9))

    @inline
    def run(source, other, sums, n, entries, taps, count, source_step, other_step):
        """The entry after the last must be that of a tap nobody asked for."""
        t = 0
        while t < taps:
            left = taps - t
            tiles = (left + MOST - 1) // MOST
            size = (left + tiles - 1) // tiles | 1
            at = entries + t * PAIR
            if size == 9:
                nine(source, other, sums, n, at, count, source_step, other_step)
            elif size == 7:
                seven(source, other, sums, n, at, count, source_step, other_step)
            elif size == 5:
                five(source, other, sums, n, at, count, source_step, other_step)
            elif size == 3:
                three(source, other, sums, n, at, count, source_step, other_step)
            else:
                one(source, other, sums, n, at, count, source_step, other_step)
            t += size

    return run


@inline
def list_taps(entries: int, e0: int, e1: int, row_pairs: int, k0: int, k1: int, col_pairs: int, spare: int) -> int:
    """Write the (source, sum) offsets of all taps of a row, then those of the spare tap; how many taps there are."""
    taps = 0
    for e in range(e0, e1):
        for k in range(k0, k1):
            put_int(entries + taps * PAIR, get_int(row_pairs + e * PAIR) + get_int(col_pairs + k * PAIR))
            put_int(entries + taps * PAIR + 8, get_int(row_pairs + e * PAIR + 8) + get_int(col_pairs + k * PAIR + 8))
            taps += 1
    if taps:
        put_int(entries + taps * PAIR, get_int(entries))
        put_int(entries + taps * PAIR + 8, spare)
    return taps


def make_add(lanes: Any) -> Any:
    """The job that adds the sums of all pieces."""
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load_wide_some, store_some, splat = lanes.load_wide_some, lanes.store_some, lanes.splat

    def add(piece, scratch, sums, result, pieces, distance, block, count):
        for j in range(piece * block, min(piece * block + block, count), V):
            n = min(V, count - j)
            total = splat(0.0)
            for p in range(pieces):
                total = total + load_wide_some(sums + p * distance + j * WIDE, n)
            store_some(result + j * SIZE, total, n)

    return add


def build(lanes: Any) -> dict[str, Any]:
    V, SIZE, WIDE = lanes.count, lanes.size, lanes.compute_size
    load_some, load_wide_some, store_wide_some, fma = lanes.load_some, lanes.load_wide_some, lanes.store_wide_some, lanes.fma
    pair = lanes.times(2)
    P = pair.count
    run_pair = make_run(lanes, pair, False, False, False)
    run_last = make_run(lanes, lanes, True, False, False)
    run_block = make_run(lanes, lanes, True, True, False)
    spread = make_spread(lanes)

    @outline
    def one_column(source, other, sums, channels, entries, taps):
        """The taps of a column at the end of a row."""
        stay_outline()
        for t in range(taps):
            at, place = source + get_int(entries + t * PAIR), sums + get_int(entries + t * PAIR + 8)
            for c in range(0, channels, V):
                n = min(V, channels - c)
                product = fma(
                    load_some(at + c * SIZE, n), load_some(other + c * SIZE, n), load_wide_some(place + c * WIDE, n)
                )
                store_wide_some(place + c * WIDE, product, n)

    def direct(
        piece, scratch, source, dy, sums, block, images, rows, source_image, other_row, channels, sums_bytes, spare,
        row_ptr, row_pairs, count, middle, end, k0, k1, ends, col_pairs, source_step, other_step,
    ):  # fmt: skip
        own = sums + piece * sums_bytes
        fill_zero(own, sums_bytes)
        for row in range(piece * block, min(piece * block + block, images * rows)):
            image, r = row // rows, row % rows
            x, other = source + image * source_image, dy + row * other_row
            e0, e1 = get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8)
            taps = list_taps(scratch, e0, e1, row_pairs, k0, k1, col_pairs, spare)
            first, second = x + middle * source_step, other + middle * other_step
            c = 0
            while c + P <= channels:
                run_pair(
                    first + c * SIZE, second + c * SIZE, own + c * WIDE, P, scratch, taps, end - middle, source_step, other_step
                )
                c += P
            while c < channels:
                run_last(
                    first + c * SIZE, second + c * SIZE, own + c * WIDE, min(V, channels - c), scratch, taps, end - middle,
                    source_step, other_step,
                )  # fmt: skip
                c += V
            j = 0
            while j < count:
                if j == middle and end > middle:
                    j = end
                    continue
                taps = list_taps(
                    scratch, e0, e1, row_pairs, get_int(ends + 16 * j), get_int(ends + 16 * j + 8), col_pairs, spare
                )
                one_column(x + j * source_step, other + j * other_step, own, channels, scratch, taps)
                j += 1

    def grouped(
        piece, scratch, source, dy, sums, group, units, blocks, block_rows, need_ptr, need_row, rows, source_rows,
        source_row, other_row, channels, step, source_channels, source_cols, sources_each, targets_each, parts, permuted, orders,
        low, places, area_row, area_start, sums_bytes, spare, row_ptr, row_pairs, count, k0, k1, col_pairs,
        source_step, other_step,
    ):  # fmt: skip
        own, area = sums + piece * sums_bytes, scratch + area_start
        fill_zero(own, sums_bytes)
        for unit in range(piece * group, min(piece * group + group, units)):
            image, b = unit // blocks, unit % blocks
            first, last = get_int(block_rows + 8 * b), get_int(block_rows + 8 * b + 8)
            n0, n1 = get_int(need_ptr + 8 * b), get_int(need_ptr + 8 * b + 8)
            x = source + image * source_rows * source_row
            for c in range(0, channels, step):
                n = min(step, channels - c)
                for i in range(n0, n1):
                    spread(
                        x + get_int(need_row + 8 * i) * source_row, area + (i - n0) * area_row, c, n,
                        source_channels, source_cols, sources_each, targets_each, parts, permuted, orders, low, places,
                    )  # fmt: skip
                for r in range(first, last):
                    e0, e1 = get_int(row_ptr + 8 * r), get_int(row_ptr + 8 * r + 8)
                    taps = list_taps(scratch, e0, e1, row_pairs, k0, k1, col_pairs, spare)
                    run_block(
                        area, dy + (image * rows + r) * other_row + c * SIZE, own + c * WIDE, n, scratch, taps, count,
                        source_step, other_step,
                    )  # fmt: skip

    return {"direct": direct, "grouped": grouped, "add": make_add(lanes)}
