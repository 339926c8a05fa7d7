"""The ops on tensors, run at once and without derivatives; and what their results look like, for tracing."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

import pullback as pb
from pullback.derivatives import DERIVATIVES, Call, Derivative
from pullback.torch import on_gpu
from pullback.torch.arrays import activation, empty_like_result, filter_array, filter_result, result, to_last
from pullback.window import Window

# PyTorch's rules, which our defaults are: of equal values the first wins, NaN wins over numbers.
_FIXED = ("ties", "nan")
SHAPES = ("input_shape", "filter_shape", "output_size")  # the last one as a whole shape, here always
NAMESPACE = "pullback"  # of the registered ops

# The op that gives its winners along, so that its gradient need not look for them again.
WITH_WINNERS = Derivative(
    ("x",),
    DERIVATIVES["max_pool"].keywords,
    vjp={"x": Call("max_pool_grad_from_winners", ("g", "winners"), {"input_shape": "x"})},
    jvp={"x": Call("max_pool_jvp_from_winners", ("t", "winners"))},
)
# The input gradient of a convolution read forwards: the size of its result follows from its input, so that traces hold for any.
TRANSPOSED = Derivative(
    ("x", "filter"),
    (*DERIVATIVES["conv"].keywords, "output_padding"),
    vjp={"x": Call("conv", ("g", "filter")), "filter": Call("conv_grad_filter", ("x", "g"), {"filter_shape": "filter"})},
    jvp={
        "x": Call("conv_grad_input", ("t", "filter"), {"input_shape": "y"}),
        "filter": Call("conv_grad_input", ("x", "t"), {"input_shape": "y"}),
    },
)
RULES: dict[str, Derivative] = {
    "max_pool": WITH_WINNERS,
    "conv_transpose": TRANSPOSED,
    **{
        name: DERIVATIVES[name]
        for name in (
            "conv", "conv_grad_input", "conv_grad_filter", "max_pool_grad_from_winners", "max_pool_jvp_from_winners",
            "avg_pool", "avg_pool_grad", "adaptive_avg_pool", "adaptive_avg_pool_grad",
        )
    },
}  # fmt: skip


# The arguments of each op that are no tensors, in order.
KEYWORDS = {op: tuple(name for name in rule.keywords if name not in _FIXED) for op, rule in RULES.items()}
_ARGUMENTS = {op: [filter_array if name == "filter" else activation for name in rule.arrays] for op, rule in RULES.items()}
_FUNCTIONS: dict[str, Callable[..., Any]] = {op: getattr(pb, op) for op in RULES}
_FUNCTIONS["conv_transpose"] = pb.conv_grad_input  # PyTorch's weight is that of the convolution


@cache
def _laid_out(shape: tuple[int, ...], layout: str, name: str) -> tuple[int, ...]:
    """A shape of PyTorch's, as the layout has it."""
    if layout == "channels_first":
        return shape
    if name == "filter_shape":
        return (*shape[2:], shape[1], shape[0])
    return tuple(shape[axis] for axis in to_last(len(shape)))


class _Listening(threading.local):
    """Who wants to know how long an op took in this thread: called with its name and the seconds."""

    heard: Callable[[str, float], None] | None = None


listening = _Listening()


