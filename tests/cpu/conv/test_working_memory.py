"""A large convolution takes its inputs, its result, a few megabytes a thread and its packed filter, and no copy of anything."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import numpy as np
import pytest
from cpu_calls import LAYOUTS, run_python, shaped

import pullback as pb
from pullback.cpu.engine import threads
from pullback.cpu.engine.plan import Plan
from pullback.cpu.winograd.filter_gradient import gradient_plans
from pullback.registry import kernels_for

MIB = 1024  # kilobytes
THREAD_MIB = 3
WINOGRAD_SHARE = {"conv": 4, "conv_grad_input": 4, "conv_grad_filter": 32}  # 36 numbers for 9 taps, in up to 8 sets of sums
SHARE = 2  # of the other kernels: a packed filter fills its vectors, and there may be two sets of partial sums

# In a process of its own: what other tests have left in memory would blur the peak.
MEASURE = """
import json, sys
import pullback as pb
from peak_memory import peak_beyond
from cpu.conv.test_working_memory import CASES, calls

found = {}
with pb.backend("cpu"), pb.threads(2):
    for name, case in CASES.items():
        for op, kernel, call in calls(case, sys.argv[1]):
            with pb.kernel(kernel):
                call()  # loads the code and keeps the plan
                found[f"{name} {op} {kernel}"] = peak_beyond(call)
