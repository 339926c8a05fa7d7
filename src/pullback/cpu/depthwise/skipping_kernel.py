"""What depthwise_planes does where weights or gradients are not finite, and so must not meet the zeros beyond a plane's ends.

A block is then made row by row, each with the taps that meet a row of the source there, in the lanes that meet a column.
"""

from __future__ import annotations

from typing import Any

from pullback.cpu.depthwise.tiles_kernel import PAIR, make_products_tile
from pullback.cpu.simd.register_tiles import FRESH, make_masked_tiles
from pullback.cpu.simd.vectors import get_int, inline, outline, put_int, stay_outline

# An entry of the phase table: its taps in the table of pairs, the taps of a column and where their ends are, the same of a row.
PHASE = 6 * 8
END = 16  # bytes of an entry of the table of ends: first and last (exclusive) row or column for which a tap meets a cell
SUMS = 9  # taps of a products tile


@inline
def met(ends: int, tap: int, row: int) -> bool:
    return get_int(ends + tap * END) <= row < get_int(ends + tap * END + 8)


@inline
def taps_of_row(ends: int, taps: int, row: int) -> tuple[int, int]:
    """First and last (exclusive) tap that meets a row of the source; those between them do, too."""
    low, high = 0, taps
    while low < high and not met(ends, low, row):
        low += 1
    while low < high and not met(ends, high - 1, row):
        high -= 1
    return low, high


@inline
def put_range(ranges: int, ends: int, tap: int) -> None:
    """The columns for which a tap meets one, as first and how many."""
    first = get_int(ends + tap * END)
    put_int(ranges, first)
    put_int(ranges + 8, get_int(ends + tap * END + 8) - first)


def make_sum_rows(lanes: Any, most_outs: int) -> Any:
    """sum_rows: some rows of places of up to `most_outs` targets."""
    V, WIDE = lanes.count, lanes.compute_size
    tiles = make_masked_tiles(lanes, most_outs, 2)

    @outline
    def sum_rows(
        source, target, weights, outs, rows, row0, cols, areas, area_pairs, phase, tap_pairs, tap_ends, weight_step, target_step,
        pitch, entries, most,
    ):  # fmt: skip
        """row0: number of the first row among the phase's. entries: memory for lists of up to `most` taps."""
        stay_outline()
        first, row_taps, columns = get_int(phase), get_int(phase + 16), get_int(phase + 32)
        row_ends, column_ends = tap_ends + get_int(phase + 24) * END, tap_ends + get_int(phase + 40) * END
        a_at, b_at, ranges = entries, entries + 8 * most, entries + 16 * most
        count, listed_low, listed_high = 0, -1, -1
        for r in range(rows):
            low, high = taps_of_row(row_ends, row_taps, row0 + r)
            if low != listed_low or high != listed_high:
                count, listed_low, listed_high = 0, low, high
                for e in range(areas):
                    for k in range(low * columns, high * columns):
                        area, pair = area_pairs + e * PAIR, tap_pairs + (first + k) * PAIR
                        put_int(b_at + 8 * count, get_int(area) + get_int(pair))
                        put_int(a_at + 8 * count, get_int(area + 8) + get_int(pair + 8))
                        put_range(ranges + 16 * count, column_ends, k % columns)
                        count += 1
            for j in range(0, cols, 2 * V):
                at = r * pitch + j * WIDE
                tiles(
                    outs, weights, a_at, count, 1, weight_step, 0, source + at, b_at, 1, 0, target + at, target_step,
                    min(2 * V, cols - j), FRESH, ranges, j,
                )  # fmt: skip

    return sum_rows


def make_sum_products(lanes: Any) -> Any:
    """sum_products: the products of some rows of dy with what their taps meet, added to a vector of sums for each weight."""
    V, WIDE = lanes.count, lanes.compute_size

    def make_products(taps: int) -> Any:
        tile = make_products_tile(lanes, taps, 1, False, True, True)

        @outline
        def products(source, other, sums, entries, count, ranges, lines, pitch):
            stay_outline()
            tile(source, other, sums, V, entries, count, 0, 0, V * WIDE, V * WIDE, ranges, lines, pitch)

        return products

    products_one, products_three, products_nine = (make_products(taps) for taps in (1, 3, SUMS))

    @outline
    def sum_products(
        source, other, sums, rows, row0, cols, areas, area_pairs, phase, tap_pairs, tap_ends, pitch, entries, ranges, spare
    ):  # fmt: skip
        """spare: where the sums go, from `sums` on, of what a tile does beyond the last tap."""
        stay_outline()
        row_taps, columns = get_int(phase + 16), get_int(phase + 32)
        row_ends, column_ends = tap_ends + get_int(phase + 24) * END, tap_ends + get_int(phase + 40) * END
        length, r = (cols + V - 1) // V, 0
        while r < rows:
            low, high = taps_of_row(row_ends, row_taps, row0 + r)
            end, alike = r + 1, 1
            while end < rows and alike:  # rows that the same taps meet
                next_low, next_high = taps_of_row(row_ends, row_taps, row0 + end)
                alike = int(next_low == low and next_high == high)
                end += alike
            total = 0
            for e in range(areas):
                for k in range(low * columns, high * columns):
                    area, pair = area_pairs + e * PAIR, tap_pairs + k * PAIR
                    put_int(entries + total * PAIR, get_int(area) + get_int(pair))
                    put_int(entries + total * PAIR + 8, (get_int(area + 8) + get_int(pair + 8)) * V)
                    put_range(ranges + 16 * total, column_ends, k % columns)
                    total += 1
            for more in range(total, total + 2):
                put_int(entries + more * PAIR, 0)
                put_int(entries + more * PAIR + 8, spare)
                put_int(ranges + 16 * more, 0)
                put_int(ranges + 16 * more + 8, 0)
            at, dy, lines = source + r * pitch, other + r * pitch, end - r
            t = 0
            while t < total:
                entry, lanes_at = entries + t * PAIR, ranges + 16 * t
                if total - t >= SUMS:
                    products_nine(at, dy, sums, entry, length, lanes_at, lines, pitch)
                    t += SUMS
                elif total - t > 1:
                    products_three(at, dy, sums, entry, length, lanes_at, lines, pitch)
                    t += 3
                else:
                    products_one(at, dy, sums, entry, length, lanes_at, lines, pitch)
                    t += 1
            r = end

    return sum_products
