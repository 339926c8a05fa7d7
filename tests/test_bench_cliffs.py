"""`pullback bench cliffs`: shapes from a seed, the arithmetic of the report on made-up times, and the command."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_fakes import FakeClock, FakePeer

from pullback.bench import cliff_shapes, cliffs, cliffs_table, ours
from pullback.bench.cases import Task, parse_case
from pullback.bench.cliff_shapes import CLIFF_OPS, GROUPS, Shape, draw, estimate
from pullback.bench.cliffs import Cliffs, Row, Search
from pullback.bench.data import quick_data
from pullback.cli import bench_shape_command, main
from pullback.cli.bench_shapes import case_of

SHAPES = [draw(3, number) for number in range(400)]


@pytest.fixture
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes of some hundred cells, so that a run takes no time."""

    def small(seed: int, number: int) -> Shape:
        rng = cliff_shapes.Random(number)
        kind, op, group = (("conv", "conv", "dense"), ("pool", "avg_pool", "pooling"))[number % 2]
        entry: Any = {"size": [rng.randint(5, 8)], "stride": 2}
        entry |= {"channels": 3, "window": 3} if kind == "pool" else {"c_in": 2, "c_out": 3, "kernel": 3}
        case, near = parse_case(kind, entry), parse_case(kind, {**entry, "stride": 1})
        return Shape(seed, number, group, op, case, near, "stride 2 -> 1")

    monkeypatch.setattr(cliffs, "draw", small)


def test_a_shape_is_its_seed_and_number() -> None:
    assert [draw(3, number) for number in range(20)] == SHAPES[:20]
    assert draw(4, 0) != draw(3, 0)
    assert draw(2, 5).case.name == "11x76x76x9-1x1-54-d3-g3"  # the same on every machine


def test_shapes_cover_the_parameters() -> None:
    cases = [shape.case for shape in SHAPES]
    assert {shape.group for shape in SHAPES} == set(GROUPS)
    assert {shape.op for shape in SHAPES} == set(CLIFF_OPS)
    assert {case.window.rank for case in cases} == {1, 2, 3}
    assert {s for case in cases for s in case.window.stride} == {1, 2, 3, 4}
    assert {k for case in cases for k in case.window.kernel} == set(range(1, 8))
    assert {d for case in cases for d in case.window.dilation} == {1, 2, 3}
    assert min(case.batch for case in cases) == 1
    assert 32 < max(case.batch for case in cases) <= 64
    assert any(case.channels_in % 16 for case in cases)
    assert any(len(set(case.window.kernel)) > 1 for case in cases)
    assert any(case.window.pad_low[0] for case in cases)
    assert any(case.window.pad_low[0] == 0 for case in cases)


def test_work_is_bounded_and_kinds_are_what_they_say() -> None:
    for shape in SHAPES:
        case = shape.case
        assert 2e-4 <= estimate(Task(shape.op, case, "float32", "channels_last")) <= 1e-2
        assert case.has(shape.op)
        expected = {"dense": case.groups == 1, "pooling": case.kind == "pool"}
        expected |= {"depthwise": case.groups == case.channels_in, "grouped": 1 < case.groups < case.channels_in}
        assert expected[shape.group]
        if shape.op.startswith("avg"):
            assert set(case.window.dilation) == {1}  # PyTorch has no other


def test_a_neighbour_differs_in_one_parameter() -> None:
    for shape in SHAPES:
        what, case, near = shape.step.split()[0], shape.case, shape.neighbour
        changed = {
            "stride": case.window.stride != near.window.stride,
            "width": case.window.input_size != near.window.input_size,
            "channels": (case.channels_in, case.channels_out) != (near.channels_in, near.channels_out),
        }
        name = {"c_in": "channels", "c_out": "channels"}.get(what, what)
        assert [key for key, differs in changed.items() if differs] == [name]
        assert case.window.kernel == near.window.kernel
        if what == "width":
            assert near.window.input_size[-1] % 16 == 0


def row(ratio: float, group: str = "dense", op: str = "conv", other: float = 1.0, near: float = 1.0, **changed: Any) -> Row:
    times = {"ours": [2.0, 1.0, 1.0], "peer": [ratio], "other layout": [1 / other], "neighbour": [1 / near]}
    given = {"work": 1.0, "neighbour_work": 1.0, **changed}
    return Row(
        "1:2", group, op, "8x4-3", "channels_last", "direct", f"again {ratio}", "stride 3 -> 2", "near", samples=times, **given
    )


def made(*rows: Row) -> Cliffs:
    settings = {"seed": 1, "threads": 2, "dtype": "float32", "backend": "cpu", "peer": "torch 2"}
    return Cliffs({"cpu": "abacus", "cores": 2, "load": 0, "date": "2000-01-01"}, settings, list(rows))


