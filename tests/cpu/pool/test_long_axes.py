"""Long axes and large windows: working memory and tables grow with the axis, never with cells times taps."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from cpu_calls import run_python

import pullback as pb

# Peak kilobytes of each call beyond its result, in a process of its own.
MEASURE = """
import json, sys
import numpy as np
import pullback as pb
from peak_memory import peak_beyond

def calls(cells, channels, window, stride):
    x = np.ones((1, cells, channels), np.float32)
    dy = np.ones((1, (cells - window) // stride + 1, channels), np.float32)
    keywords = {"stride": stride}
    winners = pb.max_pool(x, window, return_winners=True, **keywords)[1]
    return {
        "max_pool": lambda: pb.max_pool(x, window, **keywords),
        "max_pool_grad": lambda: pb.max_pool_grad(dy, x, window, **keywords),
        "max_pool_grad_from_winners": lambda: pb.max_pool_grad_from_winners(dy, winners, x.shape, window, **keywords),
        "avg_pool": lambda: pb.avg_pool(x, window, **keywords),
        "avg_pool_grad": lambda: pb.avg_pool_grad(dy, x.shape, window, **keywords),
    }

found = {}
with pb.threads(2):
    for channels, divide, stride in json.loads(sys.argv[2]):
        cells = int(sys.argv[1])
        window = cells // divide
        for call in calls(cells // 16, channels, cells // 16 // divide, min(stride, cells // 16 // divide)).values():
            call()  # loads the code
        for name, call in calls(cells, channels, window, min(stride, window)).items():
            found[f"{name}, {channels} channels, a window of {window} at {stride}"] = peak_beyond(call)
print(json.dumps(found))
"""
PROBLEMS = [(1, 1, 1), (16, 1, 1), (1, 100, 10**9), (16, 100, 10**9), (1, 1000, 7)]
BYTES_A_CELL = 300  # tables and their making; the input has 4 or 64 bytes a cell


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
def test_memory_is_linear_in_the_axis() -> None:
    cells = 200_000  # a table of cells times taps would have from 400 million to 40 billion entries
    found = json.loads(run_python(MEASURE, str(cells), json.dumps(PROBLEMS)))
    assert len(found) == 25
    assert max(found.values()) * 1024 < BYTES_A_CELL * cells + (8 << 20), f"kilobytes beyond the result: {found}"


def test_the_gradient_of_a_global_mean() -> None:
    dx = pb.avg_pool_grad(np.full((1, 1, 1, 64), 224.0**2, np.float32), (1, 224, 224, 64), 224)
    assert (dx == 1).all()


def test_a_window_of_ten_thousand_over_a_million_cells() -> None:
    x = np.zeros((1, 10**6, 1), np.float32)
    x[0, ::10000] = 10000  # every window has one of these
    assert (pb.avg_pool(x, 10000) == 1).all()
    dx = pb.avg_pool_grad(np.full((1, 100, 1), 10000, np.float32), x.shape, 10000)
    assert (dx == 1).all()


def test_strides_dilations_and_pads_of_31_bits() -> None:
    most = 2**31 - 1
    x = np.arange(1.0, 6.0, dtype=np.float32).reshape(1, 5, 1)
    for backend in ("reference", "cpu"):
        with pb.backend(backend):
            assert pb.avg_pool(x, 2, stride=most, padding=((0, most - 3),)).ravel().tolist() == [1.5, 0.0]
            dx = pb.avg_pool_grad(np.array([[[2.0], [7.0]]], np.float32), x.shape, 2, stride=most, padding=((0, most - 3),))
            assert dx.ravel().tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
            y, winners = pb.max_pool(x, 2, stride=most, dilation=most, padding=((0, most),), return_winners=True)
            assert (y.ravel().tolist(), winners.ravel().tolist()) == ([1.0], [0])
            dx = pb.max_pool_grad_from_winners(y, winners, x.shape, 2, stride=most, dilation=most, padding=((0, most),))
            assert dx.ravel().tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
