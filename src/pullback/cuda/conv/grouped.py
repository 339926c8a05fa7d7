"""Grouped convolutions of few channels a group on a GPU: what `gather_kernel` and `filter_kernel` are launched with."""

from __future__ import annotations

from typing import Any

import torch

from pullback.cuda.axes import Axes, Three, axes_of
from pullback.cuda.conv import filter_kernel, gather_kernel, plan
from pullback.cuda.conv.common import Bundle, bundle_of, filter_strides, new_filter, one_tap_stride, precision
from pullback.cuda.launch import blocks, is_wide, launch
from pullback.problem import Problem

PACKED = 1024  # weights a program packs
SUMS = 6  # of bases in registers: rows of a box times phases
CHUNK_PROGRAMS = 132 * 16


def _rows(cells: int, most: int, taps: int) -> int:
    """Rows of a box along the height: those that share most with little waste at the end."""
    if taps == 1:
        return 1
    found = 1
    for rows in range(2, most + 1):
        if blocks(cells, rows) * rows <= 1.15 * cells:
            found = rows
    return found


def _geometry(axes: Axes) -> dict[str, Any]:
    return {"K": axes.kernel, "S": axes.stride, "D": axes.dilation, "LAST": axes.last}


def _packed(problem: Problem, axes: Axes, filter: torch.Tensor, bundle: Bundle, forward: bool) -> torch.Tensor:
    strides = filter_strides(problem, filter)
    step = one_tap_stride(strides, axes.kernel)
    if step is None:
        filter = filter.contiguous()
        strides = filter_strides(problem, filter)
        step = one_tap_stride(strides, axes.kernel)
    packed = filter.new_empty((bundle.count, axes.taps, bundle.rows, bundle.columns))
    launch(
        gather_kernel.pack_groups, blocks(packed.numel(), PACKED), filter, packed, packed.numel(), problem.groups, step,
        *strides[3:], T=axes.taps, BUNDLE=bundle.groups, A=bundle.a, B=bundle.b, KI=bundle.rows, NO=bundle.columns,
        FORWARD=forward, LAST=axes.last, BLOCK=PACKED, num_warps=4,
    )  # fmt: skip
    return packed


def _gather(
    problem: Problem, found: plan.Gather, src: torch.Tensor, packed: torch.Tensor, filter: torch.Tensor, dst: torch.Tensor,
    bundle: Bundle, forward: bool, shift: Three,
) -> None:  # fmt: skip
    axes = axes_of(problem)
    sizes = (axes.size, axes.readable, axes.out, axes.out) if forward else (axes.out, axes.out, axes.size, axes.readable)
    channels = (problem.channels_in, problem.channels_out) if forward else (problem.channels_out, problem.channels_in)
    cells = found.bases(sizes[2])
    bases = problem.batch * cells[0] * cells[1] * cells[2]
    bp = 32
    launch(
        gather_kernel.gather, blocks(bases, bp) * bundle.count, src, packed, filter, dst, bases, cells, *sizes, shift, axes.low,
        *channels, channels[0], *filter_strides(problem, filter), BOX=found.box, FIRST=found.first, EXTENT=found.extent,
        INNER=found.inner, STEP=found.step, LOADS=found.loads, T=axes.taps, BLOCKS=1, AHEAD=min(3, len(found.loads)),
        BUNDLE=bundle.groups, A=bundle.a, B=bundle.b, KI=bundle.rows, NO=bundle.columns, FULL=bundle.full, GROUPED=True,
        FORWARD=forward, PRECISION=precision(src), BP=bp, WIDE=is_wide(src, dst), num_warps=1, num_stages=1, **_geometry(axes),
    )  # fmt: skip


