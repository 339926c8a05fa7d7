"""Kernels that would be chosen on other machines, by their figures: none that its own cost model says loses by more than 5 %."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.cpu.engine import profile_file
from pullback.cpu.engine.profile import BUILT_IN, using
from pullback.ops.max_pool import prepare_max_pool_grad_from_winners
from pullback.registry import chosen_kernel

HERE = Path(__file__).parent
CACHES = {  # first, second and last level, in bytes
    "zen4_avx2": (32 << 10, 1 << 20, 32 << 20),
    "zen5_avx512": (48 << 10, 1 << 20, 32 << 20),
    "laptop_avx2": (48 << 10, 1280 << 10, 12 << 20),
    "server_avx512": (48 << 10, 2 << 20, 105 << 20),
    "server_arm": (64 << 10, 1 << 20, 32 << 20),
}
RESERVE = 0.95


RECORDED = {path.stem: path for path in sorted((HERE / "profiles").glob("*.json"))}


@pytest.fixture(scope="module")
def choices() -> dict[str, Any]:
    """Of every recorded machine: [op, case, layout, kernel that is chosen, costs by kernel]."""
    figures = {name: profile_file.read_named(str(path)) for name, path in RECORDED.items()}
    wanted = [[str(path), figures[name].level, CACHES[name]] for name, path in RECORDED.items()]
    command = [sys.executable, str(HERE / "chosen_kernels.py")]
    ended = subprocess.run(command, input=json.dumps(wanted), capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("name", list(RECORDED))
def test_no_chosen_kernel_loses_by_its_own_model(name: str, choices: dict[str, Any]) -> None:
    rows = choices[str(RECORDED[name])]
    compared = 0
    for op, case, layout, chosen, costs in rows:
        what = f"{op} {case} {layout}: {chosen} of {costs}"
        if chosen == "winograd":
            assert costs["winograd"] < RESERVE, what
        elif chosen in ("direct", "cells", "pointwise"):
            assert costs.get("winograd", 1.0) >= RESERVE, what
        if chosen in ("direct", "cells") and "cells" in costs:
            assert costs[chosen] * RESERVE <= min(costs["direct"], costs["cells"]), what
        compared += len(costs) > 0
    assert compared > len(rows) / 2
    assert {"winograd", "direct", "cells"} <= {row[3] for row in rows}


@pytest.mark.parametrize(("layout", "shape"), [("channels_last", (2, 20, 20, 64)), ("channels_first", (2, 64, 40, 40))])
def test_the_slower_a_scatter_the_less_it_does(layout: str, shape: tuple[int, ...]) -> None:
    """Of max-pool gradients from winners, over windows and strides."""
    x = np.zeros(shape, np.float32)
    taken = []
    for factor in (8.0, 1.0, 1 / 8):
        found = 0
        for window, stride in itertools.product((2, 3, 4, 5), (1, 2, 3, 4)):
            options: dict[str, Any] = {"stride": stride, "layout": layout, "padding": "same"}
            y, winners = pb.max_pool(x, window, return_winners=True, **options)
            problem = prepare_max_pool_grad_from_winners(y, winners, shape, window, **options)[0]
            with using(replace(BUILT_IN, scatter=BUILT_IN.scatter * factor)):
                found += chosen_kernel(problem).name == "scatter"
        taken.append(found)
    assert taken[0] > taken[1] > taken[2]


def test_what_is_synthetic_says_so() -> None:
    for name, path in RECORDED.items():
        figures = profile_file.read_named(str(path))
        assert figures.cpu.startswith("synthetic:") == (not name.startswith("zen")), path


def test_other_machines_choose_otherwise(choices: dict[str, Any]) -> None:
    chosen = {name: tuple(row[3] for row in choices[str(path)]) for name, path in RECORDED.items()}
    zen5 = chosen.pop("zen5_avx512")  # which these shapes need not tell from the made-up server with AVX-512
    assert len(set(chosen.values())) == len(chosen)
    assert zen5 not in (chosen["zen4_avx2"], chosen["laptop_avx2"], chosen["server_arm"])
