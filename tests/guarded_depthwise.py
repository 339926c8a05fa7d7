"""Run as a script: the depthwise and grouped kernels on memory that ends where it must (see guarded.py)."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from conv_calls import with_infinity
from cpu_calls import LAYOUTS
from guarded import sizes
from guarded_memory import bare_memory

import pullback as pb
from pullback.cpu.engine.machine import machine
from pullback.cpu.engine.pieces import stream_from
from pullback.cpu.engine.plan_cache import release_plans

NAMES = ("slide", "flat", "slide_cells", "group_transposed", "group_planes", "group_cells", "permuted")

WINDOWS: tuple[dict[str, Any], ...] = (
    {"kernel": (3, 3), "stride": 1, "padding": 1},
    {"kernel": (3, 3), "stride": 2, "padding": 1},
    {"kernel": (5, 5), "stride": 1, "padding": ((2, 0), (3, 1))},
    {"kernel": (5, 5), "stride": 2, "padding": 3},
    {"kernel": (7, 7), "padding": 3},
    {"kernel": (2, 4), "padding": 2},
    {"kernel": (2, 5), "stride": (1, 3), "dilation": (2, 1), "padding": "same"},
)


def cases(dtype: Any) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, Any]]]:
    """Width or number of groups around the vector width; depthwise, multiplied and narrow groups."""
    for size, axis, (each, outs), layout, options in itertools.product(
        sizes(), range(2), ((1, 1), (1, 2), (3, 2), (4, 4)), LAYOUTS, WINDOWS
    ):
        groups, width = (size, 6) if axis == 0 else (2, size)
        if groups < 2 or (each > 1 and axis == 0 and size > 20):
            continue
        rng = np.random.default_rng([size, axis])
        x = rng.integers(-3, 4, (2, 5, width, groups * each)).astype(dtype)
        f = rng.integers(-3, 4, (*options["kernel"], each, groups * outs)).astype(dtype)
        if layout == "channels_first":
            x, f = np.moveaxis(x, -1, 1).copy(), np.moveaxis(f, (-1, -2), (0, 1)).copy()
        yield x, f, {name: value for name, value in options.items() if name != "kernel"} | {"groups": groups, "layout": layout}
    channels = 4 * machine().vector_bytes // 4 + 5  # and so many taps that channels are taken in blocks
    for width, stride in itertools.product((1, 3, 6), (1, 2)):
        x, f = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((2, 5, width, channels), (13, 9, 1, channels)))
        yield x, f, {"stride": stride, "padding": (6, 4), "groups": channels, "layout": "channels_last"}


def main(dtype: str, side: str, stores: str) -> None:
    memory = bare_memory(side)
    stream_from(0 if stores == "streaming" else 1 << 62)
    seen: dict[str, int] = {}
    for x, f, options in cases(dtype):
        with pb.backend("reference"):
            y = pb.conv(x, f, **options)
            dy = np.random.default_rng(1).integers(-3, 4, y.shape).astype(dtype)
            calls: dict[str, tuple[Any, ...]] = {
                "conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape),
            }  # fmt: skip
            both = [*calls.items(), *((op, with_infinity(arguments, op)) for op, arguments in calls.items())]
            wanted = [(op, arguments, getattr(pb, op)(*arguments, **options)) for op, arguments in both]
        for (op, arguments, expected), name in itertools.product(wanted, NAMES):
            release_plans()  # their tables lie in guarded memory too, which is for one call
            guarded = [memory.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
            try:
                with memory.in_use(), pb.backend("cpu"), pb.kernel(name):
                    found = getattr(pb, op)(*guarded, **options)
            except pb.KernelError:
                memory.arrays.clear()
                continue
            np.testing.assert_array_equal(found, expected)  # of small whole numbers
            memory.check()
            seen[f"{op}/{name}"] = seen.get(f"{op}/{name}", 0) + 1
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
