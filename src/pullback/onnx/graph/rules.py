"""The gradient of each op, one rule each: for every input the expression that makes its gradient of that of the output.

In an expression n is the node: n.x (or n.a) and n.b its inputs, n.y its output, n.dy the gradient of n.y; `op` appends ONNX's own
operators, `ms` those of ONNX Runtime (com.microsoft). A gradient that nobody needs is not emitted.

Ties and kinks: Relu at 0 gives 0, Abs at 0 gives 0; Clip passes the gradient at its bounds, as torch.clamp does; Max, Min and
ReduceMax split evenly among equal entries, as torch.maximum and torch.amax do; MaxPool and GlobalMaxPool give all to the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pullback.onnx.graph import functions, rules_norm, rules_product, rules_reduce, rules_shape, rules_window
from pullback.onnx.graph.emit import Value
from pullback.onnx.graph.view import NodeView, reduced_to

Gradient = Callable[[NodeView], Value | None]
Gradients = Callable[[NodeView], Sequence[Value | None]]


@dataclass(frozen=True)
class Rule:
    """`run` gives the gradients of the inputs, in order. `places`: the inputs that have one, None for all."""

    run: Gradients
    places: tuple[int, ...] | None = None

    def has(self, place: int) -> bool:
        return self.places is None or place in self.places


def of(*gradients: Gradient | None) -> Rule:
    """One expression an input, None where there is no gradient."""

    def run(n: NodeView) -> list[Value | None]:
        return [each(n) if each and want else None for each, want in zip(gradients, n.wanted, strict=False)]

    return Rule(run, tuple(place for place, each in enumerate(gradients) if each))


def elementwise(*gradients: Gradient | None) -> Rule:
    """As `of`, for inputs that are stretched to each other's shape: their gradients are summed back."""

    def summed(place: int, gradient: Gradient) -> Gradient:
        def run(n: NodeView) -> Value | None:
            full = gradient(n)
            return None if full is None else reduced_to(n.g, full, n.input(place), n.y)

        return run

    return of(*(each and summed(place, each) for place, each in enumerate(gradients)))


def each_input(gradient: Callable[[NodeView, int], Value | None], *, stretched: bool = True) -> Rule:
    """The same expression for every input of an op that takes any number of them."""

    def run(n: NodeView) -> list[Value | None]:
        results: list[Value | None] = []
        for place, want in enumerate(n.wanted):
            full = gradient(n, place) if want else None
            results.append(reduced_to(n.g, full, n.input(place), n.y) if full is not None and stretched else full)
        return results

    return Rule(run)


def together(run: Gradients, *places: int) -> Rule:
    """One node gives the gradients of several inputs: `run` looks at n.wanted itself."""
    return Rule(run, places or None)


RULES: dict[str, Rule] = {
    # arithmetic
    "Add": elementwise(lambda n: n.dy, lambda n: n.dy),
    "Sub": elementwise(lambda n: n.dy, lambda n: -n.dy),
    "Mul": elementwise(lambda n: n.dy * n.b, lambda n: n.dy * n.a),
    "Div": elementwise(lambda n: n.dy / n.b, lambda n: -(n.dy * n.y / n.b)),
    "Neg": of(lambda n: -n.dy),
    "Sum": each_input(lambda n, i: n.dy),
    "Identity": of(lambda n: n.dy),
    # activations
    "Relu": of(lambda n: n.ms.ReluGrad(n.dy, n.y)),
    "Sigmoid": of(lambda n: n.ms.SigmoidGrad(n.dy, n.y)),
    "Tanh": of(lambda n: n.ms.TanhGrad(n.dy, n.y)),
    # windows
    "Conv": together(rules_window.conv, 0, 1, 2),
    "MaxPool": of(rules_window.max_pool),
    "AveragePool": of(rules_window.average_pool),
    "GlobalAveragePool": of(rules_window.global_average_pool),
    # normalisation
    "BatchNormInternal": together(rules_norm.batch_norm_training, 0, 1, 2),
    "BatchNormalization": together(rules_norm.batch_norm_inference, 0, 1, 2),
    # products
    "Gemm": of(rules_product.gemm_a, rules_product.gemm_b, rules_product.gemm_c),
    "MatMul": of(rules_product.matmul_a, rules_product.matmul_b),
    # shapes
    "Flatten": of(lambda n: n.g.reshape(n.dy, n.x)),
    "Reshape": of(lambda n: n.g.reshape(n.dy, n.x)),
}

# Floating-point results that do not change with their inputs, except in jumps: the gradient stops there. (Whole numbers and truth
# values stop it anyway.)
STOPS = frozenset({"Floor", "Ceil", "Round", "Sign", "EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Hardmax",
                   "ConstantOfShape", "Range", "OneHot", "QuantizeLinear", "NonZero", "IsNaN", "Multinomial"})  # fmt: skip
