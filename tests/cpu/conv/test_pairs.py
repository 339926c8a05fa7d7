"""The kernel of bfloat16 pairs: exact on whole numbers, within its bound and its arrays, same bits for any number of threads."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from cases import beyond_bound
from conv_calls import CONV_OPS, conv_arguments, small_calls, with_infinity
from cpu_calls import LAYOUTS, guarded_calls

import pullback as pb
from pullback.cpu.conv import pairs
from pullback.cpu.engine.pieces import stream_from
from pullback.cpu.engine.plan_cache import release_plans
from pullback.cpu.machine_code import levels, warmup
from pullback.cpu.machine_code.levels import has_pairs

BFLOAT16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
TINY = 2.0**-126  # the smallest normal number; those below count as zero

needs_pairs = pytest.mark.skipif(not has_pairs(), reason="this CPU does not multiply pairs of bfloat16")


def on_reference(op: str, *arguments: Any, **keywords: Any) -> np.ndarray:
    with pb.backend("reference"):
        return getattr(pb, op)(*arguments, **keywords)


def on_pairs(op: str, *arguments: Any, **keywords: Any) -> np.ndarray:
    with pb.backend("cpu"), pb.kernel("pairs"):
        return getattr(pb, op)(*arguments, **keywords)


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


@needs_pairs
def test_whole_numbers_are_exact_around_the_vector_width() -> None:
    for op, arguments, keywords in small_calls(BFLOAT16):
        if -1 in np.ravel(keywords.get("padding", 0)):
            continue  # which crops, and goes to the kernel of that name
        found, expected = on_pairs(op, *arguments, **keywords), on_reference(op, *arguments, **keywords)
        np.testing.assert_array_equal(wide(found), wide(expected), f"{op} {keywords}")


# Several blocks of source channels, cells and output channels; odd channels, and an odd number of columns.
LARGE: tuple[dict[str, Any], ...] = (
    {"batch": 2, "c_in": 201, "c_out": 40, "size": (29, 31), "kernel": (3, 3), "padding": 1},
    {"batch": 9, "c_in": 600, "c_out": 70, "size": (7, 5), "kernel": (3, 3), "padding": 1},
    {"batch": 1, "c_in": 5, "c_out": 3, "size": (3000,), "kernel": (9,), "padding": 4, "stride": 2},
    {"batch": 2, "c_in": 20, "c_out": 24, "size": (9, 14, 13), "kernel": (3, 2, 3), "padding": 1, "stride": (1, 2, 1)},
    {"batch": 3, "c_in": 42, "c_out": 36, "size": (24, 23), "kernel": (1, 1), "stride": 2, "groups": 2},
    {"batch": 2, "c_in": 48, "c_out": 40, "size": (91, 67), "kernel": (1, 1)},
)


@needs_pairs
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", LARGE, ids=lambda case: "x".join(map(str, (*case["size"], case["c_in"], case["c_out"]))))
def test_blocks_and_threads_do_not_show(case: dict[str, Any], layout: str) -> None:
    """Whole numbers exact; real ones within the bound of a plain sum in float32, with the same bits for any number of threads."""
    rng = np.random.default_rng(5)
    for op, arguments, keywords in conv_arguments(layout, dtype=BFLOAT16, **case):
        np.testing.assert_array_equal(
            wide(on_pairs(op, *arguments, **keywords)), wide(on_reference(op, *arguments, **keywords))
        )
        reals = [rng.standard_normal(a.shape).astype(BFLOAT16) if isinstance(a, np.ndarray) else a for a in arguments]
        found = []
        for count in (1, 2, 5):
            with pb.threads(count):
                found.append(on_pairs(op, *reals, **keywords))
        assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes(), op
        exact = [wide(a) if isinstance(a, np.ndarray) else a for a in reals]
        absolute = [np.abs(a) if isinstance(a, np.ndarray) else a for a in exact]
        summed = on_reference(op, *absolute, **keywords)
        # The number of terms, from what the sum of ones is.
        ones = [np.ones_like(a) if isinstance(a, np.ndarray) else a for a in exact]
        terms = int(on_reference(op, *ones, **keywords).max())
        assert beyond_bound(found[0], on_reference(op, *exact, **keywords), summed, terms, BFLOAT16) is None, op


@needs_pairs
@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_numbers_stay_within_the_stated_bound(layout: str) -> None:
    """Numbers down to the least: of each product what counts as zero, and of each sum less than the smallest normal number."""
    rng = np.random.default_rng(7)
    for op, arguments, keywords in conv_arguments(layout, 2, 13, 20, (6, 7), kernel=(3, 3), padding=1, dtype=BFLOAT16):
        powers = [
            np.ldexp(rng.standard_normal(a.shape), rng.integers(-140, -30, a.shape)).astype(BFLOAT16)
            if isinstance(a, np.ndarray)
            else a
            for a in arguments
        ]
        exact = [wide(a) if isinstance(a, np.ndarray) else a for a in powers]
        absolute = [np.abs(a) if isinstance(a, np.ndarray) else a for a in exact]
        flushed = [np.maximum(a, TINY) if isinstance(a, np.ndarray) else a for a in absolute]
        lost = on_reference(op, *flushed, **keywords) - on_reference(op, *absolute, **keywords)
        terms = 2 * 42 * 20
        found = wide(on_pairs(op, *powers, **keywords))
        expected, summed = on_reference(op, *exact, **keywords), on_reference(op, *absolute, **keywords)
        bound = terms * 2.0**-24 * summed + 2.0**-8 * np.abs(expected) + lost + (terms + 1) * TINY
        assert (np.abs(found - expected) <= bound).all(), op
        assert np.abs(found).max() > 0 or op != "conv_grad_filter"


@needs_pairs
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("geometry", [{"kernel": (3, 3), "padding": 1}, {"kernel": (3, 2), "padding": 1, "stride": 2}], ids=str)
def test_infinities_reach_what_they_touch(geometry: dict[str, Any], layout: str) -> None:
    """Neither padding nor the missing half of a pair meets them."""
    for op, arguments, keywords in conv_arguments(layout, 2, 7, 20, (6, 5), dtype=BFLOAT16, **geometry):
        for place in (0, 1):
            given = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
            given[place].flat[[3, -1]] = np.inf, np.nan
            expected = on_reference(op, *given, **keywords)
            assert not np.isfinite(wide(expected)).all()
            np.testing.assert_array_equal(wide(on_pairs(op, *given, **keywords)), wide(expected), f"{op} {place}")
        odd = with_infinity(arguments, op)
        np.testing.assert_array_equal(wide(on_pairs(op, *odd, **keywords)), wide(on_reference(op, *odd, **keywords)))


@needs_pairs
def test_results_past_the_cache_are_the_same() -> None:
    for op, arguments, keywords in conv_arguments("channels_last", 2, 64, 160, (91, 89), kernel=(1, 1), dtype=BFLOAT16)[:2]:
        expected = on_pairs(op, *arguments, **keywords)
        stream_from(0)
        release_plans()
        found = on_pairs(op, *arguments, **keywords)
        stream_from(None)
        release_plans()
        assert found.tobytes() == expected.tobytes()


@needs_pairs
@pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's mprotect")
@pytest.mark.parametrize("side", ["above", pytest.param("below", marks=pytest.mark.slow)])
def test_it_never_leaves_its_arrays(side: str) -> None:
    seen = guarded_calls("guarded_conv.py", "bfloat16", side, "pairs")
    assert set(seen) == {f"{op}/pairs" for op in CONV_OPS}
    assert min(seen.values()) >= 50, seen


def test_a_cpu_without_the_instructions_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs the other kernels, but what is compiled for a wheel is for the others of its level too."""
    monkeypatch.setattr(pairs, "has_pairs", lambda: False)
    x, f = np.ones((1, 5, 5, 8), BFLOAT16), np.ones((3, 3, 8, 8), BFLOAT16)
    with pb.backend("cpu"), pb.kernel("pairs"), pytest.raises(pb.KernelError, match="AVX512-BF16"):
        pb.conv(x, f)
    [task] = [task for task in warmup.tasks(["bfloat16"]) if task.op == "conv_grad_input"]
    modules = {variant.module for variant in warmup.variants_of(task) if variant.pairs}
    assert modules == ({"conv.direct", "conv.pack"} if levels.level().pairs else set())


@pytest.mark.parametrize("features", [{"AVX512BF16"}, set()])
def test_which_cpus_have_them(features: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "cpu_features", lambda: features)
    [best, *lesser] = [level for level in levels.LEVELS if level.machine == "x86_64"]
    monkeypatch.setattr(levels, "level", lambda: best)
    assert has_pairs.__wrapped__() == bool(features)
    for level in lesser:
        monkeypatch.setattr(levels, "level", lambda level=level: level)
        assert not has_pairs.__wrapped__()
