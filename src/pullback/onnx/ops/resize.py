"""Resize and Upsample: each axis on its own, by a table of which cells each output cell is made of and with which weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pullback.onnx.executor.registry import Node, op
from pullback.onnx.ops.arguments import axes_of, frozen, ints, refused, take
from pullback.rules import Array

Coordinates = npt.NDArray[np.float64]

RESIZE_BY_MODES = 11  # since when Resize has its coordinate and rounding modes; before it is Upsample
NEAREST: dict[str, Callable[[Coordinates], Coordinates]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)  # fmt: skip
EXTRAPOLATED = "tf_crop_and_resize"


@dataclass(frozen=True)
class AxisSamples:
    """What an axis becomes: output o is the sum over t of weights[o, t] * x[cells[o, t]]; `outside`: beyond the image."""

    axis: int
    cells: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64] | None  # None: one cell each, as it is
    outside: npt.NDArray[np.bool_] | None


def _coordinates(mode: str, n: int, size: int, scale: float, roi: tuple[float, float]) -> Coordinates:
    """Where in the input's axis the centre of each output cell lies."""
    x = np.arange(size, dtype=np.float64)
    # A scale that is these sizes' quotient but for its rounding to float32 is taken to be it: cells that fall together stay so.
    exact = np.float32(scale) == np.float32(size / n)

    def back(place: Coordinates) -> Coordinates:
        return np.asarray(place * n / size if exact else place / scale)

    if mode == "align_corners":
        return x * ((n - 1) / (size - 1)) if size > 1 else x
    if mode == "asymmetric":
        return back(x)
    if mode == "tf_half_pixel_for_nn":
        return back(x + 0.5)
    if mode == EXTRAPOLATED:
        start, end = roi
        return start * (n - 1) + x * ((end - start) * (n - 1) / (size - 1)) if size > 1 else x + 0.5 * (start + end) * (n - 1)
    if mode == "pytorch_half_pixel" and size == 1:
        return x
    shift = n / 2 * (1 - size / (scale * n)) if mode == "half_pixel_symmetric" else 0.0
    return shift + back(x + 0.5) - 0.5


def _tent(distance: Coordinates, _a: float) -> Coordinates:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _cubic(distance: Coordinates, a: float) -> Coordinates:
    """The piecewise cubic of convolution interpolation, zero from a distance of 2 on."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _samples(attrs: dict[str, Any], axis: int, n: int, size: int, scale: float, roi: tuple[float, float]) -> AxisSamples:
    mode, transformation = attrs["mode"], attrs["coordinate_transformation_mode"]
    x = _coordinates(transformation, n, size, scale, roi)
    outside = (x < 0) | (x > n - 1) if transformation == EXTRAPOLATED else None
    if mode == "nearest":
        cells = NEAREST[attrs["nearest_mode"]](x).clip(0, n - 1).astype(np.int64)
        return AxisSamples(axis, cells[:, None], None, outside)
    kernel, reach = (_tent, 1) if mode == "linear" else (_cubic, 2)
    stretch = min(scale, 1.0) if attrs.get("antialias", 0) else 1.0
    support = reach / stretch
    first = np.floor(x - support).astype(np.int64) + 1
    cells = first[:, None] + np.arange(math.ceil(2 * support), dtype=np.int64)
    weights = kernel((cells - x[:, None]) * stretch, attrs.get("cubic_coeff_a", -0.75))
    if attrs.get("exclude_outside", 0):
        weights = np.where((cells < 0) | (cells >= n), 0, weights)
    return AxisSamples(axis, cells.clip(0, n - 1), weights / weights.sum(axis=1, keepdims=True), outside)


@lru_cache(256)
def _table(
    attrs: tuple[tuple[str, Any], ...], shape: tuple[int, ...], sizes: tuple[int, ...], scales: tuple[float, ...],
    roi: tuple[float, ...],
) -> tuple[AxisSamples, ...]:  # fmt: skip
    given = dict(attrs)
    rank = len(shape)
    crops = given["coordinate_transformation_mode"] == EXTRAPOLATED
    return tuple(
        _samples(given, axis, shape[axis], sizes[axis], scales[axis], (roi[axis], roi[axis + rank]))
        for axis in range(rank)
        if crops or sizes[axis] != shape[axis] or scales[axis] != 1
    )


def _attributes(node: Node) -> dict[str, Any]:
    """All attributes that say how to sample, with their defaults; refused where one is unknown."""
    old = node.op_type == "Upsample" or node.opset < RESIZE_BY_MODES
    defaults = {"mode": "nearest", "nearest_mode": "floor" if old else "round_prefer_floor"}
    defaults["coordinate_transformation_mode"] = "asymmetric" if old else "half_pixel"
    attrs = defaults | node.attrs
    for name, known in (("mode", MODES), ("nearest_mode", tuple(NEAREST)), ("coordinate_transformation_mode", COORDINATES)):
        if attrs[name] not in known:
            raise refused(node, f"{name} is {attrs[name]!r}", f"the choices are {', '.join(known)}")
    return attrs


def _targets(
    node: Node, shape: tuple[int, ...], scales: Array | None, sizes: Array | None
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The size of every axis and its scale, from whichever of the two is given."""
    rank = len(shape)
    along = tuple(range(rank)) if node.attr("axes") is None else tuple(axis % rank for axis in ints(node.attr("axes")))
    axes_of(node, along, rank)
    given = node.attr("scales") if scales is None else scales
    by_scale = given is not None and len(given) > 0
    if not by_scale and (sizes is None or not sizes.size):
        raise refused(node, "neither scales nor sizes are given", "give one of them")
    wanted = [float(scale) for scale in given] if by_scale else list(ints(sizes))
    if len(wanted) != len(along) or min(wanted, default=1) <= 0:
        raise refused(node, f"{len(wanted)} sizes or scales for {len(along)} axes", "give a positive one for each axis")
    all_sizes, all_scales = list(shape), [1.0] * rank
    ratios = wanted if by_scale else [size / shape[axis] for size, axis in zip(wanted, along, strict=True)]
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if not by_scale and policy != "stretch":
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [ratio] * len(along)
        wanted = [math.floor(ratio * shape[axis] + 0.5) for axis in along]
    for axis, want, ratio in zip(along, wanted, ratios, strict=True):
        all_sizes[axis] = math.floor(shape[axis] * ratio) if by_scale else int(want)
        all_scales[axis] = ratio
    return tuple(all_sizes), tuple(all_scales)


