"""The derivatives of every op, as data: closed under differentiation, each gradient and tangent is again one of the ops.

A rule names arrays; "g" stands for the gradient of the op's result and "t" for the tangent of one of its arguments. A framework
(autograd, PyTorch, JAX) brings its own functions of the ops' names and calls `Call.run` with them, so derivatives of derivatives
come by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_PLACE = ("stride", "padding", "dilation", "layout", "rounding")
_CONV = (*_PLACE, "groups")
_POOL = ("window", *_PLACE)
_MAX = (*_POOL, "ties", "nan")
_WINNERS = (*_POOL, "nan")
_INDICES = ("layout", "storage_order")
_ADAPTIVE_MAX = ("layout", "ties", "nan")
_MEAN = (*_POOL, "count_include_pad", "divisor")


@dataclass(frozen=True)
class Call:
    """A call of one of the ops: `shapes` are its arguments that are shapes, each with the array whose shape it is."""

    op: str
    arrays: tuple[str, ...]
    shapes: Mapping[str, str] = field(default_factory=dict)

    def run(self, ops: Mapping[str, Callable[..., Any]], arrays: Mapping[str, Any], keywords: Mapping[str, Any]) -> Any:
        """Call `ops[self.op]` on named arrays; of the differentiated call's keywords it takes those that it has as well."""
        taken = {name: value for name, value in keywords.items() if name in DERIVATIVES[self.op].keywords}
        taken |= {name: tuple(arrays[of].shape) for name, of in self.shapes.items()}
        return ops[self.op](*(arrays[name] for name in self.arrays), **taken)


@dataclass(frozen=True)
class Derivative:
    """An op's array arguments in order, its other arguments, and per array the gradient ("g" comes in) and tangent ("t").

    An array without a rule is piecewise constant to the op (x of max_pool_grad, indices, winners): it gets no gradient.
    """

    arrays: tuple[str, ...]
    keywords: tuple[str, ...]
    vjp: Mapping[str, Call]
    jvp: Mapping[str, Call]


def _linear(arrays: tuple[str, ...], keywords: tuple[str, ...], op: str, adjoint: Call) -> Derivative:
    """An op that is linear in its first array, the others choosing which linear map it is."""
    first, *rest = arrays
    return Derivative(arrays, keywords, {first: adjoint}, {first: Call(op, ("t", *rest))})


DERIVATIVES: dict[str, Derivative] = {
    "conv": Derivative(
        ("x", "filter"),
        _CONV,
        vjp={
            "x": Call("conv_grad_input", ("g", "filter"), {"input_shape": "x"}),
            "filter": Call("conv_grad_filter", ("g", "x"), {"filter_shape": "filter"}),
        },
        jvp={"x": Call("conv", ("t", "filter")), "filter": Call("conv", ("x", "t"))},
    ),
    "conv_grad_input": Derivative(
        ("dy", "filter"),
        ("input_shape", *_CONV),
        vjp={
            "dy": Call("conv", ("g", "filter")),
            "filter": Call("conv_grad_filter", ("dy", "g"), {"filter_shape": "filter"}),
        },
        jvp={"dy": Call("conv_grad_input", ("t", "filter")), "filter": Call("conv_grad_input", ("dy", "t"))},
    ),
    "conv_grad_filter": Derivative(
        ("dy", "x"),
        ("filter_shape", *_CONV),
        vjp={
            "dy": Call("conv", ("x", "g")),
            "x": Call("conv_grad_input", ("dy", "g"), {"input_shape": "x"}),
        },
        jvp={"dy": Call("conv_grad_filter", ("t", "x")), "x": Call("conv_grad_filter", ("dy", "t"))},
    ),
    "max_pool": Derivative(
        ("x",), _MAX, vjp={"x": Call("max_pool_grad", ("g", "x"))}, jvp={"x": Call("max_pool_jvp", ("t", "x"))}
    ),
    "max_pool_grad": _linear(("dy", "x"), _MAX, "max_pool_grad", Call("max_pool_jvp", ("g", "x"))),
    "max_pool_jvp": _linear(("t", "x"), _MAX, "max_pool_jvp", Call("max_pool_grad", ("g", "x"))),
    "max_pool_grad_from_indices": _linear(
        ("dy", "indices"),
        ("input_shape", *_INDICES),
        "max_pool_grad_from_indices",
        Call("max_pool_jvp_from_indices", ("g", "indices")),
    ),
    "max_pool_jvp_from_indices": _linear(
        ("t", "indices"),
        _INDICES,
        "max_pool_jvp_from_indices",
        Call("max_pool_grad_from_indices", ("g", "indices"), {"input_shape": "t"}),
    ),
    "max_pool_grad_from_winners": _linear(
        ("dy", "winners"),
        ("input_shape", *_WINNERS),
        "max_pool_grad_from_winners",
        Call("max_pool_jvp_from_winners", ("g", "winners")),
    ),
    "max_pool_jvp_from_winners": _linear(
        ("t", "winners"),
        _WINNERS,
        "max_pool_jvp_from_winners",
        Call("max_pool_grad_from_winners", ("g", "winners"), {"input_shape": "t"}),
    ),
    "avg_pool": _linear(("x",), _MEAN, "avg_pool", Call("avg_pool_grad", ("g",), {"input_shape": "x"})),
    "avg_pool_grad": _linear(("dy",), ("input_shape", *_MEAN), "avg_pool_grad", Call("avg_pool", ("g",))),
    "adaptive_max_pool": Derivative(
        ("x",),
        ("output_size", *_ADAPTIVE_MAX),
        vjp={"x": Call("adaptive_max_pool_grad", ("g", "x"))},
        jvp={"x": Call("adaptive_max_pool_jvp", ("t", "x"))},
    ),
    "adaptive_max_pool_grad": _linear(
        ("dy", "x"), _ADAPTIVE_MAX, "adaptive_max_pool_grad", Call("adaptive_max_pool_jvp", ("g", "x"), {"output_size": "dy"})
    ),
    "adaptive_max_pool_jvp": _linear(
        ("t", "x"), ("output_size", *_ADAPTIVE_MAX), "adaptive_max_pool_jvp", Call("adaptive_max_pool_grad", ("g", "x"))
    ),
    "adaptive_avg_pool": _linear(
        ("x",), ("output_size", "layout"), "adaptive_avg_pool", Call("adaptive_avg_pool_grad", ("g",), {"input_shape": "x"})
    ),
    "adaptive_avg_pool_grad": _linear(
        ("dy",), ("input_shape", "layout"), "adaptive_avg_pool_grad", Call("adaptive_avg_pool", ("g",), {"output_size": "dy"})
    ),
    "max_unpool": _linear(
        ("values", "indices"), ("output_shape", *_INDICES), "max_unpool", Call("max_unpool_grad", ("g", "indices"))
    ),
    "max_unpool_grad": _linear(
        ("dy", "indices"), _INDICES, "max_unpool_grad", Call("max_unpool", ("g", "indices"), {"output_shape": "dy"})
    ),
}
