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

from pullback.onnx.graph import functions, rules_math, rules_norm, rules_product, rules_reduce, rules_shape, rules_window
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
    "Pow": elementwise(rules_math.pow_base, rules_math.pow_exponent),
    "Sum": each_input(lambda n, i: n.dy),
    "Mean": each_input(lambda n, i: n.dy * (1 / len(n.node.inputs))),
    "Max": each_input(rules_reduce.arg_extreme_of),
    "Min": each_input(rules_reduce.arg_extreme_of),
    "Where": elementwise(None, lambda n: n.op.Where(n.a, n.dy, 0), lambda n: n.op.Where(n.a, 0, n.dy)),
    "Neg": of(lambda n: -n.dy),
    "Abs": of(lambda n: n.dy * n.op.Sign(n.x)),
    "Sqrt": of(lambda n: n.dy * 0.5 / n.y),
    "Reciprocal": of(lambda n: -(n.dy * n.y * n.y)),
    "Exp": of(lambda n: n.dy * n.y),
    "Log": of(lambda n: n.dy / n.x),
    "Sin": of(lambda n: n.dy * n.op.Cos(n.x)),
    "Cos": of(lambda n: -(n.dy * n.op.Sin(n.x))),
    "Tan": of(lambda n: n.dy * (n.y * n.y + 1.0)),
    "Asin": of(lambda n: n.dy / n.op.Sqrt(1.0 - n.x * n.x)),
    "Acos": of(lambda n: -(n.dy / n.op.Sqrt(1.0 - n.x * n.x))),
    "Atan": of(lambda n: n.dy / (n.x * n.x + 1.0)),
    "Sinh": of(lambda n: n.dy * n.op.Cosh(n.x)),
    "Cosh": of(lambda n: n.dy * n.op.Sinh(n.x)),
    "Asinh": of(lambda n: n.dy / n.op.Sqrt(n.x * n.x + 1.0)),
    "Acosh": of(lambda n: n.dy / n.op.Sqrt(n.x * n.x - 1.0)),
    "Atanh": of(lambda n: n.dy / (1.0 - n.x * n.x)),
    "Erf": of(lambda n: n.dy * (n.op.Exp(-(n.x * n.x)) * (2 / math.sqrt(math.pi)))),
    "Identity": of(lambda n: n.dy),
    "Cast": of(rules_shape.cast),
    "CastLike": of(rules_shape.cast, None),
    # activations
    "Relu": of(lambda n: n.ms.ReluGrad(n.dy, n.y)),
    "LeakyRelu": of(rules_math.leaky_relu),
    "PRelu": elementwise(lambda n: n.op.Where(n.x > 0, n.dy, n.dy * n.b), lambda n: n.op.Where(n.x > 0, 0, n.dy * n.x)),
    "ThresholdedRelu": of(lambda n: n.op.Where(n.x > n.attr("alpha", 1.0), n.dy, 0)),
    "Shrink": of(lambda n: n.op.Where(n.op.Abs(n.x) > n.attr("lambd", 0.5), n.dy, 0)),
    "Elu": of(lambda n: n.op.Where(n.x > 0, n.dy, n.dy * (n.y + n.attr("alpha", 1.0)))),
    "Celu": of(lambda n: n.op.Where(n.x > 0, n.dy, n.dy * (n.y / n.attr("alpha", 1.0) + 1.0))),
    "Selu": of(rules_math.selu),
    "Clip": of(rules_math.clip, None, None),
    "Sigmoid": of(lambda n: n.ms.SigmoidGrad(n.dy, n.y)),
    "HardSigmoid": of(rules_math.hard_sigmoid),
    "HardSwish": of(lambda n: n.g.call("HardSwishGrad", functions.hard_swish_grad, n.dy, n.x)),
    "Tanh": of(lambda n: n.ms.TanhGrad(n.dy, n.y)),
    "Gelu": of(lambda n: (n.ms.FastGeluGrad if n.attr("approximate", "none") == "tanh" else n.ms.GeluGrad)(n.dy, n.x)),
    "Mish": of(lambda n: n.g.call("MishGrad", functions.mish_grad, n.dy, n.x)),
    "Softplus": of(lambda n: n.dy * n.op.Sigmoid(n.x)),
    "Softsign": of(lambda n: n.dy / rules_math.square(n.op.Abs(n.x) + 1.0)),
    "Softmax": of(lambda n: n.ms.SoftmaxGrad_13(n.dy, n.y, axis=n.attr("axis", -1))),
    "LogSoftmax": of(lambda n: n.ms.LogSoftmaxGrad_13(n.dy, n.y, axis=n.attr("axis", -1))),
    "Dropout": of(rules_shape.dropout, None, None),
    # windows
    "Conv": together(rules_window.conv, 0, 1, 2),
    "ConvTranspose": together(rules_window.conv_transpose, 0, 1, 2),
    "MaxPool": of(rules_window.max_pool),
    "AveragePool": of(rules_window.average_pool),
    "LpPool": of(rules_window.lp_pool),
    "GlobalAveragePool": of(rules_window.global_average_pool),
    "GlobalMaxPool": of(rules_window.global_max_pool),
    "GlobalLpPool": of(rules_reduce.global_lp_pool),
    "Resize": of(rules_shape.resize, None, None, None),
    "DepthToSpace": of(rules_shape.depth_to_space),
    "SpaceToDepth": of(lambda n: n.op.DepthToSpace(n.dy, blocksize=n.attr("blocksize"))),
    # normalisation
    "BatchNormInternal": together(rules_norm.batch_norm_training, 0, 1, 2),
    "BatchNormalization": together(rules_norm.batch_norm_inference, 0, 1, 2),
    "LayerNormalization": together(rules_norm.layer_norm, 0, 1, 2),
    "GroupNormalization": together(rules_norm.group_norm, 0, 1, 2),
    "InstanceNormalization": together(rules_norm.instance_norm, 0, 1, 2),
    "RMSNormalization": together(rules_norm.rms_norm, 0, 1),
    "LpNormalization": of(rules_norm.lp_normalization),
    "LRN": of(lambda n: n.own.LRNGrad(n.dy, n.x, **n.attributes("alpha", "beta", "bias", "size"))),
    # products
    "Gemm": of(rules_product.gemm_a, rules_product.gemm_b, rules_product.gemm_c),
    "MatMul": of(rules_product.matmul_a, rules_product.matmul_b),
    "Einsum": together(rules_product.einsum),
    # reductions
    "ReduceSum": of(rules_reduce.total, None),
    "ReduceMean": of(rules_reduce.mean, None),
    "ReduceMax": of(rules_reduce.extreme, None),
    "ReduceMin": of(rules_reduce.extreme, None),
    "ReduceL1": of(rules_reduce.l1, None),
    "ReduceL2": of(rules_reduce.l2, None),
    "ReduceSumSquare": of(rules_reduce.sum_square, None),
    "ReduceLogSum": of(rules_reduce.log_sum, None),
    "ReduceLogSumExp": of(rules_reduce.log_sum_exp, None),
    "CumSum": of(rules_shape.cumsum, None),
    # shapes
    "Flatten": of(rules_shape.reshape),
    "Reshape": of(rules_shape.reshape, None),
    "Squeeze": of(rules_shape.reshape, None),
    "Unsqueeze": of(rules_shape.reshape, None),
    "Transpose": of(rules_shape.transpose),
    "Expand": of(rules_shape.expand, None),
    "Tile": of(rules_shape.tile, None),
    "Concat": together(rules_shape.concat),
    "Split": of(rules_shape.split, None),
    "Slice": of(rules_shape.slice_, None, None, None, None),
    "Gather": of(rules_shape.gather, None),
    "GatherElements": of(rules_shape.gather_elements, None),
    "GatherND": of(rules_shape.gather_nd, None),
    "TopK": of(rules_shape.top_k, None),
    "ScatterElements": of(rules_shape.scatter_into, None, rules_shape.scattered),
    "ScatterND": of(rules_shape.scatter_into, None, rules_shape.scattered),
    "Pad": of(rules_shape.pad, None, None, None),
    "Trilu": of(rules_shape.trilu, None),
    # losses inside a model
    "SoftmaxCrossEntropyLoss": of(rules_math.softmax_cross_entropy_loss, None, None),
    "NegativeLogLikelihoodLoss": of(rules_math.negative_log_likelihood_loss, None, None),
}

# Floating-point results that do not change with their inputs, except in jumps: the gradient stops there. (Whole numbers and truth
# values stop it anyway.)
STOPS = frozenset({"Floor", "Ceil", "Round", "Sign", "EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Hardmax",
                   "ConstantOfShape", "Range", "OneHot", "Multinomial"})  # fmt: skip
