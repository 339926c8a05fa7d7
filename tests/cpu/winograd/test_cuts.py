"""How Winograd's work is cut: panels that threads keep to, sums that end where they are made; the same results either way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cpu_calls import reals, shaped

import pullback as pb
from pullback.cpu.conv.filter_order import own_order
from pullback.cpu.winograd import convolve, filter_gradient, tuning
from pullback.cpu.winograd.convolve import convolve_plans, cut_convolution
from pullback.cpu.winograd.filter_gradient import cut_gradient, ends_own_sums, gradient_plans
from pullback.cpu.winograd.shapes import Shape, shape_of

LAYOUTS = ("channels_last", "channels_first")
BATCH, IN, OUT, SIZE = 3, 140, 150, 8  # several panels either way, the last of them not full


def arrays(layout: str, batch: int = BATCH, channels: tuple[int, int] = (IN, OUT)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    c, m = channels
    x, dy = (reals(shaped(layout, batch, n, SIZE, SIZE), seed) for seed, n in enumerate((c, m)))
    return x, reals((3, 3, c, m) if layout == "channels_last" else (m, c, 3, 3), 2), dy


def shape(op: str, *given: Any, layout: str) -> Shape:
    found = shape_of(pb.explain(op, *given, padding=1, layout=layout).problem, op == "conv_grad_input")
    assert found is not None
    return found


def check_close(found: np.ndarray, plain: np.ndarray) -> None:
    """By norm, as Winograd's error is stated."""
    assert np.linalg.norm(found - plain) <= 2e-5 * np.linalg.norm(plain)


def forget_plans() -> None:
    convolve_plans.cache_clear()
    gradient_plans.cache_clear()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["conv", "conv_grad_input"])
def test_threads_with_panels_of_their_own_change_no_bit(op: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, f, dy = arrays(layout)
    given = (x, f) if op == "conv" else (dy, f, x.shape)
    results = []
    monkeypatch.setattr(tuning, "AHEAD_BLOCKS", 0)  # the filter is transformed before
    for apart in (0.0, 1e9):
        monkeypatch.setattr(tuning, "PANELS_APART", apart)
        forget_plans()
        cut = cut_convolution(shape(op, *given, layout=layout))
        assert cut.k_chunk == 0
        assert cut.panels_apart == (apart == 0)
        for threads in (1, 2, 5):
            with pb.kernel("winograd"), pb.threads(threads):
                results.append(getattr(pb, op)(*given, padding=1, layout=layout))
    forget_plans()
    assert all(np.array_equal(results[0], result) for result in results[1:])
    with pb.kernel("direct"):
        check_close(results[0], getattr(pb, op)(*given, padding=1, layout=layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [(IN, OUT), (17, 5), (5, 150)])
def test_sums_of_one_split_may_end_in_scratch(
    channels: tuple[int, int], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    x, f, dy = arrays(layout, channels=channels)
    results = []
    for most in (tuning.OWN_SUM_BYTES, 0):
        monkeypatch.setattr(tuning, "OWN_SUM_BYTES", most)
        forget_plans()
        problem = pb.explain("conv_grad_filter", dy, x, f.shape, padding=1, layout=layout).problem
        plans = gradient_plans(problem)
        assert (plans.finish is None) == (most > 0)
        assert (plans.sum_bytes == 0) == (most > 0)
        for threads in (1, 2, 5):
            with pb.kernel("winograd"), pb.threads(threads):
                results.append(pb.conv_grad_filter(dy, x, f.shape, padding=1, layout=layout))
    forget_plans()
    assert all(np.array_equal(results[0], result) for result in results[1:])
    with pb.kernel("direct"):
        check_close(results[0], pb.conv_grad_filter(dy, x, f.shape, padding=1, layout=layout))


def test_infinities_reach_what_they_should_from_sums_in_scratch() -> None:
    x, f, dy = arrays("channels_last")
    x[0, 3, 3, 2] = np.inf
    assert ends_own_sums(*cut_of(dy, x, f))
    with pb.kernel("winograd"):
        found = pb.conv_grad_filter(dy, x, f.shape, padding=1)
    with pb.backend("reference"):
        expected = pb.conv_grad_filter(dy, x, f.shape, padding=1)
    assert np.array_equal(np.isfinite(found), np.isfinite(expected))


def cut_of(dy: np.ndarray, x: np.ndarray, f: np.ndarray) -> tuple[Shape, filter_gradient.Cut]:
    found = shape("conv_grad_filter", dy, x, f.shape, layout="channels_last")
    return found, cut_gradient(found)


def test_splits_are_a_power_of_two_and_their_sums_stay_small() -> None:
    x, f, dy = arrays("channels_last")
    whole, _ = cut_of(dy, x, f)
    for batch in (1, 12, 75, 180, 1200, 25_000):
        for channels in (8, 32, 64, 128, 512):
            many = replace(whole, batch=batch, in_channels=channels, out_channels=channels)
            cut = cut_gradient(many)
            assert cut.splits & (cut.splits - 1) == 0
            sums = cut.splits * cut.x_blocks * cut.dy_blocks * 36 * cut.x_block * cut.sum_pitch
            assert cut.splits == 1 or sums <= tuning.MOST_SUM_BYTES
            assert cut.splits * cut.x_blocks * cut.dy_blocks > 1 or channels < 2 * tuning.FEWEST_CHANNELS
            assert convolve.cut_convolution(many).block > 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["conv", "conv_grad_input"])
def test_a_filter_made_in_parts_changes_no_bit(op: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a weight that is not finite reaches the same results, whichever part it lies in."""
    x, f, dy = arrays(layout)
    bad = f.copy()
    bad[(0, 0, 3, OUT - 2) if layout == "channels_last" else (OUT - 2, 3, 0, 0)] = np.inf
    monkeypatch.setattr(tuning, "AHEAD_BLOCKS", 0)  # the filter is transformed before
    results: dict[int, list[np.ndarray]] = {}
    for most in (1 << 30, 1):
        monkeypatch.setattr(tuning, "MOST_PACKED_BYTES", most)
        forget_plans()
        made = []
        for weights in (f, bad):
            given = (x, weights) if op == "conv" else (dy, weights, x.shape)
            order = own_order(layout)
            problem = pb.explain(op, *given, padding=1, layout=layout).problem
            plans = convolve_plans(problem, op == "conv_grad_input", order)
            assert (len(plans.parts) > 1) == (most == 1)
            for threads in (1, 3):
                with pb.kernel("winograd"), pb.threads(threads):
                    made.append(getattr(pb, op)(*given, padding=1, layout=layout))
        results[most] = made
    forget_plans()
    for whole, parts in zip(*results.values(), strict=True):
        assert np.array_equal(whole, parts, equal_nan=True)
    assert np.isfinite(results[1][0]).all()
    assert not np.isfinite(results[1][2]).all()