def test_report_of_made_up_times(capsys: pytest.CaptureFixture[str]) -> None:
    found = made(
        row(4.0), row(0.25), row(0.89, "pooling", "avg_pool"), row(0.9, "pooling", "avg_pool"), row(1.0, op="conv_grad_input")
    )
    parts = found.summaries()
    assert list(parts) == ["all", "dense", "pooling", "avg_pool", "conv", "conv_grad_input"]
    assert (parts["all"].rows, parts["all"].losing, parts["all"].worst) == (5, 2 / 5, 0.25)
    assert parts["conv"].mean == pytest.approx(1.0)
    assert parts["avg_pool"].losing == 1 / 2
    assert [r.ratio for r in found.losing()] == [0.25, 0.89]
    found.rows[1].wrong, found.rows[1].error = True, 0.5
    cliffs_table.print_cliffs(found, most=1)
    out = capsys.readouterr().out
    assert "seed 1" in out
    assert "2 rows under 0.9, the worst 1" in out
    assert "again 0.25" in out
    assert "again 0.89" not in out
    assert "WRONG" in out


def test_cliffs_of_our_own_are_by_operation(capsys: pytest.CaptureFixture[str]) -> None:
    level, half_the_work = row(1.0, near=2.0, neighbour_work=0.5), row(1.0, near=2.0, work=0.5)
    found = made(level, half_the_work, row(1.0, other=1.6), row(1.0, other=1.4))
    assert (level.neighbour_cost, half_the_work.neighbour_cost) == (1.0, 4.0)
    assert [(cost, than) for cost, than, _ in found.cliffs()] == [
        (4.0, "stride 3 -> 2"),
        (pytest.approx(1.6), "the other layout"),
    ]
    cliffs_table.print_cliffs(found, most=5)
    assert "slower than our own: 2 over 1.5" in capsys.readouterr().out


def test_commands_make_the_same_case_again() -> None:
    parser = argparse.ArgumentParser()
    bench_shape_command.add(parser.add_subparsers())
    for number, shape in enumerate(SHAPES[:60]):
        task = Task(shape.op, shape.case, "float32", ("channels_last", "channels_first")[number % 2])
        options = parser.parse_args(shlex.split(cliffs.command(task))[2:])
        assert case_of(shape.case.kind, options) == shape.case
        assert (options.op, options.layout) == ([shape.op], [task.layout])


def test_quick_data_has_no_two_equal_cells() -> None:
    case = parse_case("pool", {"size": [300, 200], "channels": 17, "window": 3})
    data = quick_data(case)
    assert np.unique(data.x).size == data.x.size == 300 * 200 * 17
    assert (data.x.shape, data.dy.shape) == (case.input_shape, case.output_shape)
    assert -1 <= data.x.min() < -0.99
    assert 0.99 < data.x.max() < 1
    assert abs(np.corrcoef(data.x[..., 0].ravel(), data.x[..., 1].ravel())[0, 1]) < 0.02


@pytest.mark.usefixtures("small_shapes")
def test_rows_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    labels: list[str] = []
    monkeypatch.setattr(ours, "Ours", lambda: FakePeer(clock, 0.5))
    search = Search(5, rows=3, threads=1, peer=FakePeer(clock, 1.0))
    found = cliffs.run(search, labels.append, clock, pause=lambda seconds: None)
    assert [(r.shape, r.layout) for r in found.rows] == [(f"5:{n}", layout) for n in (0, 1) for layout in cliffs.LAYOUTS]
    assert len(labels) == search.size() == 4
    assert not found.wrong
    assert {(r.ratio, r.layout_cost, len(r.samples["ours"])) for r in found.rows} == {(2.0, 1.0, 5)}
    losing = cliffs.run(Search(5, numbers=[1], peer=FakePeer(clock, 0.25)), clock=clock, pause=lambda seconds: None)
    assert {(r.ratio, len(r.samples["ours"])) for r in losing.rows} == {(0.5, 10)}  # looked at twice
    spoiled = Search(5, numbers=[1], threads=1, peer=FakePeer(clock, 1.0, spoil=lambda array: array + 1))
    assert len(cliffs.run(spoiled, clock=clock, pause=lambda seconds: None).wrong) == 2


@pytest.mark.usefixtures("small_shapes")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cliffs.json"
    command = ["bench", "cliffs", "--no-peer", "--threads", "1"]
    assert main([*command, "--seed", "9", "--first", "2", "--rows", "4", "--kind", "pooling", "--json", str(path)]) == 0
    assert "seed 9" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert [r["shape"] for r in written["rows"]] == ["9:3", "9:3", "9:5", "9:5"]
    assert all(r["ratio"] is None and r["layout_cost"] > 0 and r["kernel"] for r in written["rows"])
    assert main([*command, "--row", "9:4"]) == 0
    assert main([*command, "--seed", "9", "--seconds", "0.01"]) == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--row", "7"], "SEED:NUMBER"),
        (["--row", "7:1", "--row", "8:1"], "one seed"),
        (["--op", "lp_pool"], "there are"),
        (["--kind", "pooling", "--op", "conv"], "no shape"),
        (["--rows", "0"], "--rows"),
    ],
)
def test_bad_requests(options: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cliffs", "--no-peer", *options]) == 2
    assert word in capsys.readouterr().err
