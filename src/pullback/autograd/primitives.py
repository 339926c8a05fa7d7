"""Each op as a primitive of autograd, its derivatives those of `pullback.derivatives`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import autograd.numpy as anp
from autograd.extend import defjvp_argnum, defvjp_argnum, primitive, vspace

import pullback as pb
from pullback.derivatives import DERIVATIVES, Call
from pullback.ops.arguments import as_layout
from pullback.ops.bias import add_bias, as_bias
from pullback.ops.conv_transpose import prepare_conv_transpose
from pullback.ops.hints import DEFAULT_LAYOUT
from pullback.tracing import any_traced, plain

Op = Callable[..., Any]
Rules = Mapping[str, Call]

OPS: dict[str, Op] = {}


def _in_dtype_of(value: Any, tangent: Any) -> Any:
    """A gradient or tangent in the dtype of the array it belongs to: the rest of a program may compute in another."""
    return tangent if tangent.dtype == value.dtype else tangent.astype(value.dtype)


def _define(run: Op, arrays: tuple[str, ...], gradients: Rules, tangents: Rules) -> None:
    """Tell autograd a primitive's derivatives: a call for each of its arrays that has one."""

    def vjp(argnum: int, value: Any, args: tuple[Any, ...], keywords: Any) -> Callable[[Any], Any]:
        call, named = gradients.get(arrays[argnum]), dict(zip(arrays, args, strict=True))
        if call is None:
            return lambda g: vspace(args[argnum]).zeros()
        return lambda g: call.run(OPS, {**named, "g": _in_dtype_of(value, g)}, keywords)

    def jvp(argnum: int, t: Any, value: Any, args: tuple[Any, ...], keywords: Any) -> Any:
        call, named = tangents.get(arrays[argnum]), dict(zip(arrays, args, strict=True))
        if call is None:
            return vspace(value).zeros()
        return call.run(OPS, {**named, "t": _in_dtype_of(args[argnum], t)}, keywords)

    defvjp_argnum(run, vjp)
    defjvp_argnum(run, jvp)


def _bound(op: Op) -> Callable[..., dict[str, Any]]:
    """A function from a call's arguments to their names, as the op itself would name them."""
    signature = inspect.signature(op)

    def bind(*args: Any, **keywords: Any) -> dict[str, Any]:
        try:
            return signature.bind(*args, **keywords).arguments
        except TypeError as error:
            raise TypeError(f"{op.__name__}: {error}") from None

    return bind


def _make(name: str) -> Op:
    """The op of this name: arrays by place or by name, recorded where autograd records one of them."""
    rule, op = DERIVATIVES[name], getattr(pb, name)
    run, bind = primitive(op), _bound(op)
    _define(run, rule.arrays, rule.vjp, rule.jvp)

    @wraps(op)
    def traced(*args: Any, **keywords: Any) -> Any:
        named = bind(*args, **keywords)
        arrays = [named.pop(array) for array in rule.arrays]
        if named.get("out") is not None and any_traced(arrays):
            raise TypeError(f"{name}: autograd records this call and keeps its result; leave out= away")
        bias = named.pop("bias", None)
        return _with_bias(name, run(*arrays, **named), bias, named.get("layout", DEFAULT_LAYOUT))

    OPS[name] = traced
    return traced


def _with_bias(op: str, y: Any, bias: Any, layout: str) -> Any:
    return y if bias is None else add_bias(op, y, as_bias(op, bias, y, layout), layout)


conv = _make("conv")
conv_grad_input = _make("conv_grad_input")
conv_grad_filter = _make("conv_grad_filter")
max_pool_grad = _make("max_pool_grad")
max_pool_grad_from_indices = _make("max_pool_grad_from_indices")
max_pool_grad_from_winners = _make("max_pool_grad_from_winners")
max_pool_jvp = _make("max_pool_jvp")
max_pool_jvp_from_indices = _make("max_pool_jvp_from_indices")
max_pool_jvp_from_winners = _make("max_pool_jvp_from_winners")
avg_pool = _make("avg_pool")
avg_pool_grad = _make("avg_pool_grad")
adaptive_max_pool_grad = _make("adaptive_max_pool_grad")
adaptive_max_pool_jvp = _make("adaptive_max_pool_jvp")
adaptive_avg_pool = _make("adaptive_avg_pool")
adaptive_avg_pool_grad = _make("adaptive_avg_pool_grad")
max_unpool = _make("max_unpool")
max_unpool_grad = _make("max_unpool_grad")


# The maxima are found once, forwards, and their places kept for the way back.
def _make_found(kept: str) -> Op:
    """The primitive of a maximum that is known already, with the winners or the indices where it was found."""

    def found(x: Any, values: Any, places: Any, **keywords: Any) -> Any:
        return values

    run: Op = primitive(found)
    gradient = Call(f"max_pool_grad_from_{kept}", ("g", kept), {"input_shape": "x"})
    _define(run, ("x", "values", kept), {"x": gradient}, {"x": Call(f"max_pool_jvp_from_{kept}", ("t", kept))})
    return run


_FOUND = {kept: _make_found(kept) for kept in ("winners", "indices")}
_bind_max_pool = _bound(pb.max_pool)


@wraps(pb.max_pool)
def max_pool(*args: Any, **keywords: Any) -> Any:
    named = _bind_max_pool(*args, **keywords)
    x = named.pop("x")
    if not any_traced([x]):
        return pb.max_pool(x, **named)
    kept = "indices" if named.get("return_indices") else "winners"
    wanted = named.pop(f"return_{kept}", False)
    asked: dict[str, Any] = {**named, f"return_{kept}": wanted or True}
    values, places = pb.max_pool(plain(x), **asked)
    pooled = _FOUND[kept](x, values, places, **named)
    return (pooled, places) if wanted else pooled


OPS["max_pool"] = max_pool


_bind_adaptive_max_pool = _bound(pb.adaptive_max_pool)


@wraps(pb.adaptive_max_pool)
def adaptive_max_pool(*args: Any, **keywords: Any) -> Any:
    named = _bind_adaptive_max_pool(*args, **keywords)
    x, wanted = named.pop("x"), named.pop("return_indices", False)
    values, indices = pb.adaptive_max_pool(plain(x), **named, return_indices=wanted or True)
    kept = {name: value for name, value in named.items() if name in ("layout", "storage_order")}
    pooled = _FOUND["indices"](x, values, indices, **kept)
    return (pooled, indices) if wanted else pooled


OPS["adaptive_max_pool"] = adaptive_max_pool


@wraps(pb.conv_grad_bias)
def conv_grad_bias(dy: Any, *, layout: str = DEFAULT_LAYOUT) -> Any:
    channels = dy.ndim - 1 if as_layout("conv_grad_bias", layout, dy.ndim - 2) == "channels_last" else 1
    return anp.sum(dy, axis=tuple(axis for axis in range(dy.ndim) if axis != channels))


@wraps(pb.conv_transpose)
def conv_transpose(x: Any, filter: Any, *, bias: Any = None, **keywords: Any) -> Any:
    problem, *_ = prepare_conv_transpose(plain(x), plain(filter), **keywords)
    place = {name: value for name, value in keywords.items() if not name.startswith("output")}
    y = conv_grad_input(x, filter, problem.input_shape, **place)
    return _with_bias("conv_transpose", y, bias, keywords.get("layout", DEFAULT_LAYOUT))
