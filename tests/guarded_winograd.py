"""Run as a script: the Winograd kernels on memory that ends where it must (see guarded.py), so that a stray access crashes."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from cpu.winograd.test_winograd import LAYOUTS, OPS, arrays
from guarded_memory import bare_memory

import pullback as pb
from pullback.cpu.engine.machine import machine
from pullback.cpu.winograd import convolve as winograd_plans
from pullback.cpu.winograd import filter_gradient as winograd_gradient
from pullback.cpu.winograd import tuning
from pullback.ops.explain import PREPARE

V = machine().vector_bytes // 4
SHAPES: tuple[tuple[Any, ...], ...] = (
    (1, (1, 1), 1, 1, (3, 3), {"padding": 1}),
    (2, (4, 5), 3, V + 1, (3, 3), {"padding": 1}),
    (1, (9, V + 3), V + 1, 3, (3, 3), {}),
    (2, (8, 8), V, V, (3, 3), {"padding": [(0, 2), (2, 0)]}),
    (1, (9, 11), 5, V - 1, (3, 3), {"padding": 2, "dilation": 2}),
    (1, (7, 9), 5, 4 * V + 3, (5, 2), {"padding": (2, 1)}),
    (3, (2 * V + 1,), 2, 2 * V + 1, (3,), {"padding": 1}),
    (1, (3, 5, 9), 3, 5, (3, 3, 3), {"padding": 1}),
    (1, (9, 8), 6, 4, (3, 3), {"padding": -1, "groups": 2}),
)
HALF_SHAPES = (SHAPES[1], (2, (7, 11), 5, 2 * V - 1, (3, 5), {"padding": (1, -1)}))  # as wide a register tile: compiled once
PLANS = (winograd_plans.convolve_plans, winograd_gradient.gradient_plans)


def main(side: str) -> None:
    memory, calls = bare_memory(side), 0
    for layout in LAYOUTS:
        for dtype, shapes, ahead in (("float32", SHAPES, 1.0), ("float32", SHAPES[:4], 0.0), ("float16", HALF_SHAPES, 1.0)):
            tuning.AHEAD_CACHE = ahead  # 0: filters are transformed in scratch
            for *shape, keywords in shapes:
                for op, arguments in arrays(layout, *shape, dtype, **keywords).items():
                    with pb.backend("reference"):
                        expected = getattr(pb, op)(*arguments, layout=layout, **keywords).astype(np.float64)
                    problem, *given = PREPARE[op](*arguments, layout=layout, **keywords)
                    for plan in PLANS:
                        plan.cache_clear()  # their tables lie in guarded memory too, which is for one call
                    guarded = [memory.copy(array) for array in given]
                    with memory.in_use(), pb.threads(1):
                        found = OPS[op](problem, *guarded)
                    assert memory.holds(found), "the result was not allocated with np.empty"
                    bound = (1e-5 if dtype == "float32" else 4e-3) * max(1.0, np.abs(expected).max())
                    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=bound)
                    memory.check()
                    calls += 1
    print(json.dumps({"calls": calls}))


if __name__ == "__main__":
    main(sys.argv[1])
