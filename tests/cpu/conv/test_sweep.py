"""Convolutions over long axes, and windows whose taps or outputs lie far apart: plans stay small and answers right."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conv_calls import CONV_OPS, conv_arguments
from cpu_calls import LAYOUTS

import pullback as pb
from pullback.cpu.conv import cells as conv_cells
from pullback.cpu.conv import direct as conv_direct
from pullback.cpu.conv import filter_gradient as conv_filter
from pullback.cpu.conv.filter_order import own_order
from pullback.cpu.conv.sweep import AxisPhase, forward_phase, gradient_phases, lies_far, sweep_of, with_idle
from pullback.cpu.depthwise import cells as depthwise_cells
from pullback.cpu.depthwise import planes as depthwise_planes
from pullback.cpu.engine.plan import Plan
from pullback.ops.explain import PREPARE
from pullback.registry import kernels_for
from pullback.window import Window

LARGEST = 2**31 - 1


def windows(count: int) -> list[Window]:
    """Windows along one axis, of all sorts."""
    rng = random.Random(0)
    found: list[Window] = []
    while len(found) < count:
        n, k, s, d = rng.randint(1, 30), rng.randint(1, 6), rng.randint(1, 12), rng.randint(1, 12)
        pads = rng.randint(-2, 9), rng.randint(-2, 9)
        try:
            found.append(Window.make((n,), (k,), (s,), (d,), [pads]))
        except ValueError:
            continue
    return found


def test_the_bases_of_a_tap() -> None:
    """By arithmetic as by looking at each base."""
    for window in windows(400):
        step, size = window.stride[0], window.input_size[0]
        for phase, apart, cells in (
            (forward_phase(window, 0), step, size),
            *((phase, 1, window.output_size[0]) for phase in gradient_phases(window, 0)),
        ):
            for offset, first, end in zip(phase.offsets, *phase.met(apart, cells), strict=True):
                met = [u for u in range(phase.count) if 0 <= u * apart + offset < cells]
                assert list(range(first, end)) == met
            alive = phase.alive(apart, cells)
            dead = set(phase.taps) - set(alive.taps)
            firsts, ends = phase.met(apart, cells)
            assert all(firsts[phase.taps.index(t)] == ends[phase.taps.index(t)] for t in dead)


def test_the_phases_of_a_gradient() -> None:
    """As Window has them, which looks at each residue and each tap."""
    for window in windows(400):
        expected = window.phases(0)
        found = with_idle(gradient_phases(window, 0), window.input_size[0], window.stride[0])
        assert len(found) == len(expected)
        for mine, other in zip(found, expected, strict=True):
            assert (mine.start, mine.count) == (other.start, other.count)
            assert dict(zip(mine.taps, mine.offsets, strict=True)) == dict(zip(other.taps, other.shifts, strict=True))


def test_cells_without_taps_are_left_out_where_strides_are_long() -> None:
    problem = PREPARE["conv_grad_input"](
        np.empty((1, 4, 1), np.float32), np.empty((3, 1, 1), np.float32), (1, 40_000, 1), stride=10_000
    )[0]
    sweep = sweep_of(problem)
    assert sweep.target_cells is not None
    assert sweep.target_cells[0].tolist() == [start + t for start in range(0, 40_000, 10_000) for t in range(3)]
    assert sweep.axes[2].phases[1] == AxisPhase(1, 4, range(1, 2), range(1))


# size, kernel, options: far apart along some axis, or so that no second window follows.
FAR: tuple[tuple[Any, ...], ...] = (
    ((9_000,), (3,), {"dilation": 4_000, "padding": "same"}),
    ((20_000,), (3,), {"stride": 5_000, "padding": "same"}),
    ((20_000,), (3,), {"stride": 1_000, "dilation": 999, "padding": "same"}),
    ((20_000,), (2,), {"stride": 3_000, "dilation": 6_000, "padding": 1_500}),
    ((500,), (3,), {"stride": LARGEST, "padding": "same"}),
    ((100,), (2,), {"stride": LARGEST, "dilation": LARGEST, "padding": [(0, LARGEST)]}),
    ((100,), (2,), {"stride": LARGEST, "dilation": LARGEST, "padding": [(LARGEST, 1)]}),
    ((50,), (3,), {"dilation": LARGEST, "padding": [(LARGEST, LARGEST)]}),
    ((8, 6_000), (3, 3), {"dilation": (2, 2_500), "padding": (2, 2_500)}),
    ((6_000, 8), (3, 3), {"dilation": (2_500, 1), "padding": (2_500, 1)}),
    ((30, 200), (3, 3), {"stride": (1, 11), "padding": "same"}),
    ((400, 60), (3, 1), {"stride": (150, 11), "dilation": (1, LARGEST), "padding": "same"}),
    ((3_000, 2, 5), (2, 2, 3), {"dilation": (2_900, 1, 1), "padding": 1}),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("size", "kernel", "options"), FAR, ids=str)
def test_windows_that_reach_far(size: tuple[int, ...], kernel: tuple[int, ...], options: dict[str, Any], layout: str) -> None:
    for channels in ({"c_in": 3, "c_out": 5}, {"c_in": 20, "c_out": 3}, {"c_in": 4, "c_out": 4, "groups": 4}):
        for op, arguments, keywords in conv_arguments(layout, batch=2, size=size, kernel=kernel, **channels, **options):
            with pb.backend("reference"):
                expected = getattr(pb, op)(*arguments, **keywords)
            taken = 0
            for kernel_of in kernels_for(op, "cpu"):
                if kernel_of.backend == "cpu" and kernel_of.name != "winograd":
                    try:
                        with pb.backend("cpu"), pb.kernel(kernel_of.name):
                            found = getattr(pb, op)(*arguments, **keywords)
                    except pb.KernelError:
                        continue
                    np.testing.assert_array_equal(found, expected, f"{op} {kernel_of.name}")
                    taken += 1
            assert taken


def test_far_is_what_leaves_much_between() -> None:
    def far(n: int, k: int, s: int, d: int) -> bool:
        return lies_far(Window.make((n,), (k,), (s,), (d,), "same"))

    assert not far(10**6, 1000, 1, 1)
    assert not far(10**6, 3, 2, 500)
    assert far(10**6, 3, 1, 5000)
    assert far(10**6, 3, 5000, 1)
    assert not far(100, 3, LARGEST, 1)  # there is one window only


CELLS = 4_000_000


def long_problem(op: str, layout: str, taps: int, groups: int, channels: int = 4) -> Any:
    x = np.empty((1, CELLS, channels) if layout == "channels_last" else (1, channels, CELLS), np.float32)
    each = channels // groups
    f = np.empty((taps, each, channels) if layout == "channels_last" else (channels, each, taps), np.float32)
    options = {"padding": "same", "layout": layout, "groups": groups}
    arguments = {"conv": (x, f), "conv_grad_input": (x, f, x.shape), "conv_grad_filter": (x, x, f.shape)}
    return PREPARE[op](*arguments[op], **options)[0]


def plans_of(problem: Any) -> list[Plan]:
    """The plans of all dense kernels, or of those for groups, for numbers that are finite and for others."""
    order, found = own_order(problem.layout), []
    for padded in (True, False):
        if problem.groups == 1 and problem.op == "conv_grad_filter":
            found.append(conv_filter.filter_plan(problem, padded).sums)
        elif problem.groups == 1:
            for make in (conv_direct.direct_plan, conv_cells.cells_plan):
                plans = make(problem, order, padded)
                found += [plans.pack, plans.sweep]
        else:
            module: Any = depthwise_cells if problem.layout == "channels_last" else depthwise_planes
            found.append(
                module.filter_plans(problem, padded).products
                if problem.op == "conv_grad_filter"
                else module.gather_plan(problem, padded)
            )
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", CONV_OPS)
@pytest.mark.parametrize(("taps", "groups"), [(3, 1), (1000, 1), (3, 4), (1000, 4)])
def test_plans_of_long_axes_are_small(op: str, layout: str, taps: int, groups: int) -> None:
    """Tables and what it takes to make them; an entry for each cell would take 32 MB."""
    plans_of(replace(long_problem(op, layout, taps, groups), batch=2))  # loads the code
    problem = long_problem(op, layout, taps, groups)
    tracemalloc.start()
    plans = plans_of(problem)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    kept = sum(table.nbytes for plan in plans for table in plan.keep if isinstance(table, np.ndarray))
    assert kept < 2 << 20
    assert peak < 6 << 20
