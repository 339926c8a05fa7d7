"""What channels_kernel.py and rows_kernel.py are launched with: tiles, chunks of rows, what they are compiled for."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import torch
import triton.language as tl

from pullback.cuda.axes import MOST_KEPT
from pullback.cuda.depthwise.filter_gradient_kernel import add_chunks
from pullback.cuda.launch import MOST_32_BIT, Launch, blocks, power_of_two, tile_of
from pullback.cuda.norm import channels_kernel, rows_kernel

# Measured on an H200, by shares of the speed of a copy.
MOST_CHUNKS, FEW_CHUNKS = 512, 64  # of a sum; a program that merges takes so many at once
CELLS, WARPS = 2048, 4  # of a tile
STAGES = 3  # tiles whose loads are under way while one is summed
STEPS = 4  # tiles of a program that sums nothing
ROW_CELLS, ROW_CHUNKS, ROW_STAGES = 2048, 1024, 1  # the same of whole rows
MERGED_COLUMNS = 8  # channels of a program that merges: a sector of float32
MOST_VECTOR = 16


class Activation(NamedTuple):
    """What follows a normalization: "relu", which may end at `top`, "silu", or nothing."""

    kind: str = ""
    top: float = 0.0

    def options(self) -> dict[str, Any]:
        kinds = {"": channels_kernel.NONE, "relu": channels_kernel.RELU, "silu": channels_kernel.SILU}
        return {"ACT": kinds[self.kind].value, "TOP": self.top}


NOTHING = Activation()


class Channels(NamedTuple):
    """A batch normalization: x as (outer, channels, inner), inner 1 in channels_last, and all that its passes are compiled for."""

    outer: int
    channels: int
    inner: int
    dtype: torch.dtype
    last: bool
    of_channels: torch.dtype = torch.float32  # of scale, shift and the statistics that are kept
    scale: bool = True
    shift: bool = True
    activation: Activation = NOTHING
    adds: bool = False
    batch: bool = True  # whether the statistics are those of the batch
    eps: float = 0.0
    momentum: float = 0.0  # below 0: a share of 1 / batches
    running: bool = False
    counts: bool = False


class Rows(NamedTuple):
    """A layer normalization of the last axis."""

    rows: int
    columns: int
    dtype: torch.dtype
    out: torch.dtype  # of y
    of_columns: torch.dtype = torch.float32  # of scale and shift
    eps: float = 0.0
    scale: bool = True
    shift: bool = True
    sums: bool = True


def sums_of(dtype: torch.dtype) -> torch.dtype:
    """The type that sums are made and statistics are kept in."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _language(dtype: torch.dtype) -> Any:
    return tl.float64 if dtype is torch.float64 else tl.float32


class Tiles(NamedTuple):
    rows: int
    columns: int
    programs_beside: int  # of one chunk
    chunk: int  # rows
    chunks: int


