"""ConvGrad and ConvTransposeGrad on pullback's kernels, in the memory layout that the images have."""

from __future__ import annotations

from pullback.onnx.executor.layout import as_layout, channels_last, filter_to_first
from pullback.onnx.executor.registry import MICROSOFT, Node, op
from pullback.onnx.ops.arguments import refused
from pullback.onnx.ops.convolution import conv_problem, filter_for_kernel, for_kernel, from_kernel, transposed_problem
from pullback.onnx.ops.normalization import channel_sums
from pullback.problem import Problem
from pullback.registry import dispatch
from pullback.rules import Array

Gradients = tuple[Array | None, Array | None, Array | None]


def filter_from_kernel(df: Array, last: bool) -> Array:
    """A kernel's filter gradient in ONNX's shape (M, C/groups, *k); the memory stays as the kernel made it."""
    return df.transpose(filter_to_first(df.ndim)) if last else df


def _check(node: Node, dy: Array, expected: tuple[int, ...], x: Array, w: Array) -> None:
    if dy.shape != expected:
        raise refused(
            node,
            f"dY has shape {dy.shape} but X {x.shape} and W {w.shape} give {expected}",
            "feed the gradient of this node's Y",
        )


def _logical(problem: Problem, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A problem's shape as (N, C, *spatial)."""
    return (shape[0], shape[-1], *shape[1:-1]) if problem.layout == "channels_last" else shape


@op("ConvGrad", domain=MICROSOFT)
def conv_grad(node: Node, dy: Array, x: Array, w: Array) -> Gradients:
    last = channels_last(x)

    def problem(kernel: str) -> Problem:
        return conv_problem(node, kernel, x.shape, w.shape, x.dtype, last)

    forward = problem("conv")
    _check(node, dy, _logical(forward, forward.output_shape), x, w)
    dy = as_layout(dy, last)
    d, a, f = for_kernel(dy, last), for_kernel(x, last), filter_for_kernel(w, last)
    dx = from_kernel(dispatch(problem("conv_grad_input"), d, f), last) if node.wants(0) else None
    dw = filter_from_kernel(dispatch(problem("conv_grad_filter"), d, a), last) if node.wants(1) else None
    return dx, dw, channel_sums(dy) if node.wants(2) else None


@op("ConvTransposeGrad", domain=MICROSOFT)
def conv_transpose_grad(node: Node, dy: Array, x: Array, w: Array) -> Gradients:
    """A transposed convolution is the input gradient of a convolution that makes X of Y: dX is that convolution of dY, and in dW
    X and dY change places.
    """
    last = channels_last(x)

    def problem(kernel: str) -> Problem:
        return transposed_problem(node, kernel, x.shape, w.shape, x.dtype, last)

    forward = problem("conv")
    _check(node, dy, _logical(forward, forward.input_shape), x, w)
    dy = as_layout(dy, last)
    d, a, f = for_kernel(dy, last), for_kernel(x, last), filter_for_kernel(w, last)
    dx = from_kernel(dispatch(problem("conv"), d, f), last) if node.wants(0) else None
    dw = filter_from_kernel(dispatch(problem("conv_grad_filter"), a, d), last) if node.wants(1) else None
    return dx, dw, channel_sums(dy) if node.wants(2) else None
