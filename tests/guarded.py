"""Run as a script: every cpu pooling kernel on memory that ends where it must, so that a stray access crashes or leaves a mark.

All memory that native code sees (inputs, outputs, tables, scratch) lies between two inaccessible pages, flush against the upper
one ("above") or the lower one ("below"); the rest of its pages holds a mark that is looked at after each call.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from cpu_calls import LAYOUTS, as_tuple, assert_close, pool_arguments, shaped
from guarded_memory import Memory, bare_memory

import pullback as pb
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import stream_from
from pullback.cpu.engine.plan_cache import release_plans
from pullback.registry import kernels_for

WINDOWS: tuple[dict[str, Any], ...] = (
    {"window": (2, 2), "stride": 2},
    {"window": (3, 3), "stride": 1, "padding": "same"},
    {"window": (3, 3), "stride": 2, "padding": 1},
    {"window": (2, 3), "stride": (1, 3), "dilation": 2, "padding": "same", "rounding": "ceil"},
    {"window": None, "stride": 2},  # the whole image
)


def sizes() -> tuple[int, ...]:
    """Around the vector width of float32 sums, which float16 shares."""
    v = machine().vector_bytes // 4
    return (1, v - 1, v, v + 1, 2 * v + 1, 4 * v - 1, 4 * v, 4 * v + 1)


def cases(dtype: Any) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Each axis in turn around the vector width, the others small; but few channels, and enough for a vector."""
    some = (2, machine().vector_bytes // 4 + 3)
    many = 8 * machine().vector_bytes // 4  # channels that some kernels take at once
    for size, axis, few, layout, options in itertools.product((*sizes(), many, many + 1), range(3), some, LAYOUTS, WINDOWS):
        if size >= many and axis != 0:
            continue
        channels, height, width = (size if place == axis else small for place, small in enumerate((few, 5, 3)))
        if axis == 0 and few != some[0] and options["window"]:
            continue
        if min(height, width) < 3 and options.get("padding") is None and options["window"]:
            continue
        rng = np.random.default_rng([size, axis])
        x = rng.integers(-4, 5, shaped(layout, 2, channels, height, width)).astype(dtype)
        yield x, {**options, "window": options["window"] or (height, width), "layout": layout}


def main(dtype: str, side: str, stores: str) -> None:
    memory = bare_memory(side)
    stream_from(0 if stores == "streaming" else 1 << 62)
    seen: dict[str, int] = {}
    for x, options in cases(dtype):
        window = options.pop("window")
        for op, arguments, keywords in pool_arguments(x, 3, window, **options).values():
            with pb.backend("reference"):
                expected = as_tuple(getattr(pb, op)(*arguments, **keywords))
            for kernel in kernels_for(op, "cpu"):
                if kernel.backend != "cpu":
                    continue
                release_plans()  # their tables lie in guarded memory too, which is for one call
                guarded = [memory.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
                try:
                    with memory.in_use(), pb.backend("cpu"), pb.kernel(kernel.name):
                        found = as_tuple(getattr(pb, op)(*guarded, **keywords))
                except pb.KernelError:
                    memory.arrays.clear()
                    continue
                assert all(memory.holds(array) for array in found), "an output was not allocated with np.empty"
                assert_close(found, expected)
                memory.check()
                seen[f"{op}/{kernel.name}"] = seen.get(f"{op}/{kernel.name}", 0) + 1
    print(json.dumps(seen))


def prove(side: str) -> None:
    """Touch the byte next to an array: the caller expects a crash."""
    array = Memory(side).empty(10, np.float32)
    ctypes.memset(array.ctypes.data + (array.nbytes if side == "above" else -1), 0, 1)


if __name__ == "__main__":
    if sys.argv[1] == "prove":
        prove(sys.argv[2])
    else:
        main(*sys.argv[1:])
