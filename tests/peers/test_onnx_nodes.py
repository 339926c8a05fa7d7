"""The node cases that ONNX tests backends with, of every operator that slides a window: through the ops and through pullback.ort.

What does not apply is listed with the reason, by operator or by case. The list is held to both ways: a case on it must not pass.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

import pullback as pb
from pullback import ort

pytestmark = pytest.mark.peers

OPERATORS = (
    "AveragePool", "CausalConvWithState", "Col2Im", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "GlobalAveragePool",
    "GlobalMaxPool", "LpPool", "MaxPool", "MaxUnpool", "QLinearConv",
)  # fmt: skip
NOT_IN_OPS = {"DeformConv": "a window whose taps move from output to output is none of the ops"}
NO_KERNEL = "neither a gradient of ONNX Runtime's training build nor the forward pass of one"
NOT_IN_ORT = {name: NO_KERNEL for name in OPERATORS if name not in ("AveragePool", "Conv", "MaxPool")}
PADDINGS = {"SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": "valid"}
Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Case:
    name: str
    operator: str
    inputs: tuple[np.ndarray | None, ...]
    attrs: dict[str, Any]
    outputs: Arrays
    opset: int
    tolerance: tuple[float, float]

    def ints(self, name: str, default: int, rank: int) -> tuple[int, ...]:
        return tuple(self.attrs.get(name) or (default,) * rank)

    def place(self, rank: int) -> dict[str, Any]:
        """Stride, dilation and padding as the ops take them."""
        auto = self.attrs.get("auto_pad", b"NOTSET").decode()
        pads = self.ints("pads", 0, 2 * rank)
        padding = PADDINGS.get(auto, tuple(zip(pads[:rank], pads[rank:], strict=True)))
        return {
            "stride": self.ints("strides", 1, rank), "dilation": self.ints("dilations", 1, rank), "padding": padding,
            "layout": "channels_first",
        }  # fmt: skip


def as_arrays(values: Any) -> tuple[np.ndarray, ...]:
    return tuple(numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value) for value in values)


def cases() -> list[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other operators' cases divide by zero while they are made
        collected = collect_testcases()
    found = {}
    for case in collected:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in OPERATORS:
            continue  # the expansion of an operator into simpler ones
        attrs = {each.name: helper.get_attribute_value(each) for each in nodes[0].attribute}
        [(given, expected)] = case.data_sets
        arrays = iter(as_arrays(given))
        inputs = tuple(next(arrays) if name else None for name in nodes[0].input)
        opset = case.model.opset_import[0].version
        found[case.name] = Case(
            case.name, nodes[0].op_type, inputs, attrs, as_arrays(expected), opset, (case.rtol, case.atol)
        )  # fmt: skip
    return list(found.values())


def max_pool(case: Case) -> Any:
    x, rounding = case.inputs[0], "ceil" if case.attrs.get("ceil_mode") else "floor"
    window, order = tuple(case.attrs["kernel_shape"]), case.attrs.get("storage_order", 0)
    options = case.place(len(window)) | {"rounding": rounding, "storage_order": order, "return_indices": True}
    y, indices = pb.max_pool(x.astype(np.float32), window, **options)
    return (y.astype(x.dtype), indices)[: len(case.outputs)]


def average_pool(case: Case) -> Any:
    window, rounding = tuple(case.attrs["kernel_shape"]), "ceil" if case.attrs.get("ceil_mode") else "floor"
    padded = bool(case.attrs.get("count_include_pad", 0))
    return pb.avg_pool(case.inputs[0], window, **case.place(len(window)), rounding=rounding, count_include_pad=padded)


def conv(case: Case) -> Any:
    x, f, *bias = case.inputs
    y = pb.conv(x, f, **case.place(x.ndim - 2), groups=case.attrs.get("group", 1))
    return y + bias[0].reshape(-1, *(1,) * (x.ndim - 2)) if bias else y


def conv_transpose(case: Case) -> Any:
    x, f = case.inputs
    rank, groups = x.ndim - 2, case.attrs.get("group", 1)
    size = case.attrs.get("output_shape")
    more = {"output_padding": case.ints("output_padding", 0, rank)}
    if size:  # which makes an output_padding beside it say nothing
        more = {"output_shape": (x.shape[0], f.shape[1] * groups, *size)}
    return pb.conv_transpose(x, f, **case.place(rank), groups=groups, **more)


def global_pool(pool: Callable[..., Any]) -> Callable[[Case], Any]:
    return lambda case: pool(case.inputs[0], case.inputs[0].shape[2:], layout="channels_first")


def lp_pool(case: Case) -> Any:
    """The p-th root of a convolution of each channel with ones."""
    x, p = case.inputs[0], case.attrs["p"]
    window, channels = tuple(case.attrs["kernel_shape"]), x.shape[1]
    ones = np.ones((channels, 1, *window), x.dtype)
    return pb.conv(np.abs(x) ** p, ones, **case.place(len(window)), groups=channels) ** np.float32(1 / p)


def max_unpool(case: Case) -> Any:
    """The gradient of max pooling from its indices; where a larger shape is asked for, they still count in the smaller."""
    x, indices, *asked = case.inputs
    axes = zip(x.shape[2:], case.attrs["kernel_shape"], case.ints("strides", 1, x.ndim - 2), strict=True)
    shape = (*x.shape[:2], *((n - 1) * s + k for n, k, s in axes))
    y = pb.max_pool_grad_from_indices(x, indices, shape, layout="channels_first")
    return np.pad(y, [(0, int(more) - n) for n, more in zip(shape, asked[0], strict=True)]) if asked else y


def col2im(case: Case) -> Any:
    """A transposed convolution of groups, one for each channel of the image, with a filter of one tap for each of its columns."""
    columns, image, block = case.inputs[0], tuple(map(int, case.inputs[1])), tuple(map(int, case.inputs[2]))
    taps, place = math.prod(block), case.place(len(image))
    channels = columns.shape[1] // taps
    f = np.tile(np.eye(taps, dtype=columns.dtype).reshape(taps, 1, *block), (channels, 1, *(1,) * len(block)))
    axes = zip(image, block, place["stride"], place["dilation"], place["padding"], strict=True)
    outputs = tuple((n + sum(pads) - (k - 1) * d - 1) // s + 1 for n, k, s, d, pads in axes)
    x = columns.reshape(columns.shape[0], channels * taps, *outputs)
    return pb.conv_transpose(x, f, **place, groups=channels, output_shape=(len(x), channels, *image))


def conv_integer(case: Case) -> Any:
    """Whole numbers, which float64 sums exactly."""
    x, f, *zeros = case.inputs
    x_zero, f_zero = (np.asarray(zero, np.float64) for zero in (*zeros, 0, 0)[:2])
    shifted = f - f_zero.reshape(-1, *(1,) * (f.ndim - 1)) if f_zero.ndim else f - f_zero
    return pb.conv(x - x_zero, shifted, **case.place(x.ndim - 2)).astype(np.int32)


def qlinear_conv(case: Case) -> Any:
    x, x_scale, x_zero, f, f_scale, f_zero, y_scale, y_zero = (np.asarray(each, np.float64) for each in case.inputs)
    wide = (-1, *(1,) * (x.ndim - 1))
    y = pb.conv(x - x_zero, f - f_zero.reshape(wide), **case.place(x.ndim - 2))
    scaled = y * (x_scale * f_scale.reshape(1, *wide[:-1]) / y_scale)
    limits = np.iinfo(case.outputs[0].dtype)
    return np.clip(np.rint(scaled) + y_zero, limits.min, limits.max).astype(case.outputs[0].dtype)


def causal_conv(case: Case) -> Any:
    """A convolution of each channel with the steps before it, those of an earlier call among them."""
    x, f, bias, past = (*case.inputs, None, None)[:4]
    steps = f.shape[2] - 1
    before = np.zeros((*x.shape[:2], steps), x.dtype) if past is None else past
    whole = np.concatenate([before, x], axis=2)
    y = pb.conv(whole, f, layout="channels_first", groups=x.shape[1])
    y = y if bias is None else y + bias[:, None]
    if case.attrs.get("activation", b"none") in (b"silu", b"swish"):
        wide = y.astype(np.float64)
        y = (wide / (1 + np.exp(-wide))).astype(y.dtype)
    return y, whole[:, :, whole.shape[2] - steps :]


BY_OPS: dict[str, Callable[[Case], Any]] = {
    "AveragePool": average_pool, "CausalConvWithState": causal_conv, "Col2Im": col2im, "Conv": conv, "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose, "GlobalAveragePool": global_pool(pb.avg_pool), "GlobalMaxPool": global_pool(pb.max_pool),
    "LpPool": lp_pool, "MaxPool": max_pool, "MaxUnpool": max_unpool, "QLinearConv": qlinear_conv,
}  # fmt: skip


def by_ort(case: Case) -> Any:
    names = {"Conv": ("X", "W", "B")}.get(case.operator, ("X",))
    outputs = {"MaxPool": ("Y", "Indices")[: len(case.outputs)]}.get(case.operator)
    found = ort.run_kernel(
        case.operator, dict(zip(names, case.inputs, strict=False)), case.attrs, opset=case.opset, outputs=outputs
    )  # fmt: skip
    return tuple(part for part in found if part is not None) if isinstance(found, tuple) else found


def by_ops(case: Case) -> Any:
    return BY_OPS[case.operator](case)


def complaint(run: Callable[[Case], Any], case: Case) -> str | None:
    """What separates our answer from ONNX's; None if nothing does."""
    try:
        found = run(case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    found = found if isinstance(found, tuple) else (found,)
    if [(each.shape, each.dtype) for each in found] != [(each.shape, each.dtype) for each in case.outputs]:
        return f"{[(each.shape, each.dtype) for each in found]} instead of {[(e.shape, e.dtype) for e in case.outputs]}"
    relative, absolute = case.tolerance
    for ours, theirs in zip(found, case.outputs, strict=True):
        if not np.allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=relative, atol=absolute, equal_nan=True):
            return f"off by up to {np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()}"
    return None


CASES = cases()
every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def hold(run: Callable[[Case], Any], case: Case, not_ours: dict[str, str]) -> None:
    reason = not_ours.get(case.name) or not_ours.get(case.operator)
    problem = complaint(run, case)
    if reason is None:
        assert problem is None, f"{case.name} {case.attrs}: {problem}"
    else:
        assert problem is not None, f"{case.name} passes, though it is listed: {reason}"


@every_case
def test_through_the_ops(each_backend: str, case: Case) -> None:
    hold(by_ops, case, NOT_IN_OPS)


@every_case
def test_through_the_dialect(each_backend: str, case: Case) -> None:
    hold(by_ort, case, NOT_IN_ORT)


def test_the_lists_name_what_is_there() -> None:
    operators = {case.operator for case in CASES}
    known = operators | {case.name for case in CASES}
    assert set(NOT_IN_OPS) | set(NOT_IN_ORT) <= known | {"CausalConvWithState"}  # new in ONNX 1.23
    assert set(BY_OPS) | set(NOT_IN_OPS) == set(OPERATORS)
    assert len(CASES) >= 60
