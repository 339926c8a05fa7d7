"""Depthwise and narrow-group convolutions: exact against the reference, within their arrays, alike for any number of threads."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conv_calls import lanes
from cpu_calls import LAYOUTS, guarded_calls

import pullback as pb
from pullback.cpu.depthwise import slide, slide_cells, tuning
from pullback.cpu.depthwise.cells_tables import cells_tables, sides_of
from pullback.cpu.engine.machine import machine
from pullback.cpu.machine_code.levels import level
from pullback.ops.explain import PREPARE

MODULES = {"slide": slide, "slide_cells": slide_cells}
OPS = ("conv", "conv_grad_input", "conv_grad_filter")
GEOMETRIES: tuple[dict[str, Any], ...] = (
    {"size": (23,), "kernel": (3,), "stride": 2, "padding": 1},
    {"size": (11, 13), "kernel": (3, 3), "padding": 1},
    {"size": (12, 13), "kernel": (3, 3), "stride": 2, "padding": 1},
    {"size": (19, 27), "kernel": (3, 5), "dilation": 2, "padding": 2},
    {"size": (9, 31), "kernel": (2, 3), "stride": (3, 2), "dilation": (1, 3), "padding": "same"},
    {"size": (14, 21), "kernel": (5, 7), "stride": (2, 1), "padding": 2},
    {"size": (10, 33), "kernel": (3, 3), "padding": [(-1, 2), (2, -2)]},
    {"size": (12, 12), "kernel": (2, 2), "stride": 4},
    {"size": (3, 2), "kernel": (3, 3), "padding": 3},
    {"size": (5, 6, 13), "kernel": (3, 2, 3), "stride": (1, 2, 1), "padding": 1},
)
# Windows that `slide` and `slide_cells` have machine code for, on rows below, at and above the columns of their strips.
SLIDING: tuple[dict[str, Any], ...] = tuple(
    {"size": (rows, cols), "kernel": (taps, taps), "stride": stride, "padding": padding}
    for taps, stride in product((3, 5, 7), (1, 2))
    for rows, cols, padding in ((3, 3, taps // 2), (9, 7, 2), (8, 17, ((taps - 1, 0), (1, taps - 1))))
)
GROUPS = ((15, 1, 1), (16, 1, 1), (37, 1, 1), (8, 1, 2), (8, 2, 1), (5, 3, 3), (9, 4, 4), (3, 16, 16), (4, 16, 2), (4, 2, 16))


def arguments(layout: str, groups: tuple[int, int, int], geometry: dict[str, Any], dtype: Any) -> dict[str, tuple[Any, ...]]:
    """The three ops on small whole numbers, each with its arguments and keywords."""
    options = dict(geometry)
    size, kernel = options.pop("size"), options.pop("kernel")
    count, each, outs = groups
    rng = np.random.default_rng(len(size) + sum(size))
    x = rng.integers(-3, 4, (2, *size, count * each)).astype(dtype)
    f = rng.integers(-3, 4, (*kernel, each, count * outs)).astype(dtype)
    if layout == "channels_first":
        x, f = np.moveaxis(x, -1, 1).copy(), np.moveaxis(f, (-1, -2), (0, 1)).copy()
    options |= {"groups": count, "layout": layout}
    with pb.backend("reference"):
        dy = rng.integers(-3, 4, pb.conv(x, f, **options).shape).astype(dtype)
    return {
        "conv": (x, f, options),
        "conv_grad_input": (dy, f, x.shape, options),
        "conv_grad_filter": (dy, x, f.shape, options),
    }


def run(op: str, call: tuple[Any, ...]) -> np.ndarray:
    return getattr(pb, op)(*call[:-1], **call[-1])


def equals_the_reference(op: str, call: tuple[Any, ...], name: str, message: str) -> None:
    with pb.backend("reference"):
        expected = run(op, call)
    with pb.kernel(name):
        found = run(op, call)
    if found.dtype == ml_dtypes.bfloat16:  # NumPy does not take its NaN for one
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(found, expected, err_msg=f"{op} {message}")


@pytest.mark.skipif(level().machine != "x86_64", reason="vectors are permuted on x86-64 alone")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_permuted_filter_gradients_equal_the_reference(dtype: Any) -> None:
    """Groups side by side, and channels on either side around and beyond a vector and the sums of a tile."""
    wide = lanes() + 1
    for groups in (*GROUPS, (1, 9, 1), (1, wide, 7), (1, 7, wide), (2, 2 * wide, 9), (3, wide, wide), (19, 1, 3)):
        for geometry in GEOMETRIES if dtype is np.float32 else GEOMETRIES[3::3]:
            call = arguments("channels_last", groups, geometry, dtype)["conv_grad_filter"]
            equals_the_reference("conv_grad_filter", call, "permuted", f"{groups} {geometry}")
            x = call[1].copy()
            x.flat[0] = x.flat[-1] = np.inf
            equals_the_reference("conv_grad_filter", (call[0], x, *call[2:]), "permuted", f"{groups} {geometry}, infinities")


@pytest.mark.skipif(level().machine != "x86_64", reason="vectors are permuted on x86-64 alone")
def test_few_channels_of_dy_are_spread() -> None:
    for groups, chosen in (((1, 24, 3), True), ((5, 20, 4), True), ((1, 24, 24), False), ((1, 3, 24), False)):
        *call, options = arguments("channels_last", groups, GEOMETRIES[1], np.float32)["conv_grad_filter"]
        assert (pb.explain("conv_grad_filter", *call, **options).chosen.name == "permuted") == chosen, groups


def name_of(groups: tuple[int, int, int]) -> str:
    return "depthwise" if groups[1:] == (1, 1) else "grouped"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_numbers_equal_the_reference(layout: str, dtype: Any) -> None:
    for groups in GROUPS if dtype is np.float32 else GROUPS[2:7:2]:
        for geometry in GEOMETRIES:
            for op, call in arguments(layout, groups, geometry, dtype).items():
                equals_the_reference(op, call, name_of(groups), f"{groups} {geometry}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [16, 37])
def test_sliding_windows_equal_the_reference(layout: str, channels: int) -> None:
    name, done = ("slide_cells" if layout == "channels_last" else "slide"), 0
    for geometry in SLIDING:
        for op, call in arguments(layout, (channels, 1, 1), geometry, np.float32).items():
            if MODULES[name].can(PREPARE[op](*call[:-1], **call[-1])[0]) is None:
                equals_the_reference(op, call, name, f"{geometry}")
                done += 1
    assert done >= 2 * len(SLIDING) or not machine().masks_memory


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_many_weights_are_taken_in_blocks_of_channels(dtype: Any) -> None:
    """Rows of one to five columns, more channels than one block and no whole number of them."""
    channels = 4 * lanes() * 2 + 5
    for cols, stride in product((1, 3, 5, 7, 9), (1, 2)):
        geometry = {"size": (5, cols), "kernel": (13, 9), "stride": (2, stride), "padding": (6, 4)}
        assert channels * 13 * 9 * 4 > tuning.WEIGHT_BYTES or lanes() < 16
        for op, call in arguments("channels_last", (channels, 1, 1), geometry, dtype).items():
            equals_the_reference(op, call, "group_cells", f"{geometry}")


@pytest.mark.parametrize("groups", [(20, 1, 1), (5, 3, 3), (8, 1, 2)])
def test_transposed_arrays_give_what_the_reference_does(groups: tuple[int, int, int]) -> None:
    for geometry in (*GEOMETRIES[:3], GEOMETRIES[4], GEOMETRIES[9]):
        for op, call in arguments("channels_first", groups, geometry, np.float32).items():
            equals_the_reference(op, call, "group_transposed", f"{groups} {geometry}")


@pytest.mark.parametrize("groups", [(37, 1, 1), (5, 3, 3)])
def test_rows_too_long_for_scratch_are_done_in_segments(groups: tuple[int, int, int]) -> None:
    long = 2 * tuning.CELLS_AREA_BYTES // (4 * groups[0] * groups[1])
    for geometry in (*GEOMETRIES[:2], GEOMETRIES[4], GEOMETRIES[6]):
        rows = tuple(min(n, 5) for n in geometry["size"][:-1])
        for op, call in arguments("channels_last", groups, geometry | {"size": (*rows, long)}, np.float32).items():
            problem = PREPARE[op](*call[:-1], **call[-1])[0]
            assert cells_tables(problem, sides_of(problem), True)[0]["segments"] > 1
            equals_the_reference(op, call, name_of(groups), f"{geometry}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [(48, 1, 1), (12, 4, 4), (1, 40, 4)])
def test_any_number_of_threads_gives_the_same_bits(layout: str, groups: tuple[int, int, int]) -> None:
    geometry = {"size": (40, 37), "kernel": (3, 3), "padding": 1}
    for op, call in arguments(layout, groups, geometry, np.float32).items():
        call = tuple(a + np.float32(0.1) if isinstance(a, np.ndarray) else a for a in call)
        bits = set()
        for count in (1, 2, 5):
            with pb.threads(count), pb.kernel(name_of(groups)) if groups[0] > 1 else nullcontext():
                bits.add(run(op, call).tobytes())
        assert len(bits) == 1, op


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [(17, 1, 1), (5, 3, 2)])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_reaches_only_what_it_touches(layout: str, groups: tuple[int, int, int], value: float) -> None:
    geometry = {"size": (6, 7), "kernel": (3, 3), "stride": 2, "padding": 2}
    for op, call in arguments(layout, groups, geometry, np.float32).items():
        for place in range(2):
            if not isinstance(call[place], np.ndarray):
                continue
            spoiled = call[place].copy()
            spoiled.flat[0] = spoiled.flat[-1] = value
            spoiled_call = (*call[:place], spoiled, *call[place + 1 :])
            equals_the_reference(op, spoiled_call, name_of(groups), f"{place}")


def test_refusals_say_why() -> None:
    x, f = np.ones((1, 5, 5, 64), np.float32), np.ones((3, 3, 32, 64), np.float32)
    told = str(pb.explain("conv", x, f, groups=2))
    assert "at most 16 channels" in told
    assert "one channel in and one out" in told


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_groups_that_fill_vectors_are_left_to_the_direct_kernel(op: str, layout: str) -> None:
    permutes = level().machine == "x86_64"
    for each, spread in ((lanes(), False), (2, True)):
        *call, options = arguments(layout, (3, each, each), {"size": (6, 7), "kernel": (3, 3)}, np.float32)[op]
        told = str(pb.explain(op, *call, **options))
        name = "group_cells" if layout == "channels_last" else "group_planes"
        if name == "group_cells" and op == "conv_grad_filter" and permutes:
            name = "permuted"
        assert (f"runs      cpu/{name}" in told) == spread, told
        assert any(reason in told for reason in ("fill them well enough", "a vector holds no two of them")) != spread, told


@pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's mprotect")
@pytest.mark.parametrize(
    ("dtype", "side", "stores"),
    [
        ("float32", "above", "plain"),
        ("float32", "below", "streaming"),
        pytest.param("float32", "above", "streaming", marks=pytest.mark.slow),
        pytest.param("float16", "above", "plain", marks=pytest.mark.slow),
    ],
)
def test_no_kernel_leaves_its_arrays(dtype: str, side: str, stores: str) -> None:
    seen = guarded_calls("guarded_depthwise.py", dtype, side, stores)
    names = {
        "group_planes",
        "group_cells",
        "group_transposed",
        "slide_cells",
        *(("slide", "flat") if machine().masks_memory else ()),
    }
    of_one_op = {"conv_grad_filter/permuted"} if level().machine == "x86_64" else set()
    assert set(seen) == {f"{op}/{name}" for op in OPS for name in names} | of_one_op
    assert min(seen.values()) >= 10, seen