def listened(op: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """function(...), which whoever listens hears of as this op."""
    heard = listening.heard
    if heard is None:
        return function(*arguments)
    start = time.perf_counter()
    found = function(*arguments)
    heard(op, time.perf_counter() - start)
    return found


def named(op: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """function(...), which PyTorch's profiler sees as the registered op, and who listens hears of."""
    if listening.heard is not None:
        return listened(op, function, *arguments)
    if torch.autograd._profiler_enabled():
        with torch.profiler.record_function(f"{NAMESPACE}::{op}"):
            return function(*arguments)
    return function(*arguments)


def run(op: str, tensors: Sequence[torch.Tensor], keywords: Mapping[str, Any]) -> Any:
    """Run an op: a tensor, or for max_pool the values and the winners."""
    return named(op, compute, op, tensors, keywords)


def compute(op: str, tensors: Sequence[torch.Tensor], keywords: Mapping[str, Any]) -> Any:
    layout = keywords["layout"]
    function, given, shape = _FUNCTIONS[op], keywords, RULES[op].keywords[0]
    if shape in SHAPES:
        given = {**keywords, shape: _laid_out(tuple(keywords[shape]), layout, shape)}
    elif op == "conv_transpose":
        given = {name: value for name, value in keywords.items() if name != "output_padding"}
        given["input_shape"] = _laid_out(output_shape(op, tensors, keywords), layout, "input_shape")
    if tensors[0].is_cuda:
        name = "conv_grad_input" if op == "conv_transpose" else op
        given = {**given, "return_winners": True} if op == "max_pool" else given
        return on_gpu.compute(name, tensors, RULES[op].arrays, given)
    arrays = [as_argument(tensor, layout) for as_argument, tensor in zip(_ARGUMENTS[op], tensors, strict=True)]
    if op == "max_pool":
        values, winners = function(*arrays, return_winners=True, **given)
        return result(values, layout), result(winners, layout)
    found = function(*arrays, **given)
    return filter_result(found, layout) if op == "conv_grad_filter" else result(found, layout)


def pairs(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Padding as the ops want it, from the flat list that a schema can hold."""
    return tuple((flat[i], flat[i + 1]) for i in range(0, len(flat), 2))


def winner_dtype(window: Sequence[int]) -> torch.dtype:
    taps = math.prod(window)
    return torch.uint8 if taps <= 256 else torch.uint16 if taps < 2**16 else torch.uint32


def output_shape(op: str, tensors: Sequence[torch.Tensor], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
    """The shape of an op's result; the sizes may be symbols."""
    for name in SHAPES:
        if name in keywords:
            return tuple(keywords[name])
    x = tensors[0]
    if op == "conv_transpose":
        return _transposed_shape(x, tensors[1], keywords)
    window, out = (tensors[1].shape[2:], tensors[1].shape[0]) if op == "conv" else (keywords["window"], x.shape[1])
    if all(isinstance(size, int) for size in (*x.shape[2:], *window)):
        rest = [keywords[name] for name in ("stride", "dilation", "padding", "rounding")]
        try:
            made = Window.make(tuple(x.shape[2:]), tuple(window), *rest)
        except ValueError as error:
            raise ValueError(f"{op}: {error}") from None
        return (x.shape[0], out, *made.output_size)
    sizes = []
    for n, k, s, d, (p, q) in zip(
        x.shape[2:], window, keywords["stride"], keywords["dilation"], keywords["padding"], strict=True
    ):
        steps = n + p + q - (k - 1) * d - 1
        if keywords["rounding"] == "ceil":
            raised = (steps + s - 1) // s + 1
            sizes.append(raised - torch.sym_ite((raised - 1) * s >= n + p, 1, 0))
        else:
            sizes.append(steps // s + 1)
    return (x.shape[0], out, *sizes)


def _transposed_shape(x: torch.Tensor, filter: torch.Tensor, keywords: Mapping[str, Any]) -> tuple[Any, ...]:
    sizes = []
    places = (keywords[name] for name in ("stride", "dilation", "padding", "output_padding"))
    for n, k, s, d, (p, q), extra in zip(x.shape[2:], filter.shape[2:], *places, strict=True):
        sizes.append((n - 1) * s - p - q + d * (k - 1) + extra + 1)
        if isinstance(sizes[-1], int) and sizes[-1] < 1:
            raise ValueError(f"conv_transpose: {n} cells become {sizes[-1]}; make the padding ({p}, {q}) smaller")
    return (x.shape[0], filter.shape[1] * keywords["groups"], *sizes)


def fake(op: str, tensors: Sequence[torch.Tensor], keywords: Mapping[str, Any]) -> Any:
    """Uninitialised results as `run` would give them."""
    layout = keywords["layout"]
    shape = output_shape(op, tensors, keywords)
    made = empty_like_result(tensors[0], shape, layout)
    if op == "max_pool":
        return made, empty_like_result(tensors[0], shape, layout, winner_dtype(keywords["window"]))
    return made
