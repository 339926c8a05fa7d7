"""Every kernel gives the same bits for any number of threads and cores: what is summed is cut by the problem alone."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from cpu_calls import finish, start_python

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
RUN = "import sys, same_bits; same_bits.main(int(sys.argv[1]), [int(n) for n in sys.argv[2].split(',')], int(sys.argv[3]))"


def made(*masks: tuple[str, str], problems: int = 0, timeout: float = 120) -> list[dict[str, Any]]:
    """What same_bits.py prints, for each (cores, numbers of threads), in processes side by side."""
    processes = [start_python(RUN, cores, counts, str(problems), PULLBACK_QUIET="1") for cores, counts in masks]
    return [json.loads(finish(process, timeout)) for process in processes]


def assert_alike(runs: list[dict[str, Any]]) -> None:
    for name in runs[0]["hashes"]:
        hashes = {f"{place}: {count}": text for place, run in enumerate(runs) for count, text in run["hashes"][name].items()}
        assert len(set(hashes.values())) == 1, f"{name}: {hashes}"
    assert [run["missing"] for run in runs] == [[]] * len(runs), "a kernel of the list has no problem here"
    alone = {kernel for kernel, pieces in runs[0]["pieces"].items() if pieces < 2}
    assert alone <= {"adaptive_avg_pool/channels"}, "nothing was cut"


def test_one_core_and_two_and_up_to_64_threads() -> None:
    assert_alike(made(("1", "1,64"), ("2", "2,5,16")))


@pytest.mark.slow
def test_random_problems_too() -> None:
    masks = [("1", "1,2,5,16,64"), ("2", "1,2,5,16,64"), ("0", "3,7,33")]
    assert_alike(made(*masks, problems=150, timeout=3600))
