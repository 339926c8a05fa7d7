"""Results that no machine holds, windows far apart or far from their input, and empty arrays: answered or refused at once."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import pullback as pb

LARGE = 2**31 - 1
ONE, NUMBER = np.ones((1, 1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 1, 1), np.int64)
MANY = np.broadcast_to(np.float32(1), (1, 1, 1, 2**30))  # channels
LONG = np.broadcast_to(np.float32(1), (2**25, 2**25, 1))
TOO_LARGE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "conv": ((ONE, ONE), {"padding": LARGE}),
    "conv_grad_input": ((ONE, ONE, (1, LARGE, LARGE, LARGE, 1)), {"stride": LARGE}),
    "conv_grad_filter": ((MANY, MANY, (1, 1, 2**30, 2**30)), {}),
    "conv_transpose": ((ONE, ONE), {"stride": LARGE, "output_shape": (1, LARGE, LARGE, LARGE, 1)}),
    "max_pool": ((ONE, 1), {"padding": 2**15, "return_indices": True}),
    "max_pool_grad": ((LONG, LONG, 1), {}),
    "max_pool_grad_from_indices": ((ONE, NUMBER, (1, LARGE, LARGE, LARGE, 1)), {}),
    "max_pool_grad_from_winners": ((ONE, NUMBER.astype(np.uint8), (1, LARGE, LARGE, LARGE, 1), 1), {"stride": LARGE}),
    "avg_pool": ((ONE, 1), {"padding": LARGE}),
    "avg_pool_grad": ((ONE, (1, LARGE, LARGE, LARGE, 1), 1), {"stride": LARGE}),
}


@pytest.mark.parametrize("op", TOO_LARGE)
def test_a_result_that_no_machine_holds_is_refused_before_any_work(each_backend: str, op: str) -> None:
    arguments, keywords = TOO_LARGE[op]
    for call_it in (getattr(pb, op), lambda *given, **more: pb.explain(op, *given, **more)):
        with pytest.raises(MemoryError, match=rf"^{op}: an array of shape \(.*\) takes .* bytes, more than there is"):
            call_it(*arguments, **keywords)


def test_a_stride_without_a_second_window_says_nothing(each_backend: str) -> None:
    """Nor does it cost anything: plans have tables for the cells of a stride."""
    x, f = np.arange(20.0).reshape(1, 5, 4), np.ones((2, 1, 4))
    for stride in (7, LARGE):
        assert np.array_equal(pb.conv(x, f, stride=stride, groups=4), pb.conv(x[:, :2], f, groups=4))
        dx = pb.conv_grad_input(np.ones((1, 1, 4)), f, x.shape, stride=stride, groups=4)
        assert dx[0].tolist() == [[1] * 4] * 2 + [[0] * 4] * 3
        assert pb.explain("max_pool", x, 2, stride=stride).problem == pb.explain("max_pool", x, 2, stride=4).problem


@pytest.mark.parametrize(
    "keywords",
    [
        {"stride": LARGE, "padding": LARGE - 1},
        {"stride": 1 << 20, "padding": 1 << 20},
        {"dilation": LARGE, "stride": LARGE, "padding": [(LARGE, 0)]},
        {"dilation": 1 << 20, "stride": 3, "padding": 1 << 20},
    ],
    ids=str,
)
def test_windows_far_beyond_their_input_take_no_memory(keywords: dict[str, Any]) -> None:
    """Plans make no room for what lies between windows; kernels of pooling that would say that they cannot."""
    x, f = np.arange(20.0).reshape(1, 5, 4), np.ones((2, 1, 4))
    with pb.backend("reference"):
        y, winners = pb.max_pool(x, 2, return_winners=True, **keywords)
    dy, grouped = np.ones_like(y), keywords | {"groups": 4}
    calls = [("max_pool", (x, 2), keywords), ("max_pool_grad", (dy, x, 2), keywords), ("avg_pool", (x, 2), keywords)]
    calls += [
        ("max_pool_grad_from_winners", (dy, winners, x.shape, 2), keywords),
        ("avg_pool_grad", (dy, x.shape, 2), keywords),
    ]
    calls += [("conv", (x, f), grouped), ("conv_grad_input", (dy, f, x.shape), grouped)]
    calls += [("conv_grad_filter", (dy, x, f.shape), grouped)]
    for op, arguments, options in calls:
        with pb.backend("reference"):
            expected = getattr(pb, op)(*arguments, **options)
        with pb.backend("cpu"):
            if op.startswith("conv"):
                assert pb.explain(op, *arguments, **options).chosen.backend == "cpu", op
            np.testing.assert_array_equal(getattr(pb, op)(*arguments, **options), expected, op)


@pytest.mark.parametrize("padding", [1, "same"])
@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_empty_arrays_are_answered_and_explained(each_backend: str, layout: str, padding: Any) -> None:
    """Every op with an empty batch, image or no channels."""
    last = layout == "channels_last"
    for batch, size, channels in product((0, 2), (0, 1, 5), (0, 3, 20)):
        shape = (batch, size, channels) if last else (batch, channels, size)
        x, calls = np.ones(shape, np.float32), []
        f = np.ones((2, channels, 3) if last else (3, channels, 2), np.float32)
        options: dict[str, Any] = {"padding": padding, "layout": layout}
        dy = np.ones(pb.explain("max_pool", x, 2, **options).problem.output_shape, np.float32)
        dz = np.ones(pb.explain("conv", x, f, **options).problem.output_shape, np.float32)
        indices, winners = np.full(dy.shape, -1), np.full(dy.shape, 255, np.uint8)
        calls += [("conv", x, f), ("conv_grad_input", dz, f, shape), ("conv_grad_filter", dz, x, f.shape)]
        calls += [("max_pool", x, 2), ("max_pool_grad", dy, x, 2), ("max_pool_jvp", x, x, 2), ("avg_pool", x, 2)]
        calls += [("max_pool_grad_from_winners", dy, winners, shape, 2), ("avg_pool_grad", dy, shape, 2)]
        calls += [("max_pool_jvp_from_winners", x, winners, 2)]
        for op, *arguments in calls:
            explained = pb.explain(op, *arguments, **options)
            found = getattr(pb, op)(*arguments, **options)
            problem = explained.problem
            backwards = problem.filter_shape if op == "conv_grad_filter" else problem.input_shape
            assert found.shape == (backwards if "_grad" in op else problem.output_shape)
            assert explained.chosen is not None
            if 0 in shape and len(explained.verdicts) > 1:
                assert str(explained).count("nothing to compute in an empty array") >= (each_backend == "cpu")
        assert pb.max_pool_grad_from_indices(dy, indices, shape, layout=layout).shape == shape
        assert pb.max_pool_jvp_from_indices(x, indices, layout=layout).shape == dy.shape
