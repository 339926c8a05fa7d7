"""An array of shape (N, C, *spatial) as its memory has it: outer x channels x inner elements, and how that is cut into pieces.

Over all axes but the channels' everything is summed or treated alike, so their order does not matter: any array without gaps is of
this form. Channels that are innermost make rows, others planes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pullback.cpu.elementwise.common import piece_bytes
from pullback.cpu.engine.dense import Order, dense
from pullback.cpu.engine.pieces import slack
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.records import Record
from pullback.cpu.engine.sizes import LINE, ceil_div, round_up
from pullback.cpu.engine.words import float_word
from pullback.cpu.machine_code.variants import Variant
from pullback.cpu.norm.records import Merge, Planes, Rows
from pullback.rules import Array

LEAST_WIDTH = 2048  # bytes: narrower rows are taken several at once
MOST_WIDTH = 3584  # rows 4 KiB apart would meet in the same places of the first-level cache
LEAST_ROWS = 32  # of a piece, so that its own sums are little beside it
BLOCK = 64  # elements that the blocks of a plane are a multiple of
MERGED = 64  # channels of a piece of merging


class Shape(NamedTuple):
    """What plans are made for; hashable."""

    dtype: np.dtype[Any]
    outer: int
    channels: int
    inner: int

    @property
    def form(self) -> str:
        return "rows" if self.inner == 1 else "planes"

    @property
    def terms(self) -> int:
        """Elements of a channel."""
        return self.outer * self.inner

    @property
    def nbytes(self) -> int:
        return self.terms * self.channels * self.dtype.itemsize


def seen(op: str, x: Array) -> tuple[Array, Order, Shape]:
    """The array (or a copy without gaps), its memory order and its shape as plans see it."""
    if x.ndim < 2 or not x.size:
        raise ValueError(f"{op}: x must have the shape (N, C, ...) and elements, not the shape {x.shape}")
    given, order = dense(x)
    return given, order, shape_of(order, x.shape[1], x.dtype)


def shape_of(order: Order, channels: int, dtype: np.dtype[Any]) -> Shape:
    """The shape of an array that lies in this order."""
    place = order.axes.index(1)
    outer, inner = math.prod(order.memory_shape[:place]), math.prod(order.memory_shape[place + 1 :])
    return Shape(dtype, outer, channels, inner)


def top_word(top: float | None) -> int:
    """What a ReLU ends at, as records have it: no number is above NaN."""
    return float_word(math.nan if top is None else top)


def per_channel(op: str, name: str, values: Array, shape: Shape) -> Array:
    """A contiguous array of one number for each channel."""
    array = np.ascontiguousarray(values if values.dtype == shape.dtype else values.astype(shape.dtype))
    if array.shape != (shape.channels,):
        raise ValueError(
            f"{op}: {name} must have the shape ({shape.channels},), one number for each channel, not {array.shape}"
        )
    return array


def _copies(rows: int, row_bytes: int) -> int:
    """How many rows are taken as one: a divisor of all that makes narrow ones wide, best of all of whole cache lines."""
    fitting = [count for count in range(1, max(1, MOST_WIDTH // row_bytes) + 1) if rows % count == 0]
    wide = [count for count in fitting if count * row_bytes >= LEAST_WIDTH]
    whole = [count for count in wide if count * row_bytes % LINE == 0]
    return min(whole, default=min(wide, default=fitting[-1]))


def cut(shape: Shape, arrays: int) -> tuple[dict[str, int], int]:
    """(the fields of Rows or Planes, pieces) of a pass over so many arrays."""
    size, target = shape.dtype.itemsize, piece_bytes(arrays * shape.nbytes)
    if shape.inner == 1:
        copies = _copies(shape.outer, shape.channels * size)
        rows, width = shape.outer // copies, copies * shape.channels
        per_piece = max(LEAST_ROWS, target // (arrays * width * size))
        fields = {
            "rows": rows, "per_piece": per_piece, "width": width, "channels": shape.channels, "copies": copies,
            "row_bytes": round_up(width * size, LINE) + slack(),
        }  # fmt: skip
        return fields, ceil_div(rows, per_piece)
    most = max(BLOCK, target // (arrays * size))
    block = min(shape.inner, round_up(ceil_div(shape.inner, ceil_div(shape.inner, most)), BLOCK))
    blocks = ceil_div(shape.inner, block)
    units = shape.outer * shape.channels * blocks
    per_piece = max(1, most // block)
    fields = {
        "units": units, "per_piece": per_piece, "blocks": blocks, "block": block, "inner": shape.inner, "channels": shape.channels,
    }  # fmt: skip
    return fields, ceil_div(units, per_piece)


def pass_plan(
    module: str, kernel: str, kind: tuple[type[Rows], type[Planes]], shape: Shape, arrays: int, rows: int = 0
) -> Plan:
    """A plan of a pass over arrays of this shape, all of its addresses given at the call; `rows`: how many lie in scratch."""
    fields, pieces = cut(shape, arrays)
    record: type[Record] = kind[0] if shape.inner == 1 else kind[1]
    given = {name: None for name, _ in record.FIELDS} | fields
    variant = Variant(f"norm.{module}", f"{kernel}{shape.form}", shape.dtype.name)
    return make_plan(variant, record, pieces, rows * fields.get("row_bytes", 0), arrays * shape.nbytes, given)


class Sums(NamedTuple):
    """Two jobs: partial sums of pieces, and their merging; how many numbers lie between them."""

    partial: Plan
    merge: Plan
    numbers: int


def sums_plans(module: str, partial: Plan, merge: type[Merge], shape: Shape, arrays: int, kinds: int) -> Sums:
    """The job that merges what a pass over `arrays` arrays has left, `kinds` numbers of each channel and group."""
    fields, pieces = cut(shape, arrays)
    if shape.inner == 1:
        per_piece, copies, width = fields["per_piece"], fields["copies"], fields["width"]
        groups = blocks = pieces
        last = fields["rows"] - (pieces - 1) * per_piece
    else:
        per_piece, copies, width, blocks = fields["block"], 1, shape.channels, fields["blocks"]
        groups, last = shape.outer * blocks, shape.inner - (blocks - 1) * per_piece
    numbers = groups * kinds * width
    given = {name: None for name, _ in merge.FIELDS} | {
        "groups": groups, "blocks": blocks, "full": per_piece, "last": last, "width": width, "channels": shape.channels,
        "copies": copies, "count": shape.terms, "block": MERGED,
    }  # fmt: skip
    variant = Variant(f"norm.{module}", "merge", shape.dtype.name)
    merging = make_plan(variant, merge, ceil_div(shape.channels, MERGED), 0, numbers * shape.dtype.itemsize, given)
    return Sums(partial, merging, numbers)
