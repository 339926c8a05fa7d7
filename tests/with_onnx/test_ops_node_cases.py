"""The node tests of ONNX whose op and types are supported: as given, in other memory orders, and in the memory of an input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from node_cases import NodeCase, collected, run_node

import pullback as pb
from pullback.onnx.executor.layout import as_layout
from pullback.onnx.executor.registry import find_op
from pullback.onnx.ops.attention import KNOWN

# Files of onnx.backend.test.case.node.
FILES = """
    abs acos acosh add and_ argmax argmin asin asinh atan atanh attention batch_normalization bitshift bitwiseand bitwisenot
    bitwiseor bitwisexor cast castlike ceil celu clip compress concat constant constantofshape conv convtranspose cos cosh cumprod
    cumsum depthtospace div dropout einsum elu equal erf exp expand eyelike flatten floor gather gatherelements gathernd
    gelu gemm globalaveragepool globalmaxpool greater greater_or_equal groupnormalization hardmax hardsigmoid hardswish
    identity instance_normalization isinf isnan layernormalization leakyrelu less less_or_equal log logsoftmax
    lpnormalization lrn matmul max mean meanvariancenormalization min mish mod mul neg negativeloglikelihoodloss nonzero
    not_ onehot or_ pad pow prelu rangeop reciprocal reduce_log_sum reduce_log_sum_exp reducel1 reducel2 reducemax
    reducemean reducemin reduceprod reducesum reducesumsquare relu reshape resize reversesequence rmsnormalization round
    scatter scatterelements scatternd selu shape shrink sigmoid sign sin sinh size slice softmax softmax_cross_entropy_loss
    softplus softsign spacetodepth split sqrt squeeze sub sum swish tan tanh thresholdedrelu tile topk transpose trilu
    unsqueeze upsample where xor
"""
SLOW_TO_MAKE = ("averagepool", "lppool", "maxpool")  # whose generators take seconds
TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")

OTHER_NUMBERS = "other random numbers"
FRACTIONAL_SIZE = "ONNX divides by a fractional output size; ONNX Runtime and PyTorch by the size that there is"
LEFT_OUT = {
    "test_training_dropout_default": OTHER_NUMBERS,
    "test_training_dropout_default_mask": OTHER_NUMBERS,
    "test_training_dropout": OTHER_NUMBERS,
    "test_training_dropout_mask": OTHER_NUMBERS,
    "test_resize_downsample_scales_linear_align_corners": FRACTIONAL_SIZE,
    "test_resize_downsample_scales_cubic_align_corners": FRACTIONAL_SIZE,
    "test_identity_sequence": "no tensor",
    "test_identity_opt": "no tensor",
}


def supported(case: NodeCase) -> bool:
    arrays = [value for value in (*case.inputs, *case.outputs) if value is not None]
    if case.node.op_type == "Attention" and (len(case.inputs) > 4 or len(case.outputs) > 1 or case.node.attrs.keys() - KNOWN):
        return False  # caches, scores and windows are refused
    return case.name not in LEFT_OUT and all(np.asarray(array).dtype.name in TYPES for array in arrays)


def scattered(array: Any) -> Any:
    """The same values in memory of another order: images channels_last, other arrays with gaps and backwards."""
    if array is None or array.ndim == 0:
        return array
    if array.ndim > 3:
        return as_layout(array, last=True)
    room = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    view = room[..., ::-2]
    view[...] = array
    return view


def check(case: NodeCase, results: tuple[Any, ...]) -> None:
    for place, expected in enumerate(case.outputs):
        if expected is not None:
            got, wanted = results[place], np.asarray(expected)
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), case.name
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-6, err_msg=case.name)


def check_all_ways(case: NodeCase) -> None:
    before = [None if value is None else np.array(value) for value in case.inputs]
    check(case, run_node(case.node, *before))
    for array, value in zip(before, case.inputs, strict=True):  # nothing is written into an input
        np.testing.assert_array_equal(array, value, err_msg=case.name)
    check(case, run_node(case.node, *map(scattered, before)))
    for place in find_op(case.node).overwrites:
        inputs = list(before)
        if place < len(inputs) and inputs[place] is not None:
            out = inputs[place] = np.array(inputs[place])
            expected = np.asarray(case.outputs[0])
            if (out.shape, out.dtype) == (expected.shape, expected.dtype) and out.ndim:
                results = run_node(case.node, *inputs, out=out)
                check(case, results)
                assert results[0] is out, case.name


@pytest.mark.parametrize("file", [*FILES.split(), *(pytest.param(file, marks=pytest.mark.peers) for file in SLOW_TO_MAKE)])
def test_onnx_expects(file: str) -> None:
    cases = [case for case in collected(file) if supported(case)]
    assert cases
    with pb.backend("reference"):  # the kernels have tests of their own
        for case in cases:
            check_all_ways(case)
