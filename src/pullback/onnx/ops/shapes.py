"""The same values in another shape: Reshape, Transpose, Concat, Split, Slice, Expand, Tile, Pad, DepthToSpace and their like."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.onnx.executor.memory import empty, memory_order
from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.arguments import axes_of, axis_of, ints, refused, scalar, take
from pullback.rules import Array

SLICE_BY_INPUTS = 10
PAD_BY_INPUTS = 11
LISTS_BY_INPUTS = 13  # since when Squeeze, Unsqueeze and Split take their lists as inputs
EQUAL_PARTS = 18  # since when Split has num_outputs, with a last part that may be smaller


@op("Identity", views=(0,))
def identity(node: Node, x: Array) -> Array:
    return x


def reshaped(node: Node, x: Array, shape: tuple[int, ...], *, zero_copies: bool) -> tuple[int, ...]:
    """A shape with its zeros (the input's size) and its -1 (the rest) made numbers."""
    if zero_copies:
        if any(n == 0 and axis >= x.ndim for axis, n in enumerate(shape)):
            raise refused(node, f"shape {list(shape)} copies a size that {x.shape} lacks", "set allowzero or mend the shape")
        shape = tuple(x.shape[axis] if n == 0 else n for axis, n in enumerate(shape))
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        fits = shape.count(-1) == 1 and known and x.size % known == 0
        shape = tuple(x.size // known if n == -1 else n for n in shape) if fits else shape
    if math.prod(shape) != x.size or any(n < 0 for n in shape):
        raise refused(node, f"values of shape {x.shape} do not fit into {list(shape)}", "feed the shape the model was made for")
    return shape


@op("Reshape", views=(0,), sized_by=(1,))
def reshape(node: Node, x: Array, shape: Array) -> Array:
    return x.reshape(reshaped(node, x, ints(shape), zero_copies=not node.attr("allowzero", 0)))


@op("Flatten", views=(0,))
def flatten(node: Node, x: Array) -> Array:
    axis = node.attr("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Transpose", views=(0,))
def transpose(node: Node, x: Array) -> Array:
    return x.transpose(node.attr("perm"))


def _list(node: Node, given: Array | None, name: str, since: int) -> tuple[int, ...] | None:
    """A list that is an attribute before an opset and an input since."""
    value = node.attr(name) if node.opset < since and given is None else given
    return None if value is None else ints(value)


@op("Squeeze", views=(0,), sized_by=(1,))
def squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    wanted = _list(node, axes, "axes", LISTS_BY_INPUTS)
    if wanted is None:
        return x.squeeze()
    return x.squeeze(axes_of(node, wanted, x.ndim))


@op("Unsqueeze", views=(0,), sized_by=(1,))
def unsqueeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    wanted = _list(node, axes, "axes", LISTS_BY_INPUTS) or ()
    return np.expand_dims(x, axes_of(node, wanted, x.ndim + len(wanted)))


@op("Expand", views=(0,), sized_by=(1,))
def expand(node: Node, x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, ints(shape)))


@op("Concat")
def concat(node: Node, *arrays: Array) -> Array:
    first = arrays[0]
    axis = axis_of(node, node.attr("axis", 1), first.ndim)
    shape = (*first.shape[:axis], sum(array.shape[axis] for array in arrays), *first.shape[axis + 1 :])
    order, back = memory_order(max(arrays, key=lambda array: array.size))
    joined = empty(tuple(shape[place] for place in order), first.dtype).transpose(back)
    return np.concatenate(arrays, axis=axis, out=joined)


def part_sizes(node: Node, size: int, given: Array | None) -> tuple[int, ...]:
    """The sizes of Split's outputs."""
    sizes = _list(node, given, "split", LISTS_BY_INPUTS)
    if sizes is None:
        count = node.attr("num_outputs", len(node.outputs))
        each = -(-size // count)
        if node.opset < EQUAL_PARTS and size % count:
            raise refused(node, f"an axis of {size} cannot be split into {count} equal parts", "give the sizes in `split`")
        sizes = (*(each,) * (count - 1), size - each * (count - 1))
    if sum(sizes) != size:
        raise refused(
            node, f"the parts {list(sizes)} do not make up an axis of {size}", "feed the shape the model was made for"
        )
    return sizes


@op("Split", views=(0,), sized_by=(1,))
def split(node: Node, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    axis = axis_of(node, node.attr("axis", 0), x.ndim)
    ends = np.cumsum(part_sizes(node, x.shape[axis], sizes))
    return tuple(np.split(x, ends[:-1], axis=axis))


def slices(
    node: Node, rank_of: Array, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> tuple[slice, ...]:
    """What Slice takes of each axis."""
    if node.opset < SLICE_BY_INPUTS:
        starts, ends, axes = node.attr("starts"), node.attr("ends"), node.attr("axes")
    first, last = ints(starts), ints(ends)
    along = range(len(first)) if axes is None else ints(axes)
    by = (1,) * len(first) if steps is None else ints(steps)
    taken = [slice(None)] * rank_of.ndim
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        place = axis_of(node, axis, rank_of.ndim)
        n = rank_of.shape[place]
        if step > 0:
            taken[place] = slice(start, end, step)
        elif step == 0:
            raise refused(node, "a step is 0", "give steps other than 0")
        else:  # Python would take a start before the first cell for no cell at all
            begin = min(max(start + n if start < 0 else start, 0), n - 1)
            stop = end + n if end < 0 else end
            taken[place] = slice(begin, None if stop < 0 else stop, step) if n else slice(0, 0)
    return tuple(taken)


@op("Slice", views=(0,), sized_by=(1, 2, 3, 4))
def slice_of(
    node: Node, x: Array, starts: Array | None = None, ends: Array | None = None, axes: Array | None = None,
    steps: Array | None = None,
) -> Array:  # fmt: skip
    return x[slices(node, x, starts, ends, axes, steps)]


@op("Tile", sized_by=(1,))
def tile(node: Node, x: Array, repeats: Array) -> Array:
    return np.tile(x, ints(repeats))


def pad_widths(node: Node, rank: int, pads: Array | None = None, axes: Array | None = None) -> list[tuple[int, int]]:
    """How much Pad adds before and behind each axis; negative numbers take away."""
    numbers = ints(node.attr("pads") if node.opset < PAD_BY_INPUTS else pads)
    along = range(rank) if axes is None else [axis_of(node, axis, rank) for axis in ints(axes)]
    widths = [(0, 0)] * rank
    for place, axis in enumerate(along):
        widths[axis] = numbers[place], numbers[place + len(along)]
    return widths


def padded_cells(mode: str, n: int, low: int, high: int) -> npt.NDArray[np.int64]:
    """The cell of an axis of n that each cell of the padded axis copies, for every mode but constant."""
    places = np.arange(-low, n + high, dtype=np.int64)
    if mode == "edge":
        return places.clip(0, n - 1)
    if mode == "wrap":
        return places % n
    around = places % max(2 * (n - 1), 1)
    return np.minimum(around, 2 * (n - 1) - around)


def pad_mode(node: Node) -> str:
    mode: str = node.attr("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise refused(node, f"mode is {mode!r}", "the modes are constant, reflect, edge and wrap")
    return mode


@op("Pad", sized_by=(1, 3))
def pad(node: Node, x: Array, pads: Array | None = None, value: Array | None = None, axes: Array | None = None) -> Array:
    widths, mode = pad_widths(node, x.ndim, pads, axes), pad_mode(node)
    if mode != "constant":
        for axis, (low, high) in enumerate(widths):
            if low or high:
                x = take(x, padded_cells(mode, x.shape[axis], low, high), axis)
        return x
    shape = tuple(n + low + high for n, (low, high) in zip(x.shape, widths, strict=True))
    order, back = memory_order(x)
    result = empty(tuple(shape[axis] for axis in order), x.dtype).transpose(back)
    result.fill(scalar(value, node.attr("value", 0)))
    kept = tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(x.shape, widths, strict=True))
    inside = tuple(slice(max(low, 0), n - max(high, 0)) for n, (low, high) in zip(shape, widths, strict=True))
    result[inside] = x[kept]
    return result


@op("DepthToSpace", views=(0,))
def depth_to_space(node: Node, x: Array) -> Array:
    """(b b c) channels, or (c b b) in mode CRD, into blocks of b x b cells."""
    n, channels, height, width = x.shape
    b = node.attr("blocksize")
    if node.attr("mode", "DCR") == "DCR":
        parts, axes = x.reshape(n, b, b, channels // (b * b), height, width), (0, 3, 4, 1, 5, 2)
    else:
        parts, axes = x.reshape(n, channels // (b * b), b, b, height, width), (0, 1, 4, 2, 5, 3)
    return parts.transpose(axes).reshape(n, channels // (b * b), height * b, width * b)


@op("SpaceToDepth", views=(0,))
def space_to_depth(node: Node, x: Array) -> Array:
    n, channels, height, width = x.shape
    b = node.attr("blocksize")
    parts = x.reshape(n, channels, height // b, b, width // b, b)
    axes = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.transpose(axes).reshape(n, channels * b * b, height // b, width // b)