print(json.dumps(found))
"""

# batch, channels in and out, size, window, keywords; x or dy of 8 MiB and more, so that a copy would show.
CASES: dict[str, tuple[Any, ...]] = {
    "3x3": (8, 64, 64, (128, 128), (3, 3), {"padding": 1}),
    "many channels": (2, 256, 256, (64, 64), (3, 3), {"padding": 1}),
    "stride 2": (8, 64, 128, (128, 128), (3, 3), {"padding": 1, "stride": 2}),
    "1x1": (8, 64, 64, (128, 128), (1, 1), {}),
    "few made": (8, 64, 6, (192, 192), (3, 3), {"padding": 1}),
    "depthwise": (8, 64, 64, (128, 128), (3, 3), {"padding": 1, "groups": 64}),
    "grouped": (8, 64, 64, (128, 128), (3, 3), {"padding": 1, "groups": 16}),
    "three axes": (1, 32, 32, (48, 48, 48), (3, 3, 3), {"padding": 1}),
}


def calls(case: tuple[Any, ...], layout: str) -> list[tuple[str, str, Any]]:
    """(op, kernel, call) of every cpu kernel that takes the case."""
    batch, c_in, c_out, size, window, options = case
    options = {**options, "layout": layout}
    each = c_in // options.get("groups", 1)
    x = np.ones(shaped(layout, batch, c_in, *size), np.float32)
    f = np.ones((*window, each, c_out) if layout == "channels_last" else (c_out, each, *window), np.float32)
    dy = np.ones(pb.explain("conv", x, f, **options).problem.output_shape, np.float32)
    arguments = {"conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}
    found = []
    for op, given in arguments.items():
        for kernel in kernels_for(op, "cpu"):
            if kernel.backend == "cpu" and kernel.verdict(pb.explain(op, *given, **options).problem).reason is None:
                found.append((op, kernel.name, lambda op=op, given=given: getattr(pb, op)(*given, **options)))
    return found


def filter_mib(name: str) -> float:
    _, c_in, c_out, _, window, options = CASES[name]
    return float(np.prod(window)) * c_in // options.get("groups", 1) * c_out * 4 / (1 << 20)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_hidden_copies(layout: str) -> None:
    found = json.loads(run_python(MEASURE, layout))
    kernels = {what.split()[-1] for what in found}
    assert {"direct", "winograd", "cells", "group_cells" if layout == "channels_last" else "group_planes"} <= kernels
    beyond = {}
    for what, kilobytes in found.items():
        name, op, kernel = what.rsplit(" ", 2)
        share = WINOGRAD_SHARE[op] if kernel == "winograd" else SHARE
        if kilobytes > (2 * THREAD_MIB + share * filter_mib(name)) * MIB:
            beyond[what] = kilobytes
    assert not beyond, f"kilobytes beyond inputs and outputs, two threads: {beyond}"
    assert min(found.values()) > -MIB, "results lie in memory that was there before: what is measured is not the peak"


# Shapes that are long in one direction, where a kernel that keeps whole rows, depths or channels would need much.
LONG: dict[str, tuple[Any, ...]] = {
    "long row": (1, 64, 64, (100_000,), (9,), {"padding": 4}),
    "long row, depthwise": (1, 64, 64, (100_000,), (5,), {"padding": 2, "groups": 64}),
    "wide image": (1, 64, 64, (8, 16_384), (3, 3), {"padding": 1}),
    "deep": (1, 64, 64, (400, 8, 64), (3, 3, 3), {"padding": 1}),
    "many channels": (1, 1024, 1024, (16, 16), (3, 3), {"padding": 1}),
    "many images": (256, 64, 64, (8, 8), (3, 3), {"padding": 1}),
    "large window": (1, 64, 64, (64, 64), (15, 15), {"padding": 7}),
}
MOST_SCRATCH = 8 << 20  # bytes of a thread


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LONG)
def test_working_memory_is_bounded_on_long_shapes(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}
    with pb.backend("cpu"):
        for op, kernel, call in calls(LONG[name], layout):
            sizes = [0]
            monkeypatch.setattr(
                Plan, "run", lambda plan, sizes=sizes, **_: sizes.append(plan.scratch_bytes)
            )  # and runs nothing
            with pb.kernel(kernel):
                call()
            asked[f"{op} {kernel}"] = max(sizes)
    assert len(asked) >= 3
    assert max(asked.values()) <= MOST_SCRATCH, asked


@pytest.mark.parametrize(("channels", "window"), [(64, 3), (128, 7), (64, 15), (128, 15)])
def test_sums_of_large_windows_are_bounded(channels: int, window: int) -> None:
    x, f = np.empty((4, 64, 64, channels), np.float32), np.empty((window, window, channels, channels), np.float32)
    problem = pb.explain("conv_grad_filter", x, x, f.shape, padding=window // 2).problem
    plans = gradient_plans(problem)
    tap_blocks = (-(-window // 3)) ** 2
    one_set = tap_blocks * 36 * channels * channels * 4
    assert plans.sum_bytes <= max(4 << 20, one_set) * 1.01
    assert plans.partial_sums.pieces >= 2, "one piece would leave the other threads without work"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_depths_are_summed_in_smaller_blocks(layout: str) -> None:
    rng = np.random.default_rng(0)
    x, dy = (rng.integers(-2, 3, shaped(layout, 1, c, 300, 2, 32)).astype(np.float32) for c in (48, 40))
    f = (3, 3, 3, 48, 40) if layout == "channels_last" else (40, 48, 3, 3, 3)
    with pb.kernel("direct"), pb.backend("cpu"):
        found = pb.conv_grad_filter(dy, x, f, padding=1, layout=layout)
    with pb.backend("reference"):
        assert np.array_equal(found, pb.conv_grad_filter(dy, x, f, padding=1, layout=layout))


def test_release_memory_gives_working_memory_back() -> None:
    x, f = np.ones((2, 64, 64, 64), np.float32), np.ones((3, 3, 64, 64), np.float32)
    with pb.backend("cpu"), pb.threads(2):
        y = pb.conv(x, f)
        assert sum(block.size for block in threads._free) > 0
        assert pb.release_memory() > 0
        assert not threads._free
        assert np.array_equal(pb.conv(x, f), y)


def test_memory_released_under_running_calls() -> None:
    x, f = np.random.default_rng(0).standard_normal((2, 24, 24, 64)).astype(np.float32), np.ones((3, 3, 64, 64), np.float32)
    done, wrong = threading.Event(), []
    with pb.backend("cpu"):
        expected = pb.conv(x, f)

    def work() -> None:
        with pb.backend("cpu"), pb.threads(2):
            for _ in range(100):
                if not np.array_equal(pb.conv(x, f), expected):
                    wrong.append(1)

    callers = [threading.Thread(target=work) for _ in range(2)]
    releaser = threading.Thread(target=lambda: [pb.release_memory() for _ in iter(done.is_set, True)])
    for thread in (*callers, releaser):
        thread.start()
    for caller in callers:
        caller.join()
    done.set()
    releaser.join()
    assert not wrong
