"""One node a case, in all forms that its rule knows, as models whose loss is a number: for the tests of the rules."""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pullback.onnx.executor.program import Program
from pullback.onnx.graph.folding import expand_operators


@dataclass
class Case:
    """A node: inputs that are shapes are parameters with random values, arrays are constants, None is absent."""

    op: str
    inputs: tuple
    attrs: dict
    opset: int = 17
    low: float = -2.0
    high: float = 2.0
    outputs: int = 1
    fixed: bool = False  # the rule needs the sizes

    @property
    def id(self):
        shapes = "_".join("x".join(map(str, i)) if isinstance(i, tuple) else "c" for i in self.inputs)
        attrs = "_".join(f"{k}{v}".replace(" ", "") for k, v in self.attrs.items())
        return f"{self.op}{self.opset}-{shapes}-{attrs}"[:90]


def case(op, *inputs, opset=17, low=-2.0, high=2.0, outputs=1, fixed=False, **attrs):
    return Case(op, inputs, attrs, opset, low, high, outputs, fixed)


def ints(*values):
    return np.array(values, np.int64)


def floats(*values):
    return np.array(values, np.float64)


SMOOTH = ["Neg", "Exp", "Sin", "Cos", "Atan", "Asinh", "Sinh", "Cosh", "Erf", "Sigmoid", "Tanh", "Softplus", "Softsign", "Abs",
          "Relu", "HardSigmoid"]  # fmt: skip
IMAGE, SMALL = (2, 4, 5, 6), (2, 3)
POOL = {"kernel_shape": [3, 2], "strides": [2, 1]}

