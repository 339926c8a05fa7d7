"""No pooling kernel touches a byte outside its arrays, with vectors of any width; a crash stays in a process of its own."""

from __future__ import annotations

import signal
import sys

import numpy as np
import pytest
from cpu_calls import guarded_calls, run_python, run_script
from guarded_memory import Memory

from pullback.cpu import warmup
from pullback.registry import kernels_for

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's mprotect")
POOLING = tuple(op for op in warmup.RULES if "pool" in op)


@linux_only
@pytest.mark.parametrize(
    ("dtype", "side", "stores"),
    [
        ("float32", "above", "plain"),
        ("float32", "below", "plain"),
        pytest.param("float32", "above", "streaming", marks=pytest.mark.slow),
        pytest.param("float16", "below", "plain", marks=pytest.mark.slow),
    ],
)
def test_no_kernel_leaves_its_arrays(dtype: str, side: str, stores: str) -> None:
    seen = guarded_calls("guarded.py", dtype, side, stores)
    registered = {f"{op}/{kernel.name}" for op in POOLING for kernel in kernels_for(op, "cpu") if kernel.backend == "cpu"}
    registered -= {f"{op}/crop" for op in POOLING}  # it runs the others, on windows that these do not take
    assert set(seen) == registered
    assert min(seen.values()) >= 50, seen


@linux_only
@pytest.mark.parametrize("side", ["above", "below"])
def test_the_guard_catches_one_byte(side: str) -> None:
    assert run_script("guarded.py", "prove", side).returncode == -signal.SIGSEGV


@linux_only
@pytest.mark.parametrize(("side", "step"), [("above", -1), ("below", 10)])
def test_the_mark_catches_one_byte(side: str, step: int) -> None:
    memory = Memory(side)
    memory.empty(10, np.uint8)
    memory.check()
    memory.empty(10, np.uint8)
    [(inner, start, _)] = memory.arrays
    inner[start + step] = 0
    with pytest.raises(AssertionError, match="was written"):
        memory.check()


NARROW = """
from cpu_calls import assert_close, bits, pool_calls, reals, shaped
import sys, numpy as np, pullback as pb
from pullback.cpu.machine import machine
width, layout = int(sys.argv[1]), sys.argv[2]
assert machine().vector_bytes == width
for dtype in (np.float32, np.float64, np.float16):
    x = reals(shaped(layout, 2, 19, 23, 37), dtype=dtype)
    for window, options in (((2, 2), {}), ((3, 2), {"stride": (1, 2), "padding": "same"}), ((2, 3), {"dilation": 2})):
        for name, call in pool_calls(x, window, layout=layout, **options).items():
            with pb.backend("reference"):
                expected = call()
            with pb.backend("cpu"):
                assert_close(call(), expected)
            if name.startswith("max_pool") and "grad" not in name:
                assert bits(call()) == bits(expected), name
"""


@pytest.mark.parametrize(
    ("width", "layout"),
    [
        (16, "channels_last"),
        (32, "channels_first"),
        pytest.param(16, "channels_first", marks=pytest.mark.slow),
        pytest.param(32, "channels_last", marks=pytest.mark.slow),
    ],
)
def test_narrower_registers_give_the_same_results(width: int, layout: str) -> None:
    run_python(NARROW, str(width), layout, timeout=600, PULLBACK_VECTOR_BYTES=str(width))
