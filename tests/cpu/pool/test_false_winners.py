"""Winners that no forward has found: their gradient goes to a cell of the window inside the input, or nowhere."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.registry import kernels_for

LAYOUTS = ("channels_last", "channels_first")

SHAPES: tuple[tuple[Any, Any, Any, Any], ...] = (
    ((9,), (3,), (2,), 1),
    ((6, 7), (3, 3), (2, 2), 1),
    ((6, 8), (3, 2), (1, 1), 1),
    ((5, 9), (4, 3), (4, 4), 1),
    ((4, 5, 6), (3, 3, 3), (2, 2, 2), 1),
    ((1, 5, 3), (3, 5, 3), (2, 3, 2), 1),
    ((3, 4, 5), (1, 3, 3), (1, 1, 1), (0, 1, 1)),
    ((2, 40, 41), (1, 17, 17), (1, 8, 8), (0, 8, 8)),  # more taps than a byte can tell
)


def names(op: str) -> list[str]:
    return [kernel.name for kernel in kernels_for(op, "cpu") if kernel.backend == "cpu"]


@pytest.mark.parametrize(("size", "window", "stride", "padding"), SHAPES)
@pytest.mark.parametrize(("layout", "channels"), list(product(LAYOUTS, (1, 3, 20))))
def test_all_kernels_agree_with_the_reference(
    layout: str, channels: int, size: Any, window: Any, stride: Any, padding: Any
) -> None:
    shape = (2, *size, channels) if layout == "channels_last" else (2, channels, *size)
    options = {"stride": stride, "padding": padding, "layout": layout}
    rng = np.random.default_rng(7)
    with pb.backend("reference"):
        winners = pb.max_pool(np.zeros(shape, np.float32), window, return_winners=True, **options)[1]
    dy = rng.integers(1, 9, winners.shape).astype(np.float32)
    most = int(np.prod(window)) + 2  # beyond the last tap too
    false = rng.integers(0, min(most, np.iinfo(winners.dtype).max), winners.shape).astype(winners.dtype)
    with pb.backend("reference"):
        expected = pb.max_pool_grad_from_winners(dy, false, shape, window, **options)
    ran = []
    for name in names("max_pool_grad_from_winners"):
        with pb.kernel(name):
            try:
                found = pb.max_pool_grad_from_winners(dy, false, shape, window, **options)
            except pb.KernelError:
                continue
        ran.append(name)
        np.testing.assert_array_equal(found, expected, err_msg=name)
    assert "scatter" in ran


def test_a_false_winner_in_one_window_only() -> None:
    """Every border window of a padded plane in turn, every tap, on the kernel that looks at borders alone."""
    shape, options = (1, 1, 5, 6), {"stride": 1, "padding": 1, "layout": "channels_first"}
    true = np.full((1, 1, 5, 6), 4, np.uint8)
    dy = np.arange(1.0, 31.0, dtype=np.float32).reshape(shape)
    for place, tap in product(range(30), range(9)):
        false = true.copy()
        false.flat[place] = tap
        with pb.backend("reference"):
            expected = pb.max_pool_grad_from_winners(dy, false, shape, 3, **options)
        with pb.kernel("phases"):
            np.testing.assert_array_equal(pb.max_pool_grad_from_winners(dy, false, shape, 3, **options), expected)
