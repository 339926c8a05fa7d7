"""The derivative rules, as data and as numbers: closed, adjoint to each other, and right against finite differences."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.derivatives import DERIVATIVES

OPS = {name: getattr(pb, name) for name in DERIVATIVES}
PLACES: list[dict[str, Any]] = [
    {"stride": 1, "padding": "valid"},
    {"stride": 2, "padding": "same"},
    {"stride": (2, 1), "padding": ((1, 0), (0, 2)), "dilation": (1, 2)},
    {"stride": 2, "padding": 1, "dilation": 2, "rounding": "ceil"},
]


# Every op at every place; those that are told no place at one of them.
CALLS = [
    (op, place) for op in DERIVATIVES for place in PLACES if not op.startswith(("adaptive", "max_unpool")) or place is PLACES[1]
]


def _window(rng: np.random.Generator, place: dict[str, Any], layout: str) -> tuple[np.ndarray, dict[str, Any]]:
    shape = (2, 7, 8, 4) if layout == "channels_last" else (2, 4, 7, 8)
    return rng.permutation(np.prod(shape)).reshape(shape) / 8.0, {**place, "layout": layout, "window": (3, 2)}


def example(op: str, place: dict[str, Any], layout: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and keywords of one call of the op."""
    rng = np.random.default_rng(len(op))
    x, keywords = _window(rng, place, layout)
    if op.startswith("conv"):
        del keywords["window"]
        keywords["groups"] = 2
        f = rng.normal(size=(3, 2, 2, 6) if layout == "channels_last" else (6, 2, 3, 2))
        y = pb.conv(x, f, **keywords)
        arrays = {"x": x, "filter": f, "dy": rng.normal(size=y.shape)}
        shapes = {"input_shape": x.shape, "filter_shape": f.shape}
    elif op.startswith("adaptive"):
        arrays = {
            "x": x,
            "t": rng.normal(size=x.shape),
            "dy": pb.adaptive_avg_pool(rng.normal(size=x.shape), (5, 3), layout=layout),
        }
        keywords["output_size"] = (5, 3)
        shapes = {"input_shape": x.shape}
    elif op.startswith("max_unpool"):
        y, indices = pb.max_pool(x, return_indices=True, **keywords)
        arrays = {"values": rng.normal(size=y.shape), "indices": indices, "dy": rng.normal(size=x.shape)}
        shapes = {"output_shape": x.shape}
    elif op.startswith("avg"):
        keywords |= {"count_include_pad": True, "divisor": 7}
        arrays = {"x": x, "dy": rng.normal(size=pb.avg_pool(x, **keywords).shape)}
        shapes = {"input_shape": x.shape}
    else:
        keywords["ties"] = "last"
        y, indices = pb.max_pool(x, return_indices=True, **keywords)
        _, winners = pb.max_pool(x, return_winners=True, **keywords)
        arrays = {"x": x, "t": rng.normal(size=x.shape), "dy": rng.normal(size=y.shape)}
        arrays |= {"indices": indices, "winners": winners}
        shapes = {"input_shape": x.shape}
    rule = DERIVATIVES[op]
    kept = {k: v for k, v in (keywords | shapes).items() if k in rule.keywords}
    return {name: arrays[name] for name in rule.arrays}, kept


@pytest.mark.parametrize("op", DERIVATIVES)
def test_rules_name_arguments_that_exist(op: str) -> None:
    rule = DERIVATIVES[op]
    asked = {"return_indices", "return_winners", "bias", "out"} | ({"storage_order"} if op.endswith("max_pool") else set())
    assert set(rule.arrays) | set(rule.keywords) == set(inspect.signature(OPS[op]).parameters) - asked
    for call in (*rule.vjp.values(), *rule.jvp.values()):
        target = DERIVATIVES[call.op]
        assert len(call.arrays) == len(target.arrays)
        assert set(call.arrays) <= {"g", "t", *rule.arrays}
        assert set(target.keywords) <= {*rule.keywords, *call.shapes}


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize(("op", "place"), CALLS)
def test_tangent_is_the_difference_quotient_and_adjoint_of_the_gradient(op: str, place: dict[str, Any], layout: str) -> None:
    arrays, keywords = example(op, place, layout)
    rule = DERIVATIVES[op]
    rng = np.random.default_rng(1)
    value = OPS[op](*arrays.values(), **keywords)
    for name in rule.vjp:
        t, g = rng.normal(size=arrays[name].shape), rng.normal(size=value.shape)
        named = {**arrays, "t": t}
        tangent = rule.jvp[name].run(OPS, named, keywords)
        gradient = rule.vjp[name].run(OPS, {**arrays, "g": g}, keywords)
        assert gradient.shape == arrays[name].shape
        np.testing.assert_allclose(np.vdot(tangent, g), np.vdot(t, gradient), rtol=1e-9, atol=1e-9)
        step = 1e-3  # the ops are linear in one array at a time, or piecewise: exact until a winner changes
        ahead = OPS[op](*(a + step * t if n == name else a for n, a in arrays.items()), **keywords)
        np.testing.assert_allclose((ahead - value) / step, tangent, atol=1e-7)


@pytest.mark.parametrize("backend", pb.backends())
def test_a_window_without_a_winner_has_no_tangent(backend: str) -> None:
    x = np.full((1, 4, 4, 1), np.nan)
    x[0, 2:, 2:] = 1.0
    with pb.backend(backend):
        y = pb.max_pool_jvp(np.full(x.shape, 5.0), x, 2, nan="ignore")
        _, indices = pb.max_pool(x, 2, nan="ignore", return_indices=True)
        _, winners = pb.max_pool(x, 2, nan="ignore", return_winners=True)
        for again in (
            pb.max_pool_jvp_from_indices(np.full(x.shape, 5.0), indices),
            pb.max_pool_jvp_from_winners(np.full(x.shape, 5.0), winners, 2, nan="ignore"),
        ):
            np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(y[0, :, :, 0], [[0, 0], [0, 5]])


def test_bad_tangents_are_refused() -> None:
    x = np.zeros((1, 4, 4, 1))
    with pytest.raises(ValueError, match=r"max_pool_jvp: t .*\(1, 4, 4, 2\)"):
        pb.max_pool_jvp(np.zeros((1, 4, 4, 2)), x, 2)
    with pytest.raises(ValueError, match="differ in rank, batch or channels"):
        pb.max_pool_jvp_from_indices(x, np.zeros((1, 2, 2, 3), np.int64))
    with pytest.raises(ValueError, match="out of range"):
        pb.max_pool_jvp_from_indices(x, np.full((1, 2, 2, 1), 16))
    with pytest.raises(TypeError, match="winners have dtype"):
        pb.max_pool_jvp_from_winners(x, np.zeros((1, 2, 2, 1)), 2)
