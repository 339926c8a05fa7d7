"""About a minute of fuzzing, and the proof that the fuzzer finds planted defects, crashes and hangs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cpu_calls import as_tuple, bits
from guarded_memory import Memory

import pullback as pb

from . import campaign
from .cases import OPS, Case, from_text, pairs
from .check import Outcome, check
from .draws import HUGE, MOST_CELLS, MOST_DENSE_WORK, Draw
from .program import EXACT, MEMORY, ROUNDED, array_lines, call_source, snippet
from .shrink import shrink

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="its memory is guarded by Linux's mprotect")

SEED = 20261116  # the same cases for everybody; make fuzz draws fresh ones
SECONDS = 15  # of each part; a part takes longer where kernels are not compiled yet, and where it shrinks a failure
CONVOLUTIONS = tuple(op for op in OPS if op.startswith("conv"))
GRADIENTS = tuple(op for op in OPS if "pool_grad" in op)
PARTS: dict[str, tuple[tuple[str, ...], float]] = {  # ops, and how many of the calls are garbage
    "convolution": (CONVOLUTIONS, 0.0),
    "pooling": (tuple(op for op in OPS if op not in CONVOLUTIONS + GRADIENTS), 0.0),
    "pooling gradients": (GRADIENTS, 0.0),
    "garbage": (OPS, 1.0),
}


@pytest.mark.parametrize("part", PARTS)
def test_random_calls_are_as_the_reference_says(part: str) -> None:
    ops, garbage = PARTS[part]
    result = campaign.run(SEED, SECONDS, ops=ops, garbage=garbage, most=3, shrink_seconds=20)
    assert not result.failures, result.summary(ops)
    assert result.statuses["invalid" if garbage else "same"], result.summary(ops)


def planted(name: str, op: str, limit: float = 120.0) -> campaign.Failure:
    """The one failure that is found of a planted defect, by dispatch: no real kernel runs."""
    result = campaign.run(
        5, 60, ops=(op,), garbage=0.0, limit=limit, plant=name, most=1, by_name=False, shrink_seconds=max(20.0, 2 * limit)
    )
    assert len(result.failures) == 1, result.summary((op,))
    return result.failures[0]


def test_a_wrong_kernel_is_found_and_shrunk() -> None:
    failure = planted("wrong", "conv")
    case = failure.case
    assert (failure.outcome.kernel, failure.outcome.category) == ("planted", "values")
    assert (case.size, case.window, case.batch, case.filters, case.memory, case.threads) == ((5,), (1,), 1, 1, (), None)
    assert case.stride == 2
    assert {case.channels, case.groups} == {1, 2}
    assert len(snippet(case, "values").splitlines()) <= 10
    compile(snippet(case, "values"), "snippet", "exec")


def test_a_crash_is_reported_and_shrunk() -> None:
    failure = planted("crash", "avg_pool")
    assert failure.outcome.category == "crash"
    assert failure.outcome.text.startswith("SIGSEGV")
    assert "plants.py" in failure.outcome.text
    assert failure.case.count_include_pad
    assert failure.case.size == (1,)
    assert "count_include_pad=True" in failure.report()


def test_a_hang_is_reported() -> None:
    failure = planted("hang", "avg_pool", limit=4.0)
    assert failure.outcome.category == "hang"
    assert "plants.py" in failure.outcome.text
    assert failure.case.geometry is not None
    assert failure.case.geometry.pad_low[-1] > 0


@pytest.mark.parametrize(
    ("name", "op", "category"),
    [
        ("writes_input", "avg_pool_grad", "input written"),
        ("depends_on_threads", "avg_pool_grad", "threads"),
        ("wrong_error", "avg_pool", "exception"),
    ],
)
def test_other_planted_defects_are_found(name: str, op: str, category: str) -> None:
    assert planted(name, op).outcome.category == category


# Found by an hour of fuzzing, and right by docs: the reference sums a sliced array in another order (two last bits differ); the one
# result of a tile of Winograd's sums products that are all zero, and gets the rounding of the others.
ROUNDED_OTHERWISE: tuple[dict[str, Any], ...] = (
    {"op": "conv", "size": [3], "batch": 2, "channels": 2, "groups": 2, "dtype": "float64", "padding": [[-1, 0]], "data": "reals"},
    {"op": "conv", "kernel": "winograd", "window": [33], "channels": 2, "layout": "channels_first", "padding": [[16, 16]],
     "data": "zeros", "seed": 3},
)  # fmt: skip


@pytest.mark.parametrize("case", ROUNDED_OTHERWISE)
def test_what_may_round_otherwise_is_no_failure(case: dict[str, Any]) -> None:
    assert check(from_text(json.dumps(case))).status == "same"


def test_a_byte_past_the_result_is_found() -> None:
    failure = planted("wild_write", "avg_pool_grad")
    assert failure.case.guard is not None
    assert failure.outcome.category == ("crash" if failure.case.guard == "above" else "memory")


def drawn(count: int, seed: int = 1, garbage: float = 0.1) -> list[Case]:
    draw = Draw(seed, garbage=garbage)
    return [draw.case() for _ in range(count)]


def test_a_seed_means_the_same_cases_and_json_keeps_them() -> None:
    cases = drawn(300)
    assert cases == drawn(300) != drawn(300, seed=2)
    assert [from_text(case.text()) for case in cases] == cases


def test_draws_reach_every_corner_with_bounded_work() -> None:
    cases = drawn(4000, garbage=0.0)
    assert {case.op for case in cases} == set(OPS)
    assert {case.rank for case in cases} == {1, 2, 3}
    assert {case.data for case in cases} == {*EXACT, *ROUNDED}
    assert {kind for case in cases for kind in case.memory} == {*MEMORY, "plain"}
    assert {case.dtype for case in cases} == {"float32", "float64", "float16", "bfloat16"}
    assert {case.batch for case in cases} >= {0, 1, 2}
    assert {case.returns for case in cases} == {"values", "indices", "winners"}
    pads = [pairs(case.padding, case.rank) for case in cases if not isinstance(case.padding, str)]
    assert any(min(map(min, pad)) < 0 for pad in pads)
    assert any(p != q for pad in pads for p, q in pad)
    fitting = sum(case.geometry is not None for case in cases)
    assert 0.9 * len(cases) < fitting < len(cases)
    bounded = [case for case in cases if HUGE not in case.size]
    assert 0 < len(cases) - len(bounded) < len(cases) / 50
    assert max(case.work() for case in bounded) <= MOST_DENSE_WORK
    assert max(case.cells() for case in bounded) <= MOST_CELLS


def test_a_snippet_says_what_was_run() -> None:
    """Run as it is printed, but on the reference, it must give what the case's own lines give."""
    ran = 0
    for case in drawn(200, garbage=0.0):
        if (
            case.guard
            or case.cpus
            or case.geometry is None
            or case.source == "wrong"
            or case.work() > 100_000
            or HUGE in case.size
        ):
            continue
        printed: dict[str, Any] = {}
        text = snippet(case, "values").replace("pb.backend('cpu')", "pb.backend('reference')").replace("print(", "shown = (")
        exec(text, printed)
        own = {"np": np, "pb": pb, "ml_dtypes": ml_dtypes, "Memory": Memory}
        with pb.backend("reference"):
            exec("\n".join(array_lines(case)), own)
            expected = eval(call_source(case), own)
        assert bits(as_tuple(printed["found"])) == bits(as_tuple(expected)), text
        ran += 1
    assert ran > 100


