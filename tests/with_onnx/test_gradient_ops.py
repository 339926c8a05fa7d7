"""What the executor does for gradient nodes: the same values whatever order the images lie in, and refusals."""

import numpy as np
import pytest

import pullback as pb
from pullback.onnx import OnnxError
from pullback.onnx.executor.layout import as_layout, channels_last, filter_as_last
from pullback.onnx.executor.registry import MICROSOFT, PULLBACK, Node, find_op

RNG = np.random.default_rng(4)


def array(*shape):
    return RNG.standard_normal(shape)


def indices(shape, out):
    """One cell of its own image and channel for each output."""
    cells = int(np.prod(shape[2:]))
    planes = np.arange(shape[0] * shape[1]).reshape(shape[0], shape[1], *(1,) * len(shape[2:]))
    return planes * cells + RNG.integers(0, cells, out)


SHAPE, OUT = (2, 4, 5, 6), (2, 4, 3, 4)
WINDOW = {"kernel_shape": [3, 3], "strides": [1, 1]}
GROUPS = np.array([0, 2, -1]), np.array(0.01)
# op, domain, arguments, attributes, the shape of X for nodes that need it
CASES = [
    ("ConvGrad", MICROSOFT, (array(2, 6, 3, 4), array(*SHAPE), array(6, 2, 3, 3)), {"group": 2}, None),
    ("ConvTransposeGrad", MICROSOFT, (array(2, 3, 7, 8), array(*SHAPE), array(4, 3, 3, 3)), {}, None),
    ("MaxPoolGrad", "", (array(*OUT), indices(SHAPE, OUT)), {}, SHAPE),
    ("AveragePoolGrad", "", (array(*OUT),), WINDOW, SHAPE),
    ("GlobalMaxPoolGrad", PULLBACK, (array(2, 4, 1, 1), array(*SHAPE)), {}, None),
    ("LpPoolGrad", PULLBACK, (array(*OUT), array(*SHAPE), np.abs(array(*OUT))), WINDOW | {"p": 3}, None),
    ("GroupNormalizationGrad", PULLBACK, (array(*SHAPE), array(*SHAPE), array(4), *GROUPS), {}, None),
    ("LRNGrad", PULLBACK, (array(*SHAPE), array(*SHAPE)), {"size": 3, "alpha": 0.5}, None),
    ("ResizeGrad", PULLBACK, (array(2, 4, 10, 3), None, None, np.array([2, 4, 10, 3])), {"mode": "linear"}, SHAPE),
    ("PadGrad", PULLBACK, (array(2, 4, 7, 6), np.array([0, 0, 1, 0, 0, 0, 1, 0])), {"mode": "reflect"}, SHAPE),
    ("SliceGrad", MICROSOFT, (array(2, 4, 2, 6), np.array(SHAPE), np.array([1]), np.array([3]), np.array([2])), {}, None),
    ("ReluGrad", MICROSOFT, (array(*SHAPE), array(*SHAPE)), {}, None),
    ("SoftmaxGrad_13", MICROSOFT, (array(*SHAPE), array(*SHAPE)), {"axis": 1}, None),
    ("GatherGrad", MICROSOFT, (np.array(SHAPE), np.array([0, 0, 3]), array(2, 3, 5, 6)), {"axis": 1}, None),
    ("SoftmaxCrossEntropyLossGrad", MICROSOFT, (np.array(1.0), array(*SHAPE), RNG.integers(0, 4, (2, 5, 6))), {}, None),
]


def run(op_type, domain, arguments, attrs, shape):
    node = Node(op_type, domain, "", ("",) * len(arguments), ("a", "b", "c"), attrs, 1)
    found = find_op(node)
    with pb.backend("reference"):
        result = found.run(node, *arguments, **({"shape": shape} if found.shaped else {}))
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_memory_order_does_not_matter(case):
    op_type, domain, arguments, attrs, shape = case
    images = [isinstance(a, np.ndarray) and a.ndim == 4 for a in arguments]
    moved = [as_layout(a, last=True) if image else a for a, image in zip(arguments, images, strict=True)]
    if op_type.startswith("Conv"):
        moved[2] = filter_as_last(arguments[2])
    assert any(channels_last(a) and not a.flags.c_contiguous for a, image in zip(moved, images, strict=True) if image)
    before = [None if a is None else a.copy() for a in arguments]
    for got, expected in zip(
        run(op_type, domain, moved, attrs, shape), run(op_type, domain, arguments, attrs, shape), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("op_type", "domain", "arguments", "attrs", "shape", "message"),
    [
        ("ConvGrad", MICROSOFT, (array(2, 6, 3, 3), array(*SHAPE), array(6, 4, 3, 3)), {}, None, "dY has shape"),
        ("MaxPoolGrad", "", (array(*OUT), indices(SHAPE, OUT)[:1]), {}, SHAPE, "they must agree"),
        ("AveragePoolGrad", "", (array(2, 4, 3, 3),), WINDOW, SHAPE, "dY has shape"),
        ("SoftmaxCrossEntropyLossGrad", MICROSOFT, (np.array(1.0), array(2, 3), np.array([0, 3])), {}, None, "3 classes"),
        ("SoftmaxCrossEntropyLossGrad", MICROSOFT, (np.array(1.0), array(2, 3), np.array([0, 1])), {"reduction": "max"}, None,
         "reduction is 'max'"),
    ],
)  # fmt: skip
def test_refusals(op_type, domain, arguments, attrs, shape, message):
    with pytest.raises(OnnxError, match=message):
        run(op_type, domain, arguments, attrs, shape)
