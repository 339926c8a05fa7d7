"""What both families of training kernels share: nothing is read or written outside of arrays, and wheels ship all variants."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
from cpu_calls import guarded_calls

import pullback.cpu
from pullback.cpu.engine.machine import machine
from pullback.cpu.machine_code import warmup

FAMILIES = ("elementwise", "norm")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's mprotect")
@pytest.mark.parametrize("side", ["above", "below"])
def test_no_kernel_leaves_its_arrays(side: str) -> None:
    seen = guarded_calls("guarded_training.py", side)
    assert set(seen) >= {"relu", "relu_grad_of_sum", "sum_of_squares", "adam_step", "batch_norm_train", "batch_norm_grad"}
    assert min(seen.values()) >= 8, seen


def test_a_warmup_asks_for_every_kernel_of_these_families() -> None:
    pytest.importorskip("llvmlite", reason="the sources of kernels are read by what compiles them, and nothing compiles here")
    from pullback.cpu.simd.lanes import lanes_of

    lanes, folder = lanes_of("float32", machine().vector_bytes), Path(pullback.cpu.__file__).parent
    written = set()
    for path in (path for family in FAMILIES for path in (folder / family).glob("*_kernel.py")):
        module = f"{path.parent.name}.{path.name.removesuffix('_kernel.py')}"
        build = getattr(import_module(f"pullback.cpu.{module}_kernel"), "build", None)
        written |= {(module, kernel, dtype) for kernel in (build(lanes) if build else ()) for dtype in ("float32", "float64")}
    wanted = {(v.module, v.kernel, v.dtype) for v in warmup.beside_ops(["float32", "float64", "float16"])}
    assert len(written) > 20
    assert {variant for variant in wanted if variant[0].split(".")[0] in FAMILIES} == written