CASES = [
    *(case(op, (3, 4)) for op in SMOOTH),
    *(case(op, (3, 4), low=0.3) for op in ("Sqrt", "Log", "Reciprocal")),
    *(case(op, (3, 4), low=-0.9, high=0.9) for op in ("Tan", "Asin", "Acos", "Atanh")),
    case("Acosh", (3, 4), low=1.1, high=3),
    case("HardSwish", (3, 8), low=-5, high=5),
    case("HardSigmoid", (3, 8), low=-6, high=6, alpha=0.3, beta=0.4),
    case("Mish", (3, 4), opset=18),
    case("Gelu", (3, 4), opset=20),
    case("Gelu", (3, 4), opset=20, approximate="tanh"),
    case("Elu", (3, 4), alpha=0.7),
    case("Celu", (3, 4), alpha=0.7),
    case("Selu", (3, 4)),
    case("Selu", (3, 4), alpha=1.2, gamma=0.9),
    case("LeakyRelu", (3, 4), alpha=0.2),
    case("LeakyRelu", (3, 4), alpha=-0.2),
    case("ThresholdedRelu", (3, 4), alpha=0.5),
    case("Shrink", (3, 4), lambd=0.5, bias=0.2),
    case("PRelu", (2, 3, 4), (3, 1)),
    case("PRelu", (2, 3, 4), (1,)),
    case("Clip", (3, 4), floats(-1).reshape(()), floats(1).reshape(())),
    case("Clip", (3, 4), None, floats(0.5).reshape(()), opset=11),
    *(case(op, a, b) for op in ("Add", "Sub", "Mul")
      for a, b in ((SMALL, SMALL), (SMALL, (3,)), ((3,), SMALL), ((2, 1), (1, 3)), ((), SMALL))),
    *(case("Div", a, b, low=0.5) for a, b in ((SMALL, SMALL), (SMALL, (3,)), ((1, 3), (4, 2, 1)))),
    case("Pow", (3, 4), (4,), low=0.4),
    *(case("Pow", (3, 4), floats(p).reshape(()), low=0.4) for p in (2, 3, 0.5, -1, 1)),
    case("Pow", (3, 4), ints(3).reshape(()), low=0.4),
    *(case(op, SMALL, (3,), (1, 1)) for op in ("Sum", "Mean", "Max", "Min")),
    case("Max", SMALL),
    case("Where", np.array([[True, False, True]]), SMALL, (2, 1)),
    *(case(op, IMAGE, opset=opset, **attrs) for op in ("Softmax", "LogSoftmax")
      for opset, attrs in ((11, {}), (11, {"axis": 2}), (13, {"axis": 1}), (17, {}))),
    # windows
    case("Conv", (2, 4, 7, 6), (6, 4, 3, 2), (6,)),
    case("Conv", (2, 4, 7, 6), (6, 2, 3, 2), (6,), group=2, strides=[2, 1], pads=[1, 0, 0, 2], dilations=[2, 1], opset=11),
    case("Conv", (2, 3, 7, 6), (2, 3, 3, 3), auto_pad="SAME_LOWER", strides=[2, 2], opset=22),
    case("Conv", (2, 3, 9), (4, 3, 3), (4,), pads=[1, 1]),
    case("Conv", (1, 2, 4, 5, 3), (4, 1, 2, 2, 2), group=2),
    case("ConvTranspose", (2, 4, 5, 4), (4, 3, 3, 2), (3,), strides=[2, 1], pads=[1, 0, 0, 1], output_padding=[1, 0]),
    case("ConvTranspose", (2, 4, 5), (4, 3, 3), (6,), group=2, dilations=[2]),
    case("ConvTranspose", (1, 2, 4, 4), (2, 3, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    case("ConvTranspose", (1, 2, 4, 4), (2, 3, 3, 3), output_shape=[9, 8], strides=[2, 2]),
    *(case(op, IMAGE, **POOL, **attrs) for op in ("MaxPool", "AveragePool")
      for attrs in ({}, {"pads": [1, 0, 1, 1]}, {"ceil_mode": 1})),
    case("MaxPool", IMAGE, kernel_shape=[3, 2], storage_order=1, dilations=[1, 2], opset=12),
    case("MaxPool", (2, 2, 7), kernel_shape=[3], auto_pad="SAME_UPPER", opset=22),
    case("AveragePool", IMAGE, **POOL, pads=[1, 0, 1, 1], count_include_pad=1, opset=11),
    case("AveragePool", IMAGE, kernel_shape=[2, 2], dilations=[2, 1], opset=19),
    case("AveragePool", (1, 2, 4, 3, 5), kernel_shape=[2, 2, 3], auto_pad="SAME_UPPER"),
    case("LpPool", IMAGE, **POOL, p=3, opset=11),
    case("LpPool", IMAGE, **POOL, pads=[1, 0, 1, 1], opset=18),
    *(case(op, IMAGE) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")),
    case("GlobalLpPool", IMAGE, p=3),
    case("GlobalMaxPool", (2, 3, 7)),
    *(case("LpNormalization", (3, 4, 2), axis=1, p=p) for p in (1, 2)),
    case("RMSNormalization", (2, 5, 6), (6,), epsilon=0.01, opset=23),
    case("RMSNormalization", (2, 5, 6), (5, 6), axis=1, opset=23),
    case("LRN", (2, 6, 3, 2), size=4, alpha=0.3, beta=0.6, bias=1.5),
    # normalisation
    case("BatchNormalization", (4, 3, 5, 2), (3,), (3,), floats(0.1, 0.2, 0.3), floats(1, 2, 3), epsilon=0.01, momentum=0.8),
    case("BatchNormalization", (7, 3), (3,), (3,), floats(0.1, 0.2, 0.3), floats(1, 2, 3), opset=11),
    case("LayerNormalization", (2, 5, 6), (6,), (6,), epsilon=0.01),
    case("LayerNormalization", (2, 5, 6), (5, 6), axis=1, fixed=True),
    case("LayerNormalization", (2, 5, 6), (6,), (6,), axis=1, fixed=True),
    case("InstanceNormalization", (2, 3, 4, 2), (3,), (3,), epsilon=0.01, fixed=True),
    case("GroupNormalization", (2, 6, 4, 2), (3,), (3,), num_groups=3, opset=18, fixed=True),
    case("GroupNormalization", (2, 6, 4), (6,), (6,), num_groups=2, epsilon=0.01, opset=21),
    # products
    *(case("Gemm", *shapes, (2, 5), transA=a, transB=b, alpha=0.5, beta=2.0) for a, b, shapes in
      ((0, 0, ((2, 3), (3, 5))), (1, 0, ((3, 2), (3, 5))), (0, 1, ((2, 3), (5, 3))), (1, 1, ((3, 2), (5, 3))))),
    *(case("Gemm", (2, 3), (3, 5), c) for c in ((5,), (2, 1), ())),
    case("Gemm", (2, 3), (3, 5)),
    *(case("MatMul", a, b) for a, b in (
        ((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4)),
        ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((1, 2, 3), (5, 3, 4)))),
    case("Einsum", (2, 3, 4), (2, 4, 5), equation="bij,bjk->bik"),
    case("Einsum", (2, 3, 4), (4, 5), equation="...j, jk"),
    case("Einsum", (2, 3), (3, 4), (4,), equation="ij,jk,k->i"),
    # reductions
    *(case(op, (2, 3, 4), low=low, opset=13, **attrs)
      for op, low in (("ReduceMean", -2), ("ReduceMax", -2), ("ReduceMin", -2), ("ReduceL1", -2), ("ReduceL2", -2),
                      ("ReduceSumSquare", -2), ("ReduceLogSum", 0.5), ("ReduceLogSumExp", -2))
      for attrs in ({"axes": [0, -1]}, {"keepdims": 0}, {"axes": [1], "keepdims": 0})),
    *(case(op, (2, 3, 4), ints(-1, 0), opset=18, keepdims=k) for op in ("ReduceMean", "ReduceMax", "ReduceL2") for k in (0, 1)),
    *(case("ReduceSum", (2, 3, 4), axes, opset=13, keepdims=k) for axes in (ints(1), ints(0, -1), None) for k in (0, 1)),
    case("ReduceSum", (2, 3, 4), opset=11, axes=[1], keepdims=0),
    case("ReduceSum", (2, 3, 4), opset=13, noop_with_empty_axes=1),
    case("CumSum", (3, 4), ints(1).reshape(())),
    case("CumSum", (3, 4), ints(0).reshape(()), exclusive=1, reverse=1),
    # shapes
    case("Flatten", (2, 3, 4), axis=2),
    case("Reshape", (2, 3, 4), ints(0, -1)),
    case("Squeeze", (2, 1, 4), ints(1), opset=13),
    case("Squeeze", (2, 1, 4), opset=11, axes=[1]),
    case("Unsqueeze", (2, 4), ints(0, -1), opset=13),
    case("Unsqueeze", (2, 4), opset=12, axes=[1]),
    case("Transpose", (2, 3, 4), perm=[2, 0, 1]),
    case("Transpose", (2, 3)),
    case("Expand", (3, 1), ints(2, 1, 4)),
    case("Tile", (2, 3), ints(2, 2), fixed=True),
    case("Tile", (2, 3), ints(1, 3), fixed=True),
    case("Concat", (2, 3), (2, 1), (2, 2), axis=-1),
    case("Concat", (2, 3), axis=0),
    case("Split", (2, 6), ints(1, 2, 3), outputs=3, axis=1),
    case("Split", (6, 2), opset=12, outputs=2, split=[2, 4]),
    case("Split", (7, 2), opset=18, outputs=3, num_outputs=3),
    case("Slice", (4, 6), ints(1, -1), ints(3, -5), ints(0, 1), ints(1, -2)),
    case("Slice", (4, 6), ints(1), ints(100), opset=11),
    case("Gather", (5, 3), ints(0, 4, 0, -1).reshape(2, 2)),
    case("Gather", (3, 5), ints(1).reshape(()), axis=1),
    case("GatherElements", (3, 4), ints(0, 2, 0, 1, 1, 1, 0, 0).reshape(2, 4), axis=0),
    *(case("Pad", (3, 4), ints(1, 2, 0, 1), opset=opset, mode=mode)
      for opset, mode in ((11, "constant"), (17, "reflect"), (17, "edge"), (19, "wrap"))),
    case("Pad", (3, 4), ints(1, -1, 0, 2)),
    case("Pad", (3, 4), ints(1, 2), None, ints(-1), opset=18),
    case("Pad", (3, 4), ints(1, 2), None, ints(-1), opset=18, mode="edge"),
    *(case("Resize", (1, 2, 3, 4), None, np.array([1, 1, 2, 1.5], np.float32), mode=mode, coordinate_transformation_mode=way)
      for mode in ("nearest", "linear", "cubic") for way in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")),
    case("Resize", (1, 2, 3, 4), np.zeros(0, np.float32), np.zeros(0, np.float32), ints(1, 2, 6, 2), mode="linear", opset=11),
    case("Resize", (1, 2, 6, 7), None, None, ints(3, 4), mode="linear", antialias=1, axes=[2, 3], opset=18),
    case("Resize", (1, 2, 4, 4), np.array([0, 0, 0.1, 0.2, 1, 1, 0.9, 1.2], np.float32), None, ints(1, 2, 5, 3), mode="linear",
         coordinate_transformation_mode="tf_crop_and_resize"),
    case("DepthToSpace", (1, 8, 2, 3), blocksize=2),
    case("DepthToSpace", (1, 8, 2, 3), blocksize=2, mode="CRD", fixed=True),
    case("SpaceToDepth", (1, 2, 4, 6), blocksize=2),
    case("GatherND", (3, 4, 2), ints(0, 1, 2, 3, 0, 1).reshape(3, 2)),
    case("GatherND", (2, 4, 3), ints(1, 3).reshape(2, 1), batch_dims=1),
    case("ScatterND", (5, 3), ints(1, 4).reshape(2, 1), (2, 3)),
    case("ScatterND", (5, 3), ints(1, 1).reshape(2, 1), (2, 3), reduction="add"),
    case("ScatterElements", (3, 4), ints(0, 2, 1, 1).reshape(1, 4), (1, 4), axis=0),
    case("ScatterElements", (3, 4), ints(0, 0, 3, 1, 1, 2).reshape(3, 2), (3, 2), axis=1, reduction="add"),
    case("TopK", (3, 5), ints(2), axis=1),
    case("Trilu", (3, 4), upper=0),
    case("Trilu", (3, 4), ints(1).reshape(())),
    # made of others
    case("Attention", (1, 4, 3, 2), (1, 2, 5, 2), (1, 2, 5, 2), opset=23, scale=0.7),
    # losses in a model
    case("SoftmaxCrossEntropyLoss", (4, 3), ints(0, 2, 1, 2), floats(1, 2, 0.5)),
    case("SoftmaxCrossEntropyLoss", (2, 3, 4), ints(0, 2, 1, -1, 0, 2, 1, 1).reshape(2, 4), ignore_index=-1, reduction="sum"),
    case("SoftmaxCrossEntropyLoss", (4, 3), ints(0, 2, 1, 2), reduction="none"),
    case("NegativeLogLikelihoodLoss", (4, 3), ints(0, 2, 1, 2), floats(1, 2, 0.5)),
]  # fmt: skip


def values(rng, shape, low, high):
    """Numbers with room between them, in no order: no ties, nothing at a kink."""
    count = int(np.prod(shape))
    return rng.permutation(np.linspace(low, high, count + 1)[:-1] + (high - low) / (count * 2.7)).reshape(shape)


def model_of(case, dynamic, dtype=np.float64):
    """The sum of every output squared times fixed factors, as a function of the parameters; and what to feed."""
    rng, kind = np.random.default_rng(7), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, initializers, inputs, feeds, names, open_sizes = [], [], [], {}, [], []
    for place, given in enumerate(case.inputs):
        if given is None:
            names.append("")
            continue
        name, trained = f"p{place}", isinstance(given, tuple)
        array = values(rng, given, case.low, case.high).astype(dtype) if trained else given
        if array.dtype == np.float64:
            array = array.astype(dtype)
        initializers.append(numpy_helper.from_array(np.asarray(array), name))
        if trained and dynamic:
            inputs.append(helper.make_tensor_value_info(f"shape{place}", TensorProto.INT64, [len(given)]))
            feeds[f"shape{place}"] = np.array(given, np.int64)
            nodes.append(helper.make_node("Reshape", [name, f"shape{place}"], [f"x{place}"]))
            name = f"x{place}"
            sizes = [f"size{place}_{axis}" for axis in range(len(given))]
            open_sizes.append(helper.make_tensor_value_info(name, kind, sizes))
        names.append(name)
    outputs = [f"y{i}" for i in range(case.outputs)]
    more = ["places"] if case.op == "TopK" else []
    nodes.append(helper.make_node(case.op, names, outputs + more, **case.attrs))
    totals = []
    for output in outputs:
        nodes.append(helper.make_node("Mul", [output, output], [f"{output}_square"]))
        nodes.append(helper.make_node("Mul", [f"{output}_square", f"{output}_factors"], [f"{output}_product"]))
        nodes.append(helper.make_node("ReduceSum", [f"{output}_product"], [f"{output}_total"], keepdims=0))
        totals.append(f"{output}_total")
    nodes.append(helper.make_node("Sum", totals, ["total"]))
    graph = helper.make_graph(
        nodes,
        "case",
        inputs,
        [helper.make_tensor_value_info("total", kind, [])],
        initializers,
        value_info=open_sizes,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=8)
    return _with_factors(model, feeds, outputs, rng, dtype), feeds


def _with_factors(model, feeds, outputs, rng, dtype):
    """The factors have the shape of the outputs, which a run of the node tells."""
    short = onnx.ModelProto()
    short.CopyFrom(model)
    del short.graph.node[-(3 * len(outputs) + 1) :]
    run = Program(expand_operators(short), outputs).run(feeds)
    for name in outputs:
        factors = rng.uniform(0.5, 1.5, run[name].shape) * rng.choice([-1, 1], run[name].shape)
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(factors, dtype), f"{name}_factors"))
    return model
