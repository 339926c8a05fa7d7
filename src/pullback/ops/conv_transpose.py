"""Transposed convolution: the input gradient of `conv` read forwards, with the output's size worked out from its own
keywords.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from pullback.ops.arguments import (
    as_entries,
    as_float_array,
    as_int,
    as_layout,
    as_padding,
    as_shape,
    check_shape,
    per_axis,
    same_dtype,
    spatial_rank,
    split_shape,
)
from pullback.ops.bias import add_bias, as_bias
from pullback.ops.call import run_op
from pullback.ops.conv import PerAxis, conv_problem, split_filter
from pullback.ops.hints import DEFAULT_LAYOUT, with_hints
from pullback.problem import Problem
from pullback.rules import Array, Layout
from pullback.shown import shown
from pullback.window import Padding, span

OP = "conv_transpose"


def _extra(output_padding: Any, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Cells to add at the end of each axis: fewer than the stride, or there would be room for one more window."""
    entries = as_entries(output_padding)
    given = (output_padding,) * len(strides) if entries is None else entries
    if len(given) != len(strides):
        raise ValueError(
            f"{OP}: output_padding is {shown(output_padding)}, which has {len(given)} entries for {len(strides)} axes"
        )
    extra = tuple(as_int(OP, "output_padding", entry) for entry in given)
    if not all(0 <= more < s for more, s in zip(extra, strides, strict=True)):
        raise ValueError(
            f"{OP}: output_padding is {shown(output_padding)}; it must be at least 0 and less than the stride {strides}"
        )
    return extra


def _sizes(
    x: tuple[int, ...], kernel: tuple[int, ...], stride: Any, dilation: Any, padding: Padding, output_padding: Any
) -> tuple[int, ...]:
    """Spatial sizes of the output: in * stride for "same", else (in - 1) * stride + span - low - high + output_padding."""
    rank = len(x)
    strides, dilations = per_axis(OP, "stride", stride, rank), per_axis(OP, "dilation", dilation, rank)
    pads, extra = as_padding(OP, padding, rank), _extra(output_padding, strides)
    if pads in ("same", "same_lower"):
        if any(extra):
            raise ValueError(
                f"{OP}: with padding={shown(padding)} the output is in * stride; use output_shape, not output_padding"
            )
        return tuple(n * s for n, s in zip(x, strides, strict=True))
    pairs = ((0, 0),) * rank if isinstance(pads, str) else pads
    sizes = tuple(
        (n - 1) * s + span(k, d) - low - high + more
        for n, s, k, d, (low, high), more in zip(x, strides, kernel, dilations, pairs, extra, strict=True)
    )
    if min(sizes) < 1:
        raise ValueError(
            f"{OP}: padding {shown(padding)} leaves an output of {sizes} of the input {x}; make the padding smaller"
        )
    return sizes


def _output_shape(
    layout: Layout, x: tuple[int, ...], f: tuple[int, ...], groups: Any, given: Any, output_padding: Any, **place: Any
) -> tuple[int, ...]:
    batch, size, _ = split_shape(layout, x)
    kernel, per_group, _ = split_filter(layout, f)
    channels = per_group * as_int(OP, "groups", groups)
    if given is None:
        sizes = _sizes(size, kernel, output_padding=output_padding, **place)
        whole = (batch, *sizes, channels) if layout == "channels_last" else (batch, channels, *sizes)
        return as_shape(OP, "the output's size", whole)
    if as_entries(output_padding) is not None or as_int(OP, "output_padding", output_padding):
        raise ValueError(f"{OP}: output_shape and output_padding are both given; give one of them")
    shape = as_shape(OP, "output_shape", given)
    if len(shape) != len(x):
        raise ValueError(f"{OP}: output_shape is {shape}; it must have {len(x)} entries, batch and channels among them")
    if split_shape(layout, shape)[::2] != (batch, channels):
        raise ValueError(
            f"{OP}: output_shape is {shape}, but x {x} and filter {f} with groups={groups} give a batch of {batch} and "
            f"{channels} channels"
        )
    return shape


def prepare_conv_transpose(
    x: npt.ArrayLike,
    filter: npt.ArrayLike,
    *,
    stride: PerAxis = 1,
    padding: Padding = "valid",
    output_padding: PerAxis = 0,
    output_shape: Sequence[int] | None = None,
    dilation: PerAxis = 1,
    groups: int = 1,
    layout: str = DEFAULT_LAYOUT,
) -> tuple[Problem, Array, Array]:
    a, f = as_float_array(OP, "x", x), as_float_array(OP, "filter", filter)
    dtype, kind = same_dtype(OP, x=a, filter=f), as_layout(OP, layout, spatial_rank(OP, "x", a.shape))
    if f.ndim != a.ndim:
        raise ValueError(f"{OP}: the filter has shape {f.shape} but x {a.shape} needs a filter of {a.ndim} axes")
    place: dict[str, Any] = {"stride": stride, "dilation": dilation, "padding": padding}
    shape = _output_shape(kind, a.shape, f.shape, groups, output_shape, output_padding, **place)
    problem = conv_problem(OP, "output_shape", shape, f.shape, dtype, groups=groups, layout=layout, **place)
    check_shape(OP, "x", a.shape, problem.output_shape, f"what `conv` makes of output_shape {shape} with filter {f.shape}")
    return replace(problem, op="conv_grad_input"), a, f


@with_hints
def conv_transpose(
    x: npt.ArrayLike,
    filter: npt.ArrayLike,
    *,
    stride: PerAxis = 1,
    padding: Padding = "valid",
    output_padding: PerAxis = 0,
    output_shape: Sequence[int] | None = None,
    dilation: PerAxis = 1,
    groups: int = 1,
    layout: str = DEFAULT_LAYOUT,
    bias: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Transposed convolution: `conv_grad_input` of the `conv` that turns the result's shape into x's shape, plus a bias.

    **Formula.** `y[n, j, c] = bias[c] + sum over i, t, m with i*stride - low + t*dilation = j of x[n, i, m] * filter[t, c,
    m]`.

    **Shapes.** The filter has the shape that conv takes: channels_last `(*k, C_out/groups, C_in)`, channels_first `(C_in,
    C_out/groups, *k)`, where x has C_in channels and the result C_out. Sizes: `(in - 1) * stride + dilation * (k - 1) + 1 -
    low - high + output_padding`; `in * stride` for "same". output_shape, the result's whole shape, chooses another size that
    conv would turn into x's.

    **Rules.** The other keywords are those of `conv`. **Error.** As `conv`.

    **Equals** torch.nn.functional.conv_transpose1d to 3d and ONNX ConvTranspose (channels_first), TF.js conv2dTranspose
    (channels_last).
    """
    y = run_op(
        prepare_conv_transpose, x, filter, out=out, stride=stride, padding=padding, output_padding=output_padding,
        output_shape=output_shape, dilation=dilation, groups=groups, layout=layout,
    )  # fmt: skip
    return y if bias is None else add_bias(OP, y, as_bias(OP, bias, y, layout), layout)