def conv(problem: Problem, x: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
    axes, bundle = axes_of(problem), bundle_of(problem, True)
    x = x.contiguous()
    y = x.new_empty(problem.output_shape)
    found = plan.forward(problem, _rows(axes.out[1], 4 if axes.taps <= 16 else 1, axes.kernel[1]))
    _gather(problem, found, x, _packed(problem, axes, filter, bundle, True), filter, y, bundle, True, axes.low)
    return y


def conv_grad_input(problem: Problem, dy: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
    axes, bundle = axes_of(problem), bundle_of(problem, False)
    dy = dy.contiguous()
    dx = dy.new_empty(problem.input_shape)
    packed = _packed(problem, axes, filter, bundle, False)
    phases = axes.stride[0] * axes.stride[1] * axes.stride[2]
    most = max(1, SUMS // phases) if axes.taps <= 16 else 1
    rows = _rows(blocks(axes.size[1], axes.stride[1]), min(4, most), axes.kernel[1])
    for found in plan.input_gradient(problem, rows):
        _gather(problem, found, dy, packed, filter, dx, bundle, False, (0, 0, 0))
    return dx


def _part(found: plan.Gather, first: int, end: int) -> plan.Loads:
    """The loads of the taps first .. end - 1, counted from the first."""
    loads = ((offset, tuple((q, tap - first) for q, tap in uses if first <= tap < end)) for offset, uses in found.loads)
    return tuple((offset, uses) for offset, uses in loads if uses)


def _most_taps(axes: Axes, bundle: Bundle, warps: int) -> int:
    """Taps whose sums one program has in registers: of whole rows of the window, if a row fits."""
    most = max(1, 3200 * warps // (bundle.rows * bundle.columns))
    for unit in (axes.kernel[1] * axes.kernel[2], axes.kernel[2]):
        if unit <= most:
            return most // unit * unit
    return most


def conv_grad_filter(problem: Problem, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    axes, bundle = axes_of(problem), bundle_of(problem, True)
    dy, x = dy.contiguous(), x.contiguous()
    memory, dw = new_filter(problem, dy)
    found = plan.forward(problem, _rows(axes.out[1], 4 if axes.taps <= 16 else 1, axes.kernel[1]))
    cells = found.bases(axes.out)
    bases = problem.batch * cells[0] * cells[1] * cells[2]
    bp = 32
    tiles = blocks(bases, bp)
    chunks = min(tiles, max(1, CHUNK_PROGRAMS // bundle.count), 512)
    chunk_tiles = blocks(tiles, chunks)
    chunks = blocks(tiles, chunk_tiles)
    warps = 1 if bundle.rows * bundle.columns <= 256 else 2
    most = _most_taps(axes, bundle, warps)
    for tap in range(0, axes.taps, most):
        count = min(most, axes.taps - tap)
        partials = x.new_empty((chunks, bundle.count, count, bundle.rows, bundle.columns), dtype=torch.float32)
        launch(
            filter_kernel.chunk_sums, chunks * bundle.count, x, dy, partials, bases, chunk_tiles, bundle.count, cells, axes.size,
            axes.readable, axes.out, axes.low, problem.channels_in, problem.channels_out, tap, EXTENT=found.extent, STEP=found.step,
            LOADS=_part(found, tap, tap + count), T=count, BUNDLE=bundle.groups, A=bundle.a, B=bundle.b, KI=bundle.rows,
            NO=bundle.columns, FULL=bundle.full, PRECISION=precision(x), BP=bp, WIDE=is_wide(x, dy), num_warps=warps,
            num_stages=1, **_geometry(axes),
        )  # fmt: skip
        total = bundle.count * count * bundle.a * bundle.groups * bundle.b
        launch(
            filter_kernel.add_chunks, blocks(total, 32), partials, memory, chunks, total, bundle.count, problem.groups, tap, axes.taps,
            T=count, BUNDLE=bundle.groups, A=bundle.a, B=bundle.b, KI=bundle.rows, NO=bundle.columns, BC=32, BE=32,
            PRECISION=precision(x), num_warps=4,
        )  # fmt: skip
    return dw
