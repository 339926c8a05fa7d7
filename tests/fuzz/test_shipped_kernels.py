"""What a wheel ships is all that calls can ask for: random calls are planned, not run, for this level and for others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cpu_calls import run_python

from pullback.cpu.machine_code import dry_run, warmup

from . import check
from .cases import on_each_kernel
from .draws import Draw

CALLS = 150


def unshipped(seed: int, dtype: str) -> set[str]:
    """The variants of this dtype that random calls ask for, on every kernel, and that no warm-up task does."""
    shipped, asked = set(warmup.wanted([dtype], wide=True)), set()
    draw = Draw(seed, garbage=0.0)
    for _ in range(CALLS):
        problem = replace(draw.case(), dtype=dtype, guard=None, cpus=None, threads=1, again=None)
        for case in on_each_kernel(problem):
            variables = check._expected(case).variables
            for faulty in (False, True):
                with dry_run.dry_run(faulty) as run, np.errstate(all="ignore"):
                    check._call(case, variables, 1)
                asked |= set(run.wanted)
    assert len(asked) > 50
    return {str(variant) for variant in asked - shipped}


@pytest.mark.parametrize(
    ("level", "dtype"),
    [("", "float32"), ("aarch64", "float64"), pytest.param("x86-64-v3", "float16", marks=pytest.mark.slow)],
)
def test_random_calls_ask_for_nothing_else(level: str, dtype: str) -> None:
    environment = {"PULLBACK_LEVEL": level} if level else {}
    code = f"from fuzz.test_shipped_kernels import unshipped\nprint(sorted(unshipped(7, {dtype!r})))"
    assert run_python(code, timeout=600, **environment) == "[]"