@lru_cache(MOST_KEPT)
def tiles_of(outer: int, channels: int, inner: int, dtype: torch.dtype, last: bool, sums: bool) -> Tiles:
    """How x is cut into chunks, for a pass that sums over them or for one that does not."""
    if last:
        tile = tile_of(outer, channels, dtype.itemsize, CELLS, 128)
        rows, columns, beside, steps = tile.rows, tile.columns, blocks(channels, tile.columns), 1
    else:
        columns = min(power_of_two(inner), 1024)
        rows = min(power_of_two(outer), max(1, CELLS // columns))
        beside, steps = channels, blocks(inner, columns)
    if sums:
        wanted = max(1, min(MOST_CHUNKS // beside if beside < MOST_CHUNKS else 1, blocks(outer * steps, 2 * rows)))
        chunk = blocks(blocks(outer, wanted), rows) * rows
    else:
        chunk = rows * max(1, STEPS // steps)
    return Tiles(rows, columns, beside, chunk, blocks(outer, chunk))


def _pass(kernel: Any, what: Channels, sums: bool, **options: Any) -> Launch:
    """A launch over all of x."""
    tiles = tiles_of(*what[:5], sums)
    vector = gcd(what.channels if what.last else what.inner, MOST_VECTOR)
    channels, inner = (what.channels // vector, 1) if what.last else (what.channels, what.inner // vector)
    options |= {
        "VECTOR": vector, "LAST": what.last, "SUM": _language(what.dtype), "BR": tiles.rows, "BC": tiles.columns,
        "WIDE": what.outer * what.channels * what.inner > MOST_32_BIT,
        "num_warps": max(1, min(WARPS, tiles.rows * tiles.columns // 128)),
    }  # fmt: skip
    return Launch(kernel, tiles.chunks * tiles.programs_beside, (what.outer, tiles.chunk, channels, inner), options)


def chunks_of(what: Channels) -> int:
    return tiles_of(*what[:5], True).chunks


def statistics(what: Channels) -> Launch:
    return _pass(channels_kernel.chunk_statistics, what, True, STAGES=STAGES)


def _merged_rows(chunks: int) -> int:
    """Chunks of a tile: one of two sizes, so that few kernels are compiled."""
    return FEW_CHUNKS if chunks <= FEW_CHUNKS else MOST_CHUNKS


def merging(what: Channels) -> Launch:
    tiles = tiles_of(*what[:5], True)
    options = {
        "EPS": what.eps, "SHIFT": what.shift, "MOMENTUM": what.momentum, "RUNNING": what.running, "COUNTS": what.counts,
        "BR": _merged_rows(tiles.chunks), "BC": MERGED_COLUMNS, "num_warps": 4,
    }  # fmt: skip
    numbers = (what.outer, tiles.chunk, tiles.chunks, what.channels, what.inner)
    return Launch(channels_kernel.merge_statistics, blocks(what.channels, MERGED_COLUMNS), numbers, options)


def taking(what: Channels) -> Launch:
    block = 256
    options = {"EPS": what.eps, "SHIFT": what.shift, "BC": block, "num_warps": 4}
    return Launch(channels_kernel.take_statistics, blocks(what.channels, block), (what.channels,), options)


def normalizing(what: Channels) -> Launch:
    return _pass(channels_kernel.normalize, what, False, ADD=what.adds, SCALE=what.scale, **what.activation.options())


def summing(what: Channels) -> Launch:
    masked = what.activation.kind != "" and what.adds
    options = {"STAGES": STAGES, "BY_Y": masked, "MASKED": masked, "SCALE": what.scale}
    return _pass(channels_kernel.chunk_sums, what, True, **options, **what.activation.options())


def applying(what: Channels) -> Launch:
    """Where the sums have stored what reaches the normalization, nothing is left to do for the activation."""
    activation = NOTHING if what.adds else what.activation
    return _pass(channels_kernel.input_gradient, what, False, BATCH=what.batch, SCALE=what.scale, **activation.options())


class Sums(NamedTuple):
    """Two sums for each of so many columns, in chunks."""

    chunks: int
    columns: int
    dtype: torch.dtype


def adding(what: Sums) -> Launch:
    options = {
        "TAPS": 1, "SUM": _language(what.dtype), "BR": _merged_rows(what.chunks), "BC": MERGED_COLUMNS,
        "num_warps": 4,
    }  # fmt: skip
    columns = 2 * what.columns
    return Launch(add_chunks, blocks(columns, MERGED_COLUMNS), (what.chunks, columns, columns), options)


def _row_options(what: Rows) -> tuple[int, dict[str, Any]]:
    width = power_of_two(what.columns)
    vector = gcd(what.columns, MOST_VECTOR)
    high = max(1, ROW_CELLS // width)
    return vector, {
        "SCALE": what.scale, "VECTOR": vector, "SUM": _language(what.dtype), "BR": high, "BC": width,
        "WIDE": what.rows * what.columns > MOST_32_BIT, "num_warps": max(1, min(16, high * width // 512)),
    }  # fmt: skip


def row_chunk(what: Rows) -> int:
    """Rows of a program of the gradient."""
    _, options = _row_options(what)
    return blocks(blocks(what.rows, ROW_CHUNKS), options["BR"]) * int(options["BR"])


def normalizing_rows(what: Rows) -> Launch:
    vector, options = _row_options(what)
    options |= {"EPS": what.eps, "SHIFT": what.shift}
    programs = blocks(what.rows, options["BR"])
    return Launch(rows_kernel.normalize_rows, programs, (what.rows, what.columns // vector), options)


def gradient_of_rows(what: Rows) -> Launch:
    vector, options = _row_options(what)
    chunk = row_chunk(what)
    numbers = (what.rows, what.columns // vector, chunk)
    return Launch(
        rows_kernel.gradient_of_rows, blocks(what.rows, chunk), numbers, options | {"SUMS": what.sums, "STAGES": ROW_STAGES}
    )
