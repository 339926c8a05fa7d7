"""Grouped convolutions of few channels a group on a GPU: what `gather_kernel` and `filter_kernel` are launched with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch

from pullback.cuda.axes import MOST_KEPT, Axes, axes_of
from pullback.cuda.conv import filter_kernel, gather_kernel, plan
from pullback.cuda.conv.common import Bundle, bundle_of, filter_strides, new_filter, one_tap_stride, precision
from pullback.cuda.launch import Launch, blocks, is_wide, launch
from pullback.problem import Problem

PACKED = 1024  # weights a program packs
SUMS = 6  # of bases in registers: rows of a box times phases
SHARED_TAPS = 16  # up to which the rows of a box share their windows' rows: beyond, the code would grow too long
CHUNK_PROGRAMS = 132 * 16
FILTER_SUMS = 3200  # of a warp in registers, in filter gradients
ADDED = 64  # weights a program adds the chunks of


def _most_rows(problem: Problem) -> int:
    """Rows of a box at most: those whose sums and factors fit in the registers of a warp."""
    if problem.window.tap_count > SHARED_TAPS:
        return 1
    bundle = bundle_of(problem, True)
    return 4 if problem.layout == "channels_last" and bundle.rows * bundle.columns <= 256 else 2


def _rows(cells: int, most: int, taps: int) -> int:
    """Rows of a box along the height: those that share most with little waste at the end."""
    if taps == 1:
        return 1
    return max(rows for rows in range(1, most + 1) if rows == 1 or blocks(cells, rows) * rows <= 1.15 * cells)


def _geometry(axes: Axes) -> dict[str, Any]:
    return {"K": axes.kernel, "S": axes.stride, "D": axes.dilation, "LAST": axes.last}


def _matrix(bundle: Bundle) -> dict[str, Any]:
    return {"BUNDLE": bundle.groups, "A": bundle.a, "B": bundle.b, "KI": bundle.rows, "NO": bundle.columns}


@lru_cache(MOST_KEPT)
def _gathers(problem: Problem, forward: bool) -> tuple[plan.Gather, ...]:
    """What is launched one after the other."""
    axes, most = axes_of(problem), _most_rows(problem)
    if forward:
        return (plan.forward(problem, _rows(axes.out[1], most, axes.kernel[1])),)
    most = min(max(1, SUMS // prod(axes.stride)), most)
    return plan.input_gradient(problem, _rows(blocks(axes.size[1], axes.stride[1]), most, axes.kernel[1]))


@dataclass(frozen=True)
class _Pack:
    """The weights as one matrix a bundle and tap."""

    forward: bool
    strides: tuple[int, ...]

    def __call__(self, problem: Problem) -> Launch:
        axes, bundle = axes_of(problem), bundle_of(problem, self.forward)
        total = bundle.bundles * axes.taps * bundle.rows * bundle.columns
        step = one_tap_stride(self.strides, axes.kernel)
        return Launch(
            gather_kernel.pack_groups, blocks(total, PACKED), (total, problem.groups, step, *self.strides[3:]),
            {"T": axes.taps, **_matrix(bundle), "FORWARD": self.forward, "BLOCK": PACKED, "num_warps": 4},
        )  # fmt: skip


@dataclass(frozen=True)
class _Gather:
    """One of `_gathers`."""

    forward: bool
    number: int
    strides: tuple[int, ...]
    precision: str

    def __call__(self, problem: Problem) -> Launch:
        axes, bundle, forward = axes_of(problem), bundle_of(problem, self.forward), self.forward
        found = _gathers(problem, forward)[self.number]
        sizes = (axes.size, axes.readable, axes.out, axes.out) if forward else (axes.out, axes.out, axes.size, axes.readable)
        channels = (problem.channels_in, problem.channels_out)[:: 1 if forward else -1]
        cells = found.bases(sizes[2])
        bases = problem.batch * prod(cells)
        bp = 32 if problem.dtype.itemsize == 2 else 16  # of as many bytes: the parts of float32's products take the registers
        shift = axes.low if forward else (0, 0, 0)
        return Launch(
            gather_kernel.gather, blocks(bases, bp) * bundle.bundles,
            (bases, cells, *sizes, shift, axes.low, *channels, channels[0], *self.strides, 1),
            {
                **_geometry(axes), **_matrix(bundle), "BOX": found.box, "FIRST": found.first, "EXTENT": found.extent,
                "INNER": found.inner, "STEP": found.step, "LOADS": found.loads, "T": axes.taps,
                "AHEAD": min(3, len(found.loads)), "FULL": bundle.full, "GROUPED": True, "FORWARD": forward,
                "PRECISION": self.precision, "BP": bp, "WIDE": is_wide(problem), "num_warps": 1, "num_stages": 1,
            },
        )  # fmt: skip


def _run(problem: Problem, src: torch.Tensor, filter: torch.Tensor, shape: tuple[int, ...], forward: bool) -> torch.Tensor:
    axes, bundle = axes_of(problem), bundle_of(problem, forward)
    strides = filter_strides(problem, filter)
    if one_tap_stride(strides, axes.kernel) is None:
        return _run(problem, src, filter.contiguous(), shape, forward)
    src = src.contiguous()
    dst = src.new_empty(shape)
    packed = filter.new_empty((bundle.bundles, axes.taps, bundle.rows, bundle.columns))
    launch(_Pack(forward, strides), problem, filter, packed)
    for number in range(len(_gathers(problem, forward))):
        launch(_Gather(forward, number, strides, precision(problem)), problem, src, packed, filter, dst)
    return dst


def conv(problem: Problem, x: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
    return _run(problem, x, filter, problem.output_shape, True)


def conv_grad_input(problem: Problem, dy: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
    return _run(problem, dy, filter, problem.input_shape, False)


def _part(found: plan.Gather, first: int, end: int) -> plan.Loads:
    """The loads of the taps first .. end - 1, counted from the first."""
    loads = ((offset, tuple((q, tap - first) for q, tap in uses if first <= tap < end)) for offset, uses in found.loads)
    return tuple((offset, uses) for offset, uses in loads if uses)


class _Chunks(NamedTuple):
    """How a filter gradient is split: chunks of outputs, and taps whose sums one program has in registers."""

    found: plan.Gather
    tile: int
    chunk_tiles: int
    chunks: int
    taps: int
    warps: int


@lru_cache(MOST_KEPT)
def _chunks(problem: Problem, programs: int) -> _Chunks:
    axes, bundle, item = axes_of(problem), bundle_of(problem, True), problem.dtype.itemsize
    found = plan.forward(problem, _rows(axes.out[1], min(_most_rows(problem), 8 // item), axes.kernel[1]))
    tile = 32 if axes.last and item == 2 else 16
    tiles = blocks(problem.batch * prod(found.bases(axes.out)), tile)
    chunk_tiles = blocks(tiles, min(tiles, max(1, programs // bundle.bundles), 512))
    warps = 1 if bundle.rows * bundle.columns <= 256 else 2
    most = max(1, FILTER_SUMS * warps // (bundle.rows * bundle.columns))
    for unit in (axes.kernel[1] * axes.kernel[2], axes.kernel[2]):  # whole rows of the window, if a row fits
        if unit <= most:
            most = most // unit * unit
            break
    return _Chunks(found, tile, chunk_tiles, blocks(tiles, chunk_tiles), min(most, axes.taps), warps)


@dataclass(frozen=True)
class _Products:
    """The sums of every chunk, of some taps from `tap` on."""

    tap: int
    programs: int
    precision: str

    def __call__(self, problem: Problem) -> Launch:
        axes, bundle, chunks = axes_of(problem), bundle_of(problem, True), _chunks(problem, self.programs)
        found, taps = chunks.found, min(chunks.taps, axes.taps - self.tap)
        cells = found.bases(axes.out)
        return Launch(
            filter_kernel.chunk_sums, chunks.chunks * bundle.bundles,
            (
                problem.batch * prod(cells), chunks.chunk_tiles, bundle.bundles, cells, axes.size, axes.readable, axes.out,
                axes.low, problem.channels_in, problem.channels_out, self.tap,
            ),
            {
                **_geometry(axes), **_matrix(bundle), "EXTENT": found.extent, "STEP": found.step,
                "LOADS": _part(found, self.tap, self.tap + taps), "T": taps, "FULL": bundle.full, "PRECISION": self.precision,
                "BP": chunks.tile, "WIDE": is_wide(problem), "num_warps": chunks.warps, "num_stages": 1,
            },
        )  # fmt: skip


@dataclass(frozen=True)
class _Added:
    """The sums of all chunks of those taps."""

    tap: int
    programs: int
    precision: str

    def __call__(self, problem: Problem) -> Launch:
        axes, bundle, chunks = axes_of(problem), bundle_of(problem, True), _chunks(problem, self.programs)
        taps = min(chunks.taps, axes.taps - self.tap)
        total = bundle.bundles * taps * bundle.a * bundle.groups * bundle.b
        return Launch(
            filter_kernel.add_chunks, blocks(total, ADDED),
            (chunks.chunks, total, bundle.bundles, problem.groups, self.tap, axes.taps),
            {"T": taps, **_matrix(bundle), "BC": 32, "BE": ADDED, "PRECISION": self.precision, "num_warps": 4},
        )  # fmt: skip


def conv_grad_filter(problem: Problem, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    axes, bundle, chunks = axes_of(problem), bundle_of(problem, True), _chunks(problem, CHUNK_PROGRAMS)
    dy, x = dy.contiguous(), x.contiguous()
    memory, dw = new_filter(problem, dy)
    for tap in range(0, axes.taps, chunks.taps):
        taps, how = min(chunks.taps, axes.taps - tap), (tap, CHUNK_PROGRAMS, precision(problem))
        partials = x.new_empty((chunks.chunks, bundle.bundles, taps, bundle.rows, bundle.columns), dtype=torch.float32)
        launch(_Products(*how), problem, x, dy, partials)
        launch(_Added(*how), problem, partials, memory)
    return dw
