"""No pooling kernel touches a byte outside its arrays, with vectors of any width; a crash stays in a process of its own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from cpu_calls import guarded_calls, run_python, run_script, skip_unless_it_runs
from guarded_memory import Memory

from pullback.cpu.machine_code import warmup
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
from pullback.cpu.engine.machine import machine
layout, dtypes = sys.argv[1], sys.argv[2].split()
assert machine().vector_bytes < 64
for dtype in dtypes:
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
    ("level", "layout", "dtypes"),
    [
        ("x86-64-v2", "channels_last", "float32 float64"),
        ("x86-64-v3", "channels_first", "float32 float16"),
        pytest.param("x86-64-v2", "channels_first", "float32 float64 float16", marks=pytest.mark.slow),
        pytest.param("x86-64-v3", "channels_last", "float32 float64 float16", marks=pytest.mark.slow),
    ],
)
def test_lesser_levels_give_the_same_results(level: str, layout: str, dtypes: str) -> None:
    skip_unless_it_runs(level)
    run_python(NARROW, layout, dtypes, timeout=600, PULLBACK_LEVEL=level)


# Loads and stores under masks touch their first place here, also where no lane is set: a place outside of its array crashes. On
# bare machines it costs time only, but up to a hundred times as much where a page is not there.
TOUCHING = """
import ctypes, mmap
import numpy as np
import pullback as pb
from llvmlite import ir
from pullback.cpu.conv import transpose as matrix
from pullback.cpu.simd import masked_memory as vector_memory
from pullback.cpu.simd.vectors import I8, pointer

def touching(function):
    def touched(builder, address, *rest):
        for operation in ("add", "sub"):  # what changes nothing LLVM would leave out
            builder.atomic_rmw(operation, pointer(builder, address, I8), ir.Constant(I8, 1), "seq_cst")
        return function(builder, address, *rest)
    return touched

vector_memory.masked_load, vector_memory.masked_store = map(touching, (vector_memory.masked_load, vector_memory.masked_store))
protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
AROUND = 16 << 20  # bytes that cannot be touched, on both sides

def alone(shape, dtype, above):
    count = int(np.prod(shape)) * dtype.itemsize
    pages = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
    area = np.frombuffer(mmap.mmap(-1, 2 * AROUND + pages), np.uint8)
    for start in (0, AROUND + pages):
        assert protect(area.ctypes.data + start, AROUND, 0) == 0
    start = AROUND + (pages - count if above else 0)
    return area[start : start + count].view(dtype).reshape(shape)

sizes = (1, 3, 15, 16, 17, 33, 64, 65, 80)
shapes = [(rows, cols) for rows in sizes for cols in sizes] + [(5000, 3), (3, 5000), (2, 4000, 17)]
for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
    for above in (True, False):
        for shape in shapes:
            source = alone(shape, dtype, above)
            source[...] = np.arange(source.size).reshape(shape)
            matrix.new_array = lambda shape, dtype: alone(shape, dtype, above)
            assert np.array_equal(matrix.transposed(source), source.swapaxes(-1, -2)), shape
"""


@linux_only
def test_transposes_address_nothing_outside_even_under_masks(tmp_path: Path) -> None:
    pytest.importorskip("llvmlite", reason="it changes the code that is compiled, and nothing compiles here")
    run_python(TOUCHING, PULLBACK_CACHE_DIR=str(tmp_path))


# Blocks of dx that begin in the middle of one plane and end in another need output rows from before their beginning.
BLOCKS_OVER_PLANES = """
import numpy as np
import pullback as pb
CASES = ((3, 6, 8), (1, 1, 1), 63), ((5, 7, 9), (2, 3, 2), 200), ((9, 11, 40), (3, 3, 3), 1), ((3, 51, 60), (1, 2, 2), 2)
for size, window, channels in CASES:
    for layout in ("channels_last", "channels_first"):
        shape = (1, *size, channels) if layout == "channels_last" else (1, channels, *size)
        x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
        keywords = {"stride": 1, "padding": ((0, 0), (0, 0), (0, -1)), "layout": layout}
        y, winners = pb.max_pool(x, window, return_winners=True, **keywords)
        dy = np.arange(y.size, dtype=np.float32).reshape(y.shape) % 7
        with pb.backend("reference"):
            expected = pb.max_pool_grad(dy, x, window, **keywords)
        for kernel in ("channels", "rows", "planes"):
            if kernel != "channels" or layout == "channels_last":
                if kernel != "rows" or layout == "channels_first" or channels == 1:
                    with pb.kernel(kernel):
                        assert np.array_equal(pb.max_pool_grad(dy, x, window, **keywords), expected), (kernel, size)
        with pb.kernel("scatter"):
            assert np.array_equal(pb.max_pool_grad_from_winners(dy, winners, x.shape, window, **keywords), expected), size
"""


def test_blocks_that_lie_over_several_planes() -> None:
    run_python(BLOCKS_OVER_PLANES)
