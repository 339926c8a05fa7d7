"""Replays the recorded TF.js kernels: in quirks mode our answer must be theirs; by default theirs, or a proved better one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from pullback import golden, tfjs
from pullback import registry as core
from pullback.check.compare import attempt, close, identical, is_adjoint, is_slope, ranks
from pullback.check.outcome import Outcome
from pullback.registry import REFERENCE
from pullback.rules import Array

# These two files record the op layer and tf.grads, not kernels.
NOT_KERNELS = ("Gradients", "OpErrors")

# Gradient kernel -> (its forward kernel, the forward's input that the gradient belongs to).
LINEAR = {
    "AvgPoolGrad": ("AvgPool", "x"),
    "AvgPool3DGrad": ("AvgPool3D", "x"),
    "Conv2DBackpropInput": ("Conv2D", "x"),
    "Conv2DBackpropFilter": ("Conv2D", "filter"),
    "Conv3DBackpropInputV2": ("Conv3D", "x"),
    "Conv3DBackpropFilterV2": ("Conv3D", "filter"),
    "DepthwiseConv2dNativeBackpropInput": ("DepthwiseConv2dNative", "x"),
    "DepthwiseConv2dNativeBackpropFilter": ("DepthwiseConv2dNative", "filter"),
}
MAXIMUM = {
    "MaxPoolGrad": ("MaxPool", "x"),
    "MaxPool3DGrad": ("MaxPool3D", "x"),
    "Dilation2DBackpropInput": ("Dilation2D", "x"),
    "Dilation2DBackpropFilter": ("Dilation2D", "filter"),
}
MAXIMA = ("MaxPool", "MaxPool3D", "MaxPoolWithArgmax", "Dilation2D")
CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")


def kernels() -> list[str]:
    return [name for name in golden.names("tfjs") if name not in NOT_KERNELS]


def size(every: int = 1) -> int:
    return sum(len(golden.load("tfjs", kernel)[::every]) for kernel in kernels())


def recorded_outputs(case: dict[str, Any]) -> list[Array] | None:
    """The recorded answer; None where no array can hold it (a negative size)."""
    tensors = case["outputs"] if "outputs" in case else [case["output"]]
    if any(size < 0 for tensor in tensors for size in tensor["shape"]):
        return None
    return [golden.array(tensor) for tensor in tensors]


def _run(kernel: str, inputs: dict[str, Array], attrs: dict[str, Any]) -> list[Array]:
    result = tfjs.run_kernel(kernel, inputs, attrs)
    return list(result) if isinstance(result, tuple) else [result]


def _equal(kernel: str, ours: list[Array], theirs: list[Array]) -> bool:
    """Bit for bit for pooling and dilation; within 1e-5 where upstream's sums have an order of their own."""
    same = close if kernel.startswith(CONVOLUTIONS) else identical
    return len(ours) == len(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))


def _operands(inputs: dict[str, Array], wanted: str) -> dict[str, Array]:
    """The forward kernel's inputs that stay as they are while `wanted` varies."""
    return {name: array for name, array in inputs.items() if name in ("x", "filter") and name != wanted}


def prove(kernel: str, inputs: dict[str, Array], attrs: dict[str, Any], answer: Array) -> str | None:
    """The name of the proof that `answer` is right, or None. Only the kernels whose default differs from upstream need one."""
    if kernel in LINEAR:
        forward_kernel, wanted = LINEAR[kernel]
        fixed = _operands(inputs, wanted)
        forward_attrs = {"dilations": 1, "dataFormat": "NHWC", **attrs}
        if "AvgPool3D" in kernel:
            forward_attrs["dataFormat"] = "NDHWC"

        def forward(v: Array) -> Array:
            return np.asarray(tfjs.run_kernel(forward_kernel, {**fixed, wanted: v}, forward_attrs))

        return "adjoint" if is_adjoint(forward, inputs["dy"], answer) else None
    if kernel in MAXIMUM:
        forward_kernel, wanted = MAXIMUM[kernel]
        pool = "input" in inputs
        at = ranks(inputs["input"], "last" if kernel == "MaxPool3DGrad" else "first") if pool else inputs[wanted]
        fixed = _operands(inputs, wanted)

        def value(v: Array) -> Array:
            return np.asarray(tfjs.run_kernel(forward_kernel, {**fixed, wanted: v}, attrs))

        # Ranks are whole numbers, so a quarter changes no winner; other data take a step below their spacing.
        step = 0.25 if pool else 2.0**-7
        return "finite difference" if is_slope(value, at, inputs["dy"], answer, step) else None
    if kernel == "MaxPoolWithArgmax":
        return None
    # A forward kernel whose layout attribute upstream ignores: the same numbers as the channels-last kernel on moved axes.
    moved = {**inputs, "x": np.moveaxis(inputs["x"], 1, -1)}
    last = "NDHWC" if inputs["x"].ndim == 5 else "NHWC"
    expected = np.moveaxis(np.asarray(tfjs.run_kernel(kernel, moved, {**attrs, "dataFormat": last})), -1, 1)
    return "moved axes" if close(answer, expected) else None


