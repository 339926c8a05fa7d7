"""The benchmark's comparisons across rows and its errors: the best peer in either layout, both our layouts, plain sums' bound."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bench_fakes import made, row

from pullback.bench import accuracy, accuracy_table, ours, results, table
from pullback.bench.cases import Task, parse_case
from pullback.bench.data import Expected, make_data
from pullback.bench.results import Results

CASE = parse_case(
    "conv",
    {
        "name": "small", "rank": 2, "batch": 2, "c_in": 6, "size": [5, 7], "c_out": 4, "kernel": [3, 2], "stride": 1,
        "padding": 1, "groups": 2, "dilation": 1,
    },
)  # fmt: skip


@pytest.fixture
def found() -> Results:
    return made(
        row("channels_last", 1.0, torch=2.0, jax=3.0),
        row("channels_first", 1.25, torch=4.0, jax=1.0),
        row("channels_last", 1.0, case="b", torch=0.5),
        row("channels_last", 1.0, op="conv_grad_input", torch=8.0),
    )


def test_the_best_peer_is_taken_from_either_layout(found: Results) -> None:
    last, first, lost, other = found.rows
    assert found.rival(last) == results.Rival("jax", "channels_first", 1.0)
    assert found.rival(first) == results.Rival("jax", "channels_first", 0.8)
    assert found.rival(lost) == results.Rival("torch", "channels_last", 0.5)
    assert found.rival(other) == results.Rival("torch", "channels_last", 8.0)
    assert found.rival(row("channels_last", 1.0, case="alone")) is None
    assert table.rival_text(found, last) == "1.00 jax first"
    assert table.rival_text(found, first) == "0.80! jax"


def test_summary_counts_losses_to_the_best_of_all(found: Results) -> None:
    by_line = {tuple(line[:2]): line[2:] for line in table.summary_rows(found, "median")}
    # torch, jax, the best of all, cases lost to the best of the layout, cases lost to the best of all, busy
    assert by_line["conv", "last"] == ["1.00", "3.00", "0.71", "1 of 2", "1 of 2", "0 of 2"]
    assert by_line["conv", "first"] == ["3.20", "0.80", "0.80", "1 of 1", "1 of 1", "0 of 1"]
    assert table.losses(found) == [
        "lost      conv, channels_first: a 0.80! jax",
        "lost      conv, channels_last: b 0.50! torch",
    ]


def test_layouts_are_compared_with_each_other(found: Results, capsys: pytest.CaptureFixture[str]) -> None:
    last, first, *_ = found.rows
    assert found.layout_speed(first) == pytest.approx(0.8)
    assert found.layout_speed(last) is None
    table.print_results(found)
    out = capsys.readouterr().out
    assert "channels_first speed" in out
    assert "0.80!" in out
    assert "4 rows, 4 compared, 2 lost to the best peer of their layout, 2 to the best in either" in out


def test_three_peers_fit_into_a_line_with_their_notes(capsys: pytest.CaptureFixture[str]) -> None:
    found = made(
        row("channels_last", 1.0, case="a-name-of-16-ch.", torch=2.0, jax=13.0, tensorflow=0.5),
        row("channels_first", 1.0, case="a-name-of-16-ch.", torch=2.0),
        row("channels_last", 1.0, case="other", torch=2.0),
    )
    found.versions["tensorflow"] = "4"
    for of in found.rows:
        of.writes_seconds = 0.5
    table.print_results(found)
    out = capsys.readouterr().out
    assert "tensorflow 4 (tf)" in out
    assert "13.00" in out
    assert "LOSES to" in out
    assert "\N{HORIZONTAL ELLIPSIS}" not in out  # which stands where a cell was cut


def test_comparisons_are_in_the_json_and_survive_it(found: Results, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    results.save(found, path)
    written = json.loads(path.read_text())["rows"]
    assert written[1]["best_peer"] == {"peer": "jax", "layout": "channels_first", "ratio": 0.8, "busy": False}
    assert written[1]["layout_speed"] == pytest.approx(0.8)
    assert written[0]["entries"][ours.NAME]["kernel"] == "cpu/direct"
    assert results.load(path) == found


@pytest.mark.parametrize("op", ["conv", "conv_grad_input", "conv_grad_filter"])
def test_cell_errors_are_in_units_of_the_bound(op: str) -> None:
    expected, task = Expected(make_data(CASE, "float32")), Task(op, CASE, "float32", "channels_last")
    [want], [scale] = expected.of(op), expected.absolute.of(op)
    n = {"conv": 3 * 2 * 3, "conv_grad_input": 3 * 2 * 2, "conv_grad_filter": 2 * 5 * 8}[op]
    assert accuracy.terms(task) == n
    assert accuracy.cell_error(task, (want,), expected) == 0
    off = want.copy()
    off.flat[3] += 2.5 * n * 2.0**-23 * scale.flat[3]
    assert accuracy.cell_error(task, (off,), expected) == pytest.approx(2.5, rel=1e-6)
    off.flat[3] = np.nan
    assert accuracy.cell_error(task, (off,), expected) == np.inf
    got = ours.Ours().prepare(task, make_data(CASE, "float32"), 1).result()
    assert 0 < (accuracy.cell_error(task, got, expected) or 0) <= 1


def test_a_half_precision_result_may_be_rounded_once_more() -> None:
    expected, task = Expected(make_data(CASE, "float16")), Task("conv", CASE, "float16", "channels_last")
    rounded = tuple(a.astype(np.float16) for a in expected.of("conv"))
    assert (accuracy.cell_error(task, rounded, expected) or 0) <= 1


def test_marks_where_a_bar_is_exceeded(capsys: pytest.CaptureFixture[str]) -> None:
    found = made(row("channels_last", 1.0, torch=2.0))
    mine, theirs = found.rows[0].ours, found.rows[0].entries["torch"]
    assert accuracy_table.accuracy_rows(found, found.rows) == [
        ["a", "last", "1.0e-07", "5.0e-01", "1.0e-07", "-", "cpu/direct"]
    ]
    mine.cell_error, theirs.error = 1.5, 1e-3
    assert accuracy_table.cells_text(mine) == "1.5e+00"  # it has promised nothing
    assert not found.wrong
    mine.plain_sums = True
    assert found.wrong == found.rows
    assert accuracy_table.accuracy_rows(found, found.rows)[0][3:5] == ["1.5e+00!", "1.0e-03!"]
    table.print_results(found)
    out = capsys.readouterr().out
    assert "beyond its bar" in out
    assert "FAILED conv a channels_last float32: error 1.0e-07, 1.5e+00 of a plain sum's bound in a cell" in out


def test_pooling_has_no_cell_error() -> None:
    pool = parse_case(
        "pool",
        {"name": "p", "rank": 1, "batch": 1, "channels": 2, "size": [4], "window": [2], "stride": 2, "padding": 0},
    )
    expected = Expected(make_data(pool, "float32"))
    assert accuracy.cell_error(Task("avg_pool", pool, "float32", "channels_last"), expected.of("avg_pool"), expected) is None