def resize_samples(
    node: Node, shape: tuple[int, ...], roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> tuple[AxisSamples, ...]:
    """The tables of the axes that change, of a Resize of an input of some shape."""
    all_sizes, all_scales = _targets(node, shape, scales, sizes)
    rank = len(shape)
    box = [0.0] * rank + [1.0] * rank
    if roi is not None and roi.size:
        along = ints(node.attr("axes") or range(rank))
        for place, axis in enumerate(along):
            box[axis], box[axis + rank] = float(roi[place]), float(roi[place + len(along)])
    key = Node(node.op_type, node.domain, "", (), (), _attributes(node), node.opset)
    return _table(frozen(key), shape, all_sizes, all_scales, tuple(box))


def sampled(x: Array, samples: AxisSamples) -> Array:
    """x with one axis made anew."""
    if samples.weights is None:
        return take(x, samples.cells[:, 0], samples.axis)
    weights = samples.weights.astype(x.dtype).reshape(*samples.weights.shape, *(1,) * (x.ndim - 1 - samples.axis))
    result = take(x, samples.cells[:, 0], samples.axis)
    if weights.shape[1] == 2:  # a + (b - a) w, a product less than a v + b w
        step = take(x, samples.cells[:, 1], samples.axis)
        step -= result
        step *= weights[:, 1]
        result += step
        return result
    result *= weights[:, 0]
    for tap in range(1, weights.shape[1]):
        term = take(x, samples.cells[:, tap], samples.axis)
        term *= weights[:, tap]
        result += term
    return result


@op("Resize", sized_by=(1, 2, 3))
def resize(node: Node, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None) -> Array:
    if node.opset < RESIZE_BY_MODES:
        roi, scales = None, roi
    if x.dtype.kind != "f" and node.attr("mode", "nearest") != "nearest":
        raise refused(node, f"{node.attr('mode')} of {x.dtype}", "cast the input to float32 before it")
    y, outside = x, []
    for samples in resize_samples(node, x.shape, roi, scales, sizes):
        y = sampled(y, samples)
        if samples.outside is not None and samples.outside.any():
            outside.append((samples.axis, samples.outside))
    for axis, cells in outside:
        y[(slice(None),) * axis + (cells,)] = node.attr("extrapolation_value", 0.0)
    return y if y is not x else x.copy(order="K")


@op("Upsample", sized_by=(1,))
def upsample(node: Node, x: Array, scales: Array | None = None) -> Array:
    return resize(node, x, None, scales) if node.opset >= RESIZE_BY_MODES else resize(node, x, scales)