def _argmax_is_right(inputs: dict[str, Array], attrs: dict[str, Any], values: Array, indices: Array) -> bool:
    """Each index points at a cell that holds its window's value."""
    x = inputs["x"]
    per_image = x.reshape(x.shape[0], -1)
    flat = indices.reshape(x.shape[0], -1).astype(np.int64)
    if attrs["includeBatchInIndex"]:
        flat = flat - np.arange(x.shape[0])[:, None] * per_image.shape[1]
    return bool(np.array_equal(np.take_along_axis(per_image, flat, axis=1).reshape(values.shape), values))


def judge(kernel: str, case: dict[str, Any]) -> Outcome:
    """The outcome of one recorded case: judged on the reference backend, whose sums are TF.js's, and held to by the default one."""
    with core.backend(REFERENCE):
        outcome = _judge_reference(kernel, case)
    if outcome.verdict != "failed" and core.current_backend() != REFERENCE and not _default_agrees(kernel, case):
        return Outcome(kernel, case["name"], "failed", f"backend {core.current_backend()!r} differs from the reference")
    return outcome


def _default_agrees(kernel: str, case: dict[str, Any]) -> bool:
    """Whether the default backend answers as the reference: maxima bit for bit, sums within 1e-6, or the same refusal."""
    inputs = golden.arrays(case["inputs"])
    found, error = attempt(lambda: _run(kernel, inputs, case["attrs"]))
    with core.backend(REFERENCE):
        expected, refusal = attempt(lambda: _run(kernel, inputs, case["attrs"]))
    if error is not None or refusal is not None:
        return (type(error), str(error)) == (type(refusal), str(refusal))
    same = identical if kernel in MAXIMA else partial(close, relative=1e-6)
    return all(same(a, b) for a, b in zip(found, expected, strict=True))


def _judge_reference(kernel: str, case: dict[str, Any]) -> Outcome:
    name, attrs = case["name"], case["attrs"]
    inputs = golden.arrays(case["inputs"])

    def outcome(verdict: Any, detail: str = "") -> Outcome:
        return Outcome(kernel, name, verdict, detail)

    with tfjs.quirks():
        as_upstream, quirk_error = attempt(lambda: _run(kernel, inputs, attrs))
    ours, error = attempt(lambda: _run(kernel, inputs, attrs))
    if "error" in case:
        if quirk_error is None or error is None:
            return outcome("failed", f"upstream refuses ({case['error']}), we gave an answer")
        return outcome("refused")
    theirs = recorded_outputs(case)
    unchecked = name.startswith("oddity/")
    if quirk_error is not None:
        garbage = theirs is None or any(t.dtype.kind == "f" and np.isnan(t).any() for t in theirs)
        if unchecked and garbage and error is not None:
            return outcome("undefined")
        return outcome("failed", f"quirks mode raised {quirk_error!r}")
    if theirs is None or not _equal(kernel, as_upstream, theirs):
        return outcome("failed", "quirks mode differs from upstream's answer")
    if error is not None:
        return outcome("undefined") if unchecked else outcome("failed", f"raised {error!r}")
    if _equal(kernel, ours, theirs):
        return outcome("equal")
    if kernel == "MaxPoolWithArgmax":
        right = identical(ours[0], theirs[0]) and _argmax_is_right(inputs, attrs, *ours)
        wrong = not _argmax_is_right(inputs, attrs, *theirs)
        return outcome("mended", "indices hit the maxima") if right and wrong else outcome("failed", "indices")
    if "dy" in inputs and not np.isfinite(inputs["dy"]).all():
        # A gradient is linear in dy: it is proved on finite numbers, upstream's by its stand-in, quirks mode.
        dy = np.random.default_rng(0).standard_normal(inputs["dy"].shape).astype(inputs["dy"].dtype)
        inputs = {**inputs, "dy": dy}
        ours = _run(kernel, inputs, attrs)
        with tfjs.quirks():
            theirs = _run(kernel, inputs, attrs)
    proof = prove(kernel, inputs, attrs, ours[0])
    if proof is None:
        return outcome("failed", "differs from upstream and no proof holds")
    if prove(kernel, inputs, attrs, theirs[0]) is not None:
        return outcome("failed", "differs from upstream, whose answer passes the same proof")
    return outcome("mended", proof)


def replay(every: int = 1) -> Iterator[Outcome]:
    for kernel in kernels():
        for case in golden.load("tfjs", kernel)[::every]:
            yield judge(kernel, case)
