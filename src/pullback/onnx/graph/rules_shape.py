"""Gradients of nodes that move, cut, pick and repeat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from pullback.onnx.graph.emit import Value
from pullback.onnx.graph.tensor_type import TensorType
from pullback.onnx.graph.view import NodeView, reduced_to

END = np.iinfo(np.int64).max
RESIZE = ("antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "keep_aspect_ratio_policy",
          "mode", "nearest_mode")  # fmt: skip


def reshape(n: NodeView) -> Value:
    return n.g.reshape(n.dy, n.x)


def transpose(n: NodeView) -> Value:
    perm = n.attr("perm") or list(range(n.rank()))[::-1]
    return n.op.Transpose(n.dy, perm=[perm.index(axis) for axis in range(len(perm))])


def concat(n: NodeView) -> Sequence[Value | None]:
    axis = n.attr("axis")
    sizes = [each.shape[axis] if each and each.shape is not None else None for each in n.inputs]
    if len(sizes) == 1:
        return [n.dy]
    if all(isinstance(size, int) for size in sizes):
        split = n.g.constant(sizes)
    else:
        axis_alone = n.g.constant([axis])
        split = n.op.Concat(*(n.op.Gather(n.g.shape_of(each), axis_alone) for each in n.inputs if each), axis=0)
    return n.g.all_of("Split", "", (n.dy, split), len(sizes), axis=axis)


def split(n: NodeView) -> Value:
    """The gradients of the parts side by side, zeros for parts that the loss does not depend on."""
    parts = []
    for place, dy in enumerate(n.dys):
        if dy is None:
            y = n.g.value(n.node.outputs[place]) if n.node.outputs[place] else None
            if y is None:
                raise n.refuse("an output without a name stands between those in use")
            dy = n.op.Expand(n.zero(n.x), n.g.shape_of(y))
        parts.append(dy)
    return n.op.Concat(*parts, axis=n.attr("axis", 0)) if len(parts) > 1 else parts[0]


def slice_(n: NodeView) -> Value:
    return n.ms.SliceGrad(n.dy, n.g.shape_of(n.x), *n.inputs[1:])


def gather(n: NodeView) -> Value:
    return n.ms.GatherGrad(n.g.shape_of(n.x), n.b, n.dy, **n.attributes("axis"))


def gather_elements(n: NodeView) -> Value:
    return n.ms.GatherElementsGrad(n.dy, n.g.shape_of(n.x), n.b, **n.attributes("axis"))


def gather_nd(n: NodeView) -> Value:
    return n.ms.GatherNDGrad(n.g.shape_of(n.x), n.b, n.dy, batch_dims=n.attr("batch_dims", 0))


def top_k(n: NodeView) -> Value:
    places = n.output(1, "_places", TensorType(TensorProto.INT64, n.y.shape))
    return n.ms.GatherElementsGrad(n.dy, n.g.shape_of(n.x), places, axis=n.attr("axis", -1))


def scatter_into(n: NodeView) -> Value:
    """ScatterElements and ScatterND, of what is scattered into: nothing where it was written over."""
    reduction = n.attr("reduction", "none")
    if reduction == "add":
        return n.dy
    if reduction != "none":
        raise n.refuse(f"reduction {reduction!r} has no gradient here")
    zeros = n.op.Expand(n.zero(n.x), n.g.shape_of(n.input(2)))
    return (n.op.ScatterND if n.node.op_type == "ScatterND" else n.op.ScatterElements)(n.dy, n.b, zeros, **n.attributes("axis"))


def scattered(n: NodeView) -> Value:
    """ScatterElements and ScatterND, of the values that are scattered."""
    if n.attr("reduction", "none") not in ("none", "add"):
        raise n.refuse(f"reduction {n.attr('reduction')!r} has no gradient here")
    if n.node.op_type == "ScatterND":
        return n.op.GatherND(n.dy, n.b)
    return n.op.GatherElements(n.dy, n.b, **n.attributes("axis"))


def expand(n: NodeView) -> Value:
    return reduced_to(n.g, n.dy, n.x, n.y)


def tile(n: NodeView) -> Value:
    """Each axis as (repeats, size), and the sum over the repeats."""
    repeats, shape = n.constant(1), n.x.shape
    if repeats is None or shape is None:
        raise n.unknown("what it repeats")
    sizes: list[int] = []
    summed = []
    for repeat, size in zip(repeats.tolist(), shape, strict=True):
        if repeat != 1:
            summed.append(len(sizes))
            sizes.append(repeat)
        sizes.append(size if isinstance(size, int) else -1)
    if sizes.count(-1) > 1:
        raise n.unknown("more than one size of its input")
    return n.g.sum_over(n.op.Reshape(n.dy, n.g.constant(sizes)), summed, keepdims=False) if summed else n.dy


def pad(n: NodeView) -> Value:
    """Constant padding is cut off again; other modes add what lies in the padding to where it was copied from."""
    if n.attr("mode", "constant") != "constant":
        return n.own.PadGrad(n.dy, n.b, n.given(3), mode=n.attr("mode"), shape_of=n.x.name)
    pads, axes = n.constant(1), n.constant(3)
    along = list(range(n.rank())) if n.given(3) is None else None if axes is None else axes.tolist()
    if pads is None or along is None or min(pads.tolist(), default=0) < 0:
        return n.op.Pad(n.dy, n.op.Neg(n.b), None, n.given(3))
    lows, highs = np.split(pads, 2)
    cut = [i for i in range(len(along)) if lows[i] or highs[i]]
    if not cut:
        return n.dy
    lists = [lows[i] for i in cut], [-highs[i] if highs[i] else END for i in cut], [along[i] for i in cut]
    return n.op.Slice(n.dy, *(n.g.constant(each) for each in lists))


def resize(n: NodeView) -> Value:
    sizes = [n.given(place) for place in (1, 2, 3)]
    return n.own.ResizeGrad(n.dy, *sizes, shape_of=n.x.name, **n.attributes(*RESIZE))


def depth_to_space(n: NodeView) -> Value:
    size = n.attr("blocksize")
    dx = n.op.SpaceToDepth(n.dy, blocksize=size)
    if n.attr("mode", "DCR") == "DCR":
        return dx
    channels = n.x.shape[1] if n.x.shape else None
    if not isinstance(channels, int):
        raise n.unknown("its number of channels")
    # SpaceToDepth puts the place in a block before the channel; CRD has it behind.
    order = np.arange(channels).reshape(size * size, -1).T.reshape(-1)
    return n.op.Gather(dx, n.g.constant(order), axis=1)


def cumsum(n: NodeView) -> Value:
    """Of sums from the start, the sums from the end."""
    return n.op.CumSum(n.dy, n.b, exclusive=n.attr("exclusive", 0), reverse=1 - n.attr("reverse", 0))


def trilu(n: NodeView) -> Value:
    return n.op.Trilu(n.dy, n.given(1), upper=n.attr("upper", 1))


def cast(n: NodeView) -> Value:
    if n.dy.dtype == n.x.dtype:
        return n.dy
    return n.op.Cast(n.dy, to=n.x.dtype)


def dropout(n: NodeView) -> Value:
    mask = n.output(1, "_mask", TensorType(TensorProto.BOOL, n.x.shape))
    return n.ms.DropoutGrad(n.dy, mask, *n.inputs[1:])
