"""Run as a script: the cpu kernels of adaptive pooling on guarded memory, with channels around the vector width."""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
from cpu_calls import LAYOUTS, as_tuple, assert_close, shaped
from guarded import sizes
from guarded_memory import bare_memory

import pullback as pb
from pullback.cpu.engine.plan_cache import release_plans


def main(dtype: str, side: str) -> None:
    memory, seen = bare_memory(side), 0
    for channels, layout, output in itertools.product(sizes(), LAYOUTS, ((3, 4), (6, 2))):
        x = np.random.default_rng(channels).integers(-4, 5, shaped(layout, 2, channels, 5, 7)).astype(dtype)
        options = {"layout": layout}
        with pb.backend("reference"):
            dy = pb.adaptive_avg_pool(x, output, **options)
        calls = {
            "adaptive_max_pool": ((x, output), options | {"return_indices": True}),
            "adaptive_avg_pool": ((x, output), options),
            "adaptive_avg_pool_grad": ((dy, x.shape), options),
        }
        for op, (arguments, keywords) in calls.items():
            with pb.backend("reference"):
                expected = as_tuple(getattr(pb, op)(*arguments, **keywords))
            release_plans()
            guarded = [memory.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
            with memory.in_use(), pb.backend("cpu"), pb.kernel("channels"):
                found = as_tuple(getattr(pb, op)(*guarded, **keywords))
            assert_close(found, expected)
            memory.check()
            seen += 1
    print(json.dumps({"calls": seen}))


main(*sys.argv[1:])
