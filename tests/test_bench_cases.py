"""The benchmark's cases: the published list, their data, bytes and flops, and the gate that every result must pass."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_fakes import CONV, POOL

import pullback as pb
from pullback.bench import ours
from pullback.bench.accuracy import error, tolerance
from pullback.bench.cases import LAYOUTS, OPS, Case, Task, bytes_moved, flop, load_cases, parse_case
from pullback.bench.data import Expected, make_data
from pullback.bench.peers.base import UnsupportedError
from pullback.bench.peers.torch_peer import TorchPeer
from pullback.rules import Layout

POOL_OPS = [op for op, (kind, _) in OPS.items() if kind == "pool"]


def test_published_cases_are_valid_problems() -> None:
    cases = load_cases()
    kinds = [case.kind for case in cases]
    assert kinds.count("conv") >= 20
    assert kinds.count("pool") >= 10
    for case in cases:
        assert case.channels_in % case.groups == 0
        assert min(case.window.output_size) >= 1
        assert math.prod(case.input_shape) <= 2**24, "beyond this float32 has no distinct values for a whole case"


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("pool", {"stride": [1, 2, 3]}, "case 'small-pool': stride is .* 3 entries for 2 spatial axes"),
        ("pool", {"extra": 1}, "keys"),
        ("pool", {"window": [30, 2]}, "spans 30 cells"),
        ("conv", {"groups": 3}, "3 groups"),
    ],
)
def test_bad_case_is_refused(kind: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_case(kind, {**(POOL if kind == "pool" else CONV), **change})


def test_case_names_must_differ(tmp_path: Path) -> None:
    path = tmp_path / "twice.json"
    path.write_text(json.dumps({"pool": [POOL, POOL]}))
    with pytest.raises(ValueError, match="small-pool"):
        load_cases(path)


def test_lifted_case_gives_the_same_answer(conv_case: Case) -> None:
    data = make_data(conv_case, "float32")
    for op in ("conv", "conv_grad_input", "conv_grad_filter"):
        assert error(Expected(data.lifted()).of(op), Expected(data).of(op)) < 1e-15


def test_data_has_no_ties_and_is_the_same_every_time(pool_case: Case) -> None:
    data = make_data(pool_case, "float32")
    assert len(np.unique(data.x)) == data.x.size
    assert np.array_equal(data.x, make_data(pool_case, "float32").x)


def test_bytes_and_flops_by_hand(pool_case: Case, conv_case: Case) -> None:
    x, y = 2 * 7 * 9 * 3, 2 * 4 * 10 * 3
    by_hand = {
        "max_pool": 4 * (x + y),
        "max_pool_with_indices": 4 * (x + y) + 8 * y,
        "max_pool_grad": 4 * (2 * x + y),
        "max_pool_grad_from_indices": 4 * (x + y) + 8 * y,
        "max_pool_grad_from_winners": 4 * (x + y) + y,
        "max_pair": 8 * (x + y),
        "avg_pool": 4 * (x + y),
        "avg_pool_grad": 4 * (x + y),
        "avg_pair": 8 * (x + y),
    }
    assert {op: bytes_moved(Task(op, pool_case, "float32", "channels_last")) for op in POOL_OPS} == by_hand
    # Six outputs of three taps, of which the first and the last lose one to the padding.
    assert flop(Task("conv", conv_case, "float32", "channels_last")) == 2 * 2 * 16 * 2 * 6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_our_ops_pass_their_own_gate(op: str, layout: Layout, pool_case: Case, conv_case: Case) -> None:
    case = conv_case if OPS[op][0] == "conv" else pool_case
    data = make_data(case, "float32")
    with pb.backend("reference"):
        prepared = ours.Ours().prepare(Task(op, case, "float32", layout), data, 1)
        got = prepared.result()
    assert {kernel.backend for kernel in prepared.kernels} == {"reference"}
    assert error(got, Expected(data).of(op)) <= tolerance(case, "float32")


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_torch_passes_the_gate(op: str, layout: Layout, dtype: str, pool_case: Case, conv_case: Case) -> None:
    case = conv_case if OPS[op][0] == "conv" else pool_case
    data = make_data(case, dtype)
    got = TorchPeer().prepare(Task(op, case, dtype, layout), data, 1).result()
    assert error(got, Expected(data).of(op)) <= tolerance(case, dtype)


@pytest.mark.torch
def test_torch_takes_dilated_windows_where_it_has_them() -> None:
    case = parse_case("pool", {"size": [9, 8], "channels": 3, "window": 2, "stride": 1, "padding": 1, "dilation": 3})
    data = make_data(case, "float32")
    for op in ("max_pool", "max_pool_grad_from_indices", "max_pair"):
        got = TorchPeer().prepare(Task(op, case, "float32", "channels_last"), data, 1).result()
        assert error(got, Expected(data).of(op)) <= tolerance(case, "float32")
    with pytest.raises(UnsupportedError, match="no dilated average pooling"):
        TorchPeer().prepare(Task("avg_pool", case, "float32", "channels_last"), data, 1)


@pytest.mark.torch
def test_torch_refuses_padding_that_it_cannot_express() -> None:
    case = parse_case("conv", {"size": [8, 8], "c_in": 2, "c_out": 3, "kernel": 2, "padding": "same"})
    with pytest.raises(UnsupportedError, match="differs at the two ends"):
        TorchPeer().prepare(Task("conv", case, "float32", "channels_last"), make_data(case, "float32"), 1)


@pytest.mark.parametrize("padding", ["same", "same_lower", [[0, 2], [1, 0]]])
def test_ours_takes_padding_that_differs_at_the_ends(padding: Any) -> None:
    case = parse_case("pool", {"size": [8, 7], "channels": 2, "window": [4, 2], "stride": 3, "padding": padding})
    assert case.window.pad_low != case.window.pad_high
    data = make_data(case, "float64")
    with pb.backend("reference"):
        got = ours.Ours().prepare(Task("max_pair", case, "float64", "channels_first"), data, 1).result()
    assert error(got, Expected(data).of("max_pair")) == 0


@pytest.mark.parametrize("op", OPS)
def test_gate_catches_one_wrong_cell(op: str, pool_case: Case, conv_case: Case) -> None:
    case = conv_case if OPS[op][0] == "conv" else pool_case
    want = Expected(make_data(case, "float32")).of(op)
    for part in range(len(want)):
        got = [array.copy() for array in want]
        got[part].flat[1] += 1
        assert error(tuple(got), want) > tolerance(case, "float32")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gate_catches_what_is_not_a_number(bad: float) -> None:
    want = np.ones(5)
    got = want.copy()
    got[2] = bad
    assert error((got,), (want,)) == math.inf


def test_gate_refuses_another_size() -> None:
    with pytest.raises(ValueError, match=r"\(3,\)"):
        error((np.ones(3),), (np.ones(4),))