def test_shrinking_is_greedy_and_stops_where_nothing_simpler_fails() -> None:
    def fails(condition: Callable[[Case], bool]) -> Callable[[Case], Outcome]:
        return lambda case: Outcome("failed", None, "values") if condition(case) else Outcome("same")

    start = Case(
        "max_pool", "rows", (9, 17), (3, 4), 3, 12, 1, 1, "channels_first", "bfloat16", (2, 3), 2, ((1, 2), (3, -1)), "ceil",
        "last", data="specials", seed=77, memory=("turned",), threads=5, again=3,
    )  # fmt: skip
    least, _ = shrink(
        start, Outcome("failed", None, "values"), fails(lambda case: case.ties == "last" and max(case.size) >= 6), 60
    )
    assert least == Case("max_pool", "rows", (6,), stride=None, ties="last", data="ones")
    kept, _ = shrink(start, Outcome("failed", None, "values"), fails(lambda case: case == start), 60)
    assert kept == start


def test_a_right_call_passes_and_a_refusal_is_none() -> None:
    assert check(Case("max_pool_jvp_from_winners", size=(5,), window=(2,), stride=None)).status == "same"
    assert check(Case("conv", size=(3,), window=(5,))).status == "invalid"
    assert check(Case("avg_pool", "no such kernel", size=(3,))).status == "refused"
