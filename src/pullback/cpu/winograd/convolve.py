"""Plans of the Winograd convolution and input gradient: the transformed filter, and blocks of tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from pullback.cpu.conv.filter_order import TAPS_LAST, FilterOrder
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned_for_threads
from pullback.cpu.engine.records import WORD
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up
from pullback.cpu.winograd import tuning
from pullback.cpu.winograd.blocks import depths_of_block, filter_fields, tile_fields, tiles_of_block, variant
from pullback.cpu.winograd.records import TAPS, Convolve, TransformFilter
from pullback.cpu.winograd.shapes import Shape, register_tile, shape_of
from pullback.problem import Problem


@dataclass(frozen=True)
class Packed:
    """Where the transformed filter lies: panels of as many results as the register tile is wide, point after point."""

    panel: int  # output channels
    packed_point_pitch: int  # bytes
    panel_pitch: int
    packed_group_pitch: int
    total: int

    def fields(self) -> dict[str, int | None]:
        return vars(self) | {"packed": None}


def packed_filter(shape: Shape) -> Packed:
    panel = register_tile(shape.out_channels, shape.lanes)[1] * shape.lanes
    point_pitch = shape.k_blocks * shape.in_channels * panel * shape.sum_bytes + machine().vector_bytes
    panel_pitch = shape.points * point_pitch
    group_pitch = ceil_div(shape.out_channels, panel) * panel_pitch
    return Packed(panel, point_pitch, panel_pitch, group_pitch, group_pitch * shape.groups + machine().vector_bytes)


def _filter_plan(problem: Problem, shape: Shape, flipped: bool, order: FilterOrder, cut: Cut) -> Plan:
    """The filter, which lies in memory in this order, transformed."""
    packed, fields = packed_filter(shape), filter_fields(problem, shape, order, flipped)
    chunks, stage_start = ceil_div(shape.in_channels, tuning.FILTER_CHUNK), round_up(WORD * TAPS**2, LINE)
    scratch = stage_start + (1 + fields["taps"] * tuning.FILTER_CHUNK + 2 * shape.lanes) * machine().vector_bytes
    inner = fields["in_channel_pitch"] < fields["out_channel_pitch"]
    compiled = variant(
        problem, shape, "convolve", "transform_filter", taps_last=order == TAPS_LAST, in_channels_inner=inner
    )  # fmt: skip
    part = (cut.panel_block if cut.panels_apart else ceil_div(shape.out_channels, packed.panel)) * packed.panel
    parts = ceil_div(shape.out_channels, part)
    given = fields | packed.fields() | {
        "chunk": tuning.FILTER_CHUNK, "chunks": chunks, "parts": parts, "part_channels": part, "stage_start": stage_start,
    }  # fmt: skip
    return make_plan(compiled, TransformFilter, chunks * parts * shape.groups, scratch, packed.total, given)


@dataclass(frozen=True)
class Cut:
    """Tile positions and panels of results of a piece, and the bytes of a transformed tile's channels.

    k_chunk: input channels of the filter that are transformed at a time, just ahead of their products; 0: all of it before.
    panels_apart: a thread has panels of its own, which it transforms itself, and tiles of all positions.
    """

    block: int
    panel_block: int
    tile_pitch: int
    k_chunk: int
    panels_apart: bool = False


def cut_convolution(shape: Shape, threads: int = 2) -> Cut:
    """For two threads as it is cheapest; for more with so many pieces that they end together."""
    tile_pitch = round_up(shape.in_channels, shape.lanes) * shape.sum_bytes
    depth_block, slots = depths_of_block(shape)
    tile_bytes = shape.points * tile_pitch * slots * shape.tap_blocks
    block = tiles_of_block(
        shape, tile_bytes, depth_block, int(machine().l2_bytes * tuning.CONVOLVE_CACHE), tuning.CONVOLVE_TILES
    )
    others, packed = shape.groups * ceil_div(shape.target.depth, depth_block), packed_filter(shape)
    blocks, panels = ceil_div(shape.positions, block) * others, ceil_div(shape.out_channels, packed.panel)
    cut = Cut(block, ceil_div(panels, ceil_div(tuning.FEWEST_PIECES, blocks)), tile_pitch, 0)
    ahead = blocks // shape.groups <= tuning.AHEAD_BLOCKS and packed.total > machine().l2_bytes * tuning.AHEAD_CACHE
    if shape.k_blocks == 1 and ahead:
        point_bytes = packed.panel * shape.sum_bytes
        most = max(tuning.FILTER_CHUNK, int(machine().l2_bytes * tuning.CHUNK_CACHE) // (shape.points * point_bytes))
        chunks = ceil_div(shape.in_channels, most)
        cut = Cut(block, 1, tile_pitch, round_up(ceil_div(shape.in_channels, chunks), tuning.FILTER_CHUNK))
    elif _panels_apart(shape, packed.total, panels):
        cut = replace(cut, panel_block=min(cut.panel_block, ceil_div(panels, 2)), panels_apart=True)
    return cut if threads <= 2 else _cut_for(shape, threads, others, cut, panels)


def _panels_apart(shape: Shape, packed_bytes: int, panels: int) -> bool:
    """Whether transforming the tiles once for each block of panels costs less than fetching what another core has transformed."""
    tiles = shape.positions * shape.target.depth * shape.points * shape.tap_blocks * shape.in_channels
    return shape.groups == 1 and panels > 1 and packed_bytes > tuning.PANELS_APART * tiles * shape.sum_bytes


def _cut_for(shape: Shape, threads: int, others: int, cut: Cut, panels: int) -> Cut:
    """No larger blocks and no more panels of a piece, with which the last of so many threads is done first. No sum is cut.

    Each block loads the filter, or transforms it, and with fewer panels in a piece tiles are transformed more often.
    """
    numbers = range(ceil_div(shape.positions, cut.block), ceil_div(shape.positions, tuning.FEWEST_SHARED_TILES) + 1)
    sizes = {cut.block} | {round_up(ceil_div(shape.positions, blocks), shape.dilation[2]) for blocks in numbers}
    terms = shape.k_blocks * shape.in_channels
    read = shape.tap_blocks * ceil_div(shape.in_channels, shape.lanes) * tuning.READ
    panel = register_tile(shape.out_channels, shape.lanes)[1] * (terms + tuning.TERMS + tuning.WRITE)
    loading = tuning.PANEL_TILES + (tuning.FILTER if cut.k_chunk else 0)

    def cost(block: int, panel_block: int) -> int:
        pieces = others * ceil_div(shape.positions, block) * ceil_div(panels, panel_block)
        return ceil_div(pieces, threads) * (block * read + (block + loading) * panel_block * panel)

    shares = {1} if cut.k_chunk else {ceil_div(panels, parts) for parts in range(1, panels + 1)}
    best = min(product(sizes, shares), key=lambda both: (cost(*both), -both[0], -both[1]))
    return replace(cut, block=best[0], panel_block=best[1])


def _transform_fields(filter: Plan, packed: Packed, shape: Shape, k_chunk: int, start: int) -> tuple[dict[str, Any], int]:
    """The fields of Convolve with which a piece transforms the filter itself, and the bytes of scratch with theirs."""
    if not k_chunk:
        names = ("transform", "transform_record", "k_chunk", "record_start", "transform_start", "packed_start")
        return dict.fromkeys(names, 0), start
    transform_start = round_up(start + TransformFilter.BYTES, LINE)
    packed_start = transform_start + round_up(filter.scratch_bytes, LINE)
    chunk_bytes = shape.points * (k_chunk * packed.panel * shape.sum_bytes + machine().vector_bytes) + machine().vector_bytes
    return {
        "transform": filter.code.address, "transform_record": filter.template, "k_chunk": k_chunk, "record_start": start,
        "transform_start": transform_start, "packed_start": packed_start,
    }, packed_start + round_up(chunk_bytes, LINE)  # fmt: skip


def _convolve_plan(problem: Problem, shape: Shape, filter: Plan, cut: Cut) -> Plan:
    """The products, from the transformed filter."""
    packed, vector_bytes = packed_filter(shape), machine().vector_bytes
    depth_block, slots = depths_of_block(shape)
    products_start = round_up(shape.points * (shape.tap_blocks * slots * cut.block * cut.tile_pitch + vector_bytes), LINE)
    products = shape.points * (depth_block * cut.block * packed.panel * shape.sum_bytes + vector_bytes)
    zeros = max(shape.in_channels, packed.panel) * shape.item_bytes
    tiles, scratch = tile_fields(problem, shape, cut.block, products_start + round_up(products, LINE), shape.k_blocks, zeros)
    transform, scratch = _transform_fields(filter, packed, shape, cut.k_chunk, round_up(scratch, LINE))
    panel_blocks = ceil_div(shape.out_channels, cut.panel_block * packed.panel)
    given = tiles | packed.fields() | transform | {
        "x": None, "y": None, "nonfinite": None, "filter": None, "weights_nonfinite": None, "panel_blocks": panel_blocks,
        "panel_block": cut.panel_block, "panels_apart": int(cut.panels_apart), "tile_pitch": cut.tile_pitch,
        "products_start": products_start,
    }  # fmt: skip
    rows, vectors = register_tile(shape.out_channels, shape.lanes)
    channels_first = problem.layout == "channels_first"
    compiled = variant(problem, shape, "convolve", "convolve", channels_first=channels_first, rows=rows, vectors=vectors)
    pieces = tiles["blocks"] * tiles["depth_blocks"] * panel_blocks * shape.groups
    moved = shape.batch * (shape.source.image_pitch + shape.target.image_pitch) + packed.total
    return make_plan(compiled, Convolve, pieces, scratch, moved, given)


class Part(NamedTuple):
    """The plans of some output channels, and where these begin in the filter and in the target, in bytes."""

    filter: Plan
    convolve: Plan
    filter_start: int
    target_start: int


@dataclass(frozen=True)
class ConvolvePlans:
    """Part after part: transform its filter into memory of `packed_bytes`, then multiply; where the first source cell lies.

    Of no bytes: `convolve` transforms it on the way.
    """

    parts: tuple[Part, ...]
    packed_bytes: int
    source_start: int
    leaves_cells: bool  # whether some cells of the target are not written


def part_channels(shape: Shape, threads: int = 2) -> int:
    """Output channels whose transformed filter takes no more memory than it may, in panels: all parts use the same.

    More threads want larger parts, so that each has pieces enough.
    """
    packed, most = packed_filter(shape), tuning.MOST_PACKED_BYTES * max(1, threads // 2)
    if shape.groups > 1 or packed.total <= most:
        return shape.out_channels
    panels = ceil_div(shape.out_channels, packed.panel)
    parts = ceil_div(panels, max(1, most // packed.panel_pitch))
    return ceil_div(panels, parts) * packed.panel


@planned_for_threads
def convolve_plans(threads: int, problem: Problem, flipped: bool, order: FilterOrder) -> ConvolvePlans:
    shape = shape_of(problem, flipped)
    assert shape is not None
    ahead = cut_convolution(shape, threads).k_chunk > 0
    each, parts, packed_bytes = shape.out_channels if ahead else part_channels(shape, threads), [], 0
    channel_pitch = filter_fields(problem, shape, order, flipped)["out_channel_pitch"]
    for first in range(0, shape.out_channels, each):
        part = replace(shape, out_channels=min(each, shape.out_channels - first))
        cut = cut_convolution(part, threads)
        transform = _filter_plan(problem, part, flipped, order, cut)
        target_start = shape.target.start_bytes + first * shape.target.channel_pitch
        parts.append(Part(transform, _convolve_plan(problem, part, transform, cut), first * channel_pitch, target_start))
        packed_bytes = max(packed_bytes, packed_filter(part).total)
    leaves_cells = flipped and any(s > 1 for s in problem.window.stride)
    return ConvolvePlans(tuple(parts), 0 if ahead else packed_bytes, shape.source.start_bytes, leaves_cells)
