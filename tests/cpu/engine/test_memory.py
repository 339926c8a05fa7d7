"""Pooling a large array takes its inputs, its outputs and a few megabytes a thread, and no copy of anything."""

from __future__ import annotations

import json
import sys

import pytest
from cpu_calls import LAYOUTS, run_python

# In a process of its own: what other tests have left in memory would blur the peak.
MEASURE = """
import json, sys
import numpy as np
import pullback as pb
from cpu_calls import pool_arguments, reals, shaped
from peak_memory import peak_beyond
from pullback.registry import kernels_for

layout = sys.argv[1]
options = {"stride": 2, "padding": 1, "layout": layout}
small = pool_arguments(reals(shaped(layout, 1, 64, 16, 16)), 1, (3, 3), **options)
x = np.zeros(shaped(layout, 16, 64, 256, 256), np.float32)
x[...] = 1  # every page is there before the peak is taken
assert x.nbytes == 256 << 20
found = {}
with pb.backend("cpu"), pb.threads(2):
    y, winners = pb.max_pool(x, (3, 3), return_winners=True, **options)
    indices = pb.max_pool(x, (3, 3), return_indices=True, **options)[1]
    large = {
        "max_pool": (x, (3, 3)), "max_pool with winners": (x, (3, 3)), "max_pool with indices": (x, (3, 3)),
        "max_pool_grad": (y, x, (3, 3)), "max_pool_grad_from_winners": (y, winners, x.shape, (3, 3)),
        "max_pool_grad_from_indices": (y, indices, x.shape), "avg_pool": (x, (3, 3)), "avg_pool_grad": (y, x.shape, (3, 3)),
    }
    for name, (op, _, keywords) in small.items():
        if any(kernel.backend == "cpu" for kernel in kernels_for(op, "cpu")):
            function = getattr(pb, op)
            function(*large[name], **keywords)  # loads the code: a small call may take another kernel
            found[name] = peak_beyond(lambda: function(*large[name], **keywords))
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_hidden_copies(layout: str) -> None:
    found = json.loads(run_python(MEASURE, layout))
    assert len(found) >= 7
    assert max(found.values()) < 2 * 4 * 1024, f"kilobytes beyond inputs and outputs, two threads: {found}"
