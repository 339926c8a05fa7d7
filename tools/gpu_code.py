"""Compiles the kernels of the cuda backend for a GPU that need not be there, and tells registers, spills and instructions of each.

python tools/gpu_code.py                 # all cases of the benchmark, both layouts
python tools/gpu_code.py pool dw-7x7     # those whose names have one of these parts
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from pullback.bench.cuda import participants
from pullback.bench.cuda.cases import CASES, CudaCase
from pullback.cuda import launch

TARGET = GPUTarget("cuda", 90, 32)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class NoDevice:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


seen: dict[str, dict[str, Any]] = {}


def report(plan: Any, problem: Any, *tensors: torch.Tensor) -> None:
    """Compiles what would be launched; says once what it takes."""
    begin = time.perf_counter()
    kernel, programs, numbers, options = plan(problem)
    made = kernel.warmup(*tensors, *numbers, grid=(programs,), **options)
    taken = time.perf_counter() - begin
    key = made.hash
    if key in seen:
        return
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True).stdout
    found = {name: int(n) for name, n in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    ptx = made.asm["ptx"]
    loads = re.findall(r"ld\.global\.(?:\w+::\w+\.)*(?:L1::\w+\.)?((?:v\d\.)?b\d+)", ptx)
    kinds = {kind: loads.count(kind) for kind in sorted(set(loads))}
    seen[key] = found
    size = f"loads {kinds} {len(ptx.splitlines())} lines"
    print(f"  {kernel.__name__:<22} {taken:5.1f} s  {options.get('num_warps', 4)} warps {found} {size}")


def compile_case(case: CudaCase, layout: str, dtype: torch.dtype) -> None:
    small = CudaCase(
        case.name, case.family, 1, case.channels, case.size, case.kernel, case.stride, case.padding, case.groups, case.out
    )
    data = participants.Data(small, layout, dtype, "cpu")
    for op in small.ops:
        print(f"{case.name} {op} {dtype} {layout}", flush=True)
        participants.ours(data, op)()


def main() -> None:
    driver.set_active(NoDevice())
    launch.launch = report
    for case in CASES:
        if not sys.argv[1:] or any(part in case.name for part in sys.argv[1:]):
            for layout in ("channels_last", "channels_first"):
                for dtype in (torch.float32, torch.bfloat16):
                    compile_case(case, layout, dtype)


if __name__ == "__main__":
    main()
