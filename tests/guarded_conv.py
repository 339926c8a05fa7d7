"""Run as a script: every cpu convolution kernel on memory that ends where it must (see guarded.py)."""

from __future__ import annotations

import importlib
import json
import sys

import numpy as np
from conv_calls import small_calls, with_infinity
from guarded_memory import bare_memory

import pullback as pb
from pullback.cpu.engine.plan_cache import release_plans
from pullback.registry import kernels_for


def main(dtype: str, side: str, *names: str) -> None:
    """names: of the kernels to run, or none for all."""
    if dtype == "bfloat16":
        importlib.import_module("ml_dtypes")  # which tells NumPy
    memory = bare_memory(side)
    seen: dict[str, int] = {}
    calls = list(small_calls(dtype))
    odd = [(op, with_infinity(arguments, op), keywords) for op, arguments, keywords in calls if keywords.get("padding")]
    for op, arguments, keywords in calls + odd:
        with pb.backend("reference"):
            expected = getattr(pb, op)(*arguments, **keywords)
        for kernel in kernels_for(op, "cpu"):
            if kernel.backend != "cpu" or (names and kernel.name not in names):
                continue
            release_plans()
            guarded = [memory.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
            try:
                with memory.in_use(), pb.backend("cpu"), pb.kernel(kernel.name), pb.threads(1):
                    found = getattr(pb, op)(*guarded, **keywords)
            except pb.KernelError:
                memory.arrays.clear()
                continue
            assert memory.holds(found), "the output was not allocated with np.empty"
            wide = np.abs(expected.astype(np.float64))
            scale = float(wide.max(initial=1.0, where=np.isfinite(wide)))
            relative = 1e-5 if np.dtype(dtype).itemsize >= 4 else 4e-3
            np.testing.assert_allclose(
                found.astype(np.float64), expected.astype(np.float64), rtol=relative, atol=relative * scale
            )
            memory.check()
            seen[f"{op}/{kernel.name}"] = seen.get(f"{op}/{kernel.name}", 0) + 1
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
