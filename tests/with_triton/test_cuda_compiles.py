"""Every kernel of the cuda backend compiles for sm_90: no GPU is needed for that, only Triton's own compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

KERNELS = {
    "pool.forward_kernel": {"max_pool", "avg_pool"},
    "pool.gradient_kernel": {"patches"},
    "pool.loop_kernel": {"max_pool", "avg_pool", "gradient"},
    "depthwise.gather_kernel": {"gather"},
    "norm.channels_kernel": {
        "chunk_statistics",
        "merge_statistics",
        "take_statistics",
        "normalize",
        "chunk_sums",
        "input_gradient",
    },
    "norm.rows_kernel": {"normalize_rows", "gradient_of_rows"},
}
FAMILIES = ("pool", "depthwise", "conv", "norm")


@pytest.mark.skipif(find_spec("triton.backends.nvidia") is None, reason="this Triton has no compiler for NVIDIA's GPUs")
def test_kernels_compile():
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    for module, names in KERNELS.items():
        assert {f"pullback.cuda.{module}.{name}" for name in names} <= found
    assert all(any(name.startswith(f"pullback.cuda.{family}.") for name in found) for family in FAMILIES)
