"""How the direct filter gradient is cut: channels of a piece, cells of a block, parts that are summed apart.

A piece makes the sums of a range of input channels by a range of output channels over a part of the cells, block by block. What a
block reads should stay in the second-level cache, beside the next block, which is on its way, and the sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pullback.cpu.conv.common import even_parts
from pullback.cpu.conv.sweep import Sweep
from pullback.cpu.conv.tuning import (
    BLOCK_CELLS,
    EVEN_BLOCKS,
    FEWER_PIECES,
    MOST_BLOCK_BYTES,
    MOST_PARTS,
    PART_CELLS,
    PARTIAL_BYTES,
    PIECES,
    RANGES_EACH,
)
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.sizes import ceil_div, round_up


@dataclass(frozen=True)
class FilterBlocks:
    """Input channels and blocks of output channels of a piece; images, rows and columns of a block; blocks, parts."""

    range_channels: int
    range_blocks: int
    images: int
    rows: int
    cols: int
    blocks: int
    part_blocks: int
    most_channels: int  # of a range for few threads

    @property
    def parts(self) -> int:
        return ceil_div(self.blocks, self.part_blocks)


class _Cutter:
    """The sizes of a problem, and the ranges of channels as they are cut finer."""

    def __init__(
        self, sweep: Sweep, channels: int, taps: int, merged: int, lanes: int, wide: int, in_place: bool, last: bool
    ) -> None:
        self.sweep, self.channels, self.taps, self.merged, self.lanes, self.wide = sweep, channels, taps, merged, lanes, wide
        self.n_blocks = ceil_div(sweep.target_channels, 2 * lanes)
        # What is packed must serve many sums: the fewer the taps, the more channels on the other side.
        self.range_blocks = self.n_blocks if in_place else even_parts(self.n_blocks, 4 if taps > 4 else 8)
        self.range_channels = channels
        if not in_place and merged == 1:
            self.range_channels = even_parts(channels, 128 if taps > 4 else 256, lanes)
        l2 = machine().l2_bytes
        self.budget = l2 * 3 // 8 if in_place else l2 // 2
        # Cells of x serve several taps, and are read best with all their channels.
        self.favour = 4 if last and taps > 1 else 1
        self.grids = [axis.grid(axis.target_size) for axis in sweep.axes]

    def halve(self) -> bool:
        """Cut the larger range in two, unless both are small."""
        if self.range_blocks * 2 * self.lanes * self.favour >= self.range_channels and self.range_blocks > 1:
            self.range_blocks = even_parts(self.n_blocks, self.range_blocks // 2)
        else:
            return self.halve_channels()
        return True

    def halve_channels(self) -> bool:
        if self.range_channels <= 4 * self.lanes or self.merged > 1:
            return False
        self.range_channels = even_parts(self.channels, self.range_channels // 2, self.lanes)
        return True

    def ranges(self) -> int:
        return self.sweep.groups * ceil_div(self.channels, self.range_channels) * ceil_div(self.n_blocks, self.range_blocks)

    def sums_bytes(self) -> int:
        """Of a piece."""
        return self.taps * self.range_channels * self.range_blocks * 2 * self.lanes * self.wide

    def bytes_of(self, images: int, rows: int, cols: int) -> int:
        """Of dy and of the cells of x that a block reads."""
        d, h, w = self.sweep.axes
        cells = d.source_size
        for axis, grid, count in ((h, self.grids[1], rows), (w, self.grids[2], cols)):
            cells *= ((count - 1) * axis.source_step + axis.high - axis.low) // grid + 1
        y_bytes = d.target_size * rows * cols * self.range_blocks * 2 * self.lanes
        return images * (y_bytes + cells * self.range_channels // self.merged) * self.wide

    def block(self) -> tuple[int, int, int]:
        """Images, rows and columns of the largest block within the budget."""
        _, h, w = self.sweep.axes
        cols = w.target_size
        while cols > 64 and self.bytes_of(1, 1, cols) > self.budget:
            cols = even_parts(w.target_size, cols // 2 if cols > 512 else cols - 16, 16)
        rows = h.target_size
        while rows > 1 and self.bytes_of(1, rows, cols) > self.budget:
            rows = even_parts(h.target_size, rows - 1)
        images = 1
        if rows == h.target_size and cols == w.target_size:
            while images < self.sweep.images and self.bytes_of(images + 1, rows, cols) <= self.budget:
                images += 1
        return even_parts(self.sweep.images, images), rows, cols

    def enough_blocks(self, block: tuple[int, int, int], parts: int, depths: int) -> tuple[int, int]:
        """Images and rows of a block, fewer than these where so many parts would not have as many blocks each."""
        images, rows, cols = block
        _, h, w = self.sweep.axes

        def uneven() -> bool:
            blocks = ceil_div(self.sweep.images, images) * ceil_div(h.target_size, rows) * ceil_div(w.target_size, cols)
            return blocks < EVEN_BLOCKS * parts and blocks % parts > 0

        while parts > 1 and uneven() and images * rows * cols * depths > PART_CELLS:
            if images > 1:
                images = even_parts(self.sweep.images, images - 1)
            elif rows > 1:
                rows = even_parts(h.target_size, rows - 1)
            else:
                break
        return images, rows


def filter_blocks(
    sweep: Sweep, channels: int, taps: int, merged: int, lanes: int, wide: int, in_place: bool, last: bool, threads: int
) -> FilterBlocks:  # fmt: skip
    """For more than four threads with smaller ranges of channels, which cut no sum; blocks and parts are the same for any."""
    cutter = _Cutter(sweep, channels, taps, merged, lanes, wide, in_place, last)
    _, h, w = sweep.axes
    cells = sweep.images * math.prod(axis.target_size for axis in sweep.axes)
    depths = sweep.axes[0].target_size
    sums_bytes = sweep.groups * taps * channels * sweep.target_channels * wide
    work = (
        cells * taps * channels * round_up(sweep.target_channels, lanes) * sweep.groups
    )  # lanes that stay empty take their time
    wanted = min(FEWER_PIECES, 1 + work // (1 << 22)) if in_place else min(PIECES, 1 + work // (1 << 20))
    wanted += wanted % 2 if wanted > 1 else 0  # two threads end together
    images, rows, cols = cutter.block()
    parts, most_parts = 1, 8
    if in_place:
        # Sums are read and written once a block: they should stay in the cache, and serve many cells each time.
        enough, most_sums = min(BLOCK_CELLS, cells), machine().l2_bytes // (8 if taps == 1 else 4)
        while (math.prod(cutter.block()) * depths < enough or cutter.sums_bytes() > most_sums) and cutter.halve():
            pass
        most_parts = max(1, min(MOST_PARTS, cells // PART_CELLS, PARTIAL_BYTES // sums_bytes))
        while cutter.ranges() * most_parts < wanted and cutter.halve():
            pass
        images, rows, cols = cutter.block()
    while cutter.bytes_of(1, rows, cols) > MOST_BLOCK_BYTES:  # it holds whole depths, which may be many
        if cutter.range_channels > lanes and not in_place and merged == 1:
            cutter.range_channels = even_parts(channels, cutter.range_channels // 2, lanes)
        elif cutter.range_blocks > 1:
            cutter.range_blocks = even_parts(cutter.n_blocks, cutter.range_blocks // 2)
        elif cols > 8:
            cols = even_parts(w.target_size, cols // 2)
        else:
            break
        images = 1
    per_range = min(most_parts, PARTIAL_BYTES // sums_bytes, ceil_div(wanted, cutter.ranges()))
    images, rows = cutter.enough_blocks((images, rows, cols), per_range, depths)
    blocks = ceil_div(sweep.images, images) * ceil_div(h.target_size, rows) * ceil_div(w.target_size, cols)
    while cutter.ranges() * parts < wanted and parts < min(most_parts, blocks) and (parts + 1) * sums_bytes <= PARTIAL_BYTES:
        parts += 1
    while cutter.ranges() * parts < wanted and (cutter.halve() if in_place else cutter.halve_channels()):
        pass
    part_blocks, range_channels = ceil_div(blocks, parts), cutter.range_channels
    while threads > 4 and cutter.ranges() * parts < RANGES_EACH * threads and cutter.halve():
        pass
    return FilterBlocks(
        cutter.range_channels, cutter.range_blocks, images, rows, cols, blocks, part_blocks, range_channels
    )  # fmt: skip
