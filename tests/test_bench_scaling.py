"""`pullback bench scaling` on a fake clock: time per unit of work, speed-up by threads, tables, JSON, picture and command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import FakeClock

from pullback.bench import limits, ours, scaling, scaling_plot, scaling_table
from pullback.bench.cases import Task, bytes_moved, flop
from pullback.bench.data import Data
from pullback.bench.peers.base import Prepared
from pullback.cli import main
from pullback.settings import get_num_threads

STEPS = {"batch": (1, 4), "size": (5, 9)}
BASE = {"batch": 2, "channels": 3, "size": 5}


class Worker:
    """A stand-in for our ops: some seconds for every call, and one for each unit of work that threads share."""

    def __init__(self, clock: FakeClock, overhead: float) -> None:
        self.clock, self.overhead = clock, overhead

    def prepare(self, task: Task, data: Data, threads: int) -> Prepared:
        work = flop(task) or bytes_moved(task)
        return Prepared(lambda: self.clock.step(self.overhead + work / get_num_threads()), lambda: ())


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own limits take a while to measure."""
    monkeypatch.setattr(limits, "_roofs", lambda: None)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run_fake(overhead: float = 0.0, **choice: Any) -> scaling.Scaling:
        clock = FakeClock()
        monkeypatch.setattr(ours, "Ours", lambda: Worker(clock, overhead))
        stretch = scaling.Stretch(steps=STEPS, base=BASE, seconds=0.0, **choice)
        return scaling.run(stretch, clock=clock, pause=lambda seconds: None)

    return run_fake


def test_every_op_at_every_step(run: Any) -> None:
    found = run()
    expected = [(op, axis, value) for axis, values in STEPS.items() for value in values for op in scaling.SCALING_OPS]
    assert [(p.op, p.axis, p.value) for p in found.points] == expected
    assert scaling.Stretch(steps=STEPS).size() == len(expected)
    by_key = {(p.op, p.axis, p.value): p.work for p in found.points}
    assert by_key["conv", "batch", 4] == 4 * by_key["conv", "batch", 1]
    # Two images of 5 by 5, each axis with 5 * 3 taps less two in the padding, three channels in and out.
    assert by_key["conv", "size", 5] == 2 * 2 * 13 * 13 * 3 * 3


def test_perfect_scaling(run: Any) -> None:
    found = run()
    assert [found.cost(point) for point in found.points] == pytest.approx([1.0] * len(found.points))
    speedups = {(p.axis, p.value): found.speedup(p) for p in found.points}
    assert speedups == {("batch", 1): None, ("batch", 4): 2.0, ("size", 5): None, ("size", 9): 2.0}
    assert found.mean_speedup() == pytest.approx(2.0)
    assert not found.is_slow(1.85)
    assert found.is_slow(1.84)


def test_overhead_shows_in_the_small_steps_and_in_the_speedup(run: Any) -> None:
    found = run(overhead=1000.0, ops=["conv"])
    small, large = found.series()["conv", "batch"]
    t_small, t_large = 1000 + small.work / 2, 1000 + large.work / 2
    assert found.cost(small) == pytest.approx(4 * t_small / t_large)
    assert found.cost(large) == 1.0
    assert found.speedup(large) == pytest.approx((1000 + large.work) / t_large)


def test_with_one_thread_there_is_no_speedup(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(threads=1)
    assert found.mean_speedup() is None
    scaling_table.print_scaling(found)
    assert "speed-up" not in capsys.readouterr().out


def test_tables(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(overhead=1e9, ops=["conv", "max_pool_grad"])
    [small, large] = [line for line in scaling_table.step_rows(found, "conv") if line[0] == "batch"]
    assert (small[1], small[4], large[1], large[4]) == ("1", "4.00", "4", "1.00")
    lines = scaling_table.speedup_rows(found)
    assert [line[:2] for line in lines] == [[op, step] for step in ("batch 4", "size 9") for op in ("conv", "max_pool_grad")]
    assert {line[-1] for line in lines} == {"1.00!"}
    found.machine["cores"] = 1
    scaling_table.print_scaling(found)
    out = capsys.readouterr().out
    assert "GFLOP/s" in out
    assert "GB/s" in out
    assert "! under 1.85" in out
    assert "only 1 of the cores" in out


def test_limits_are_rates_in_table_json_and_picture(monkeypatch: pytest.MonkeyPatch, run: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(scaling, "fma_seconds", lambda task, threads: flop(task) / 8 / threads)
    found = run(ops=["conv", "max_pool_grad"])
    conv, pool = found.points[:2]
    assert (conv.limit_rate, pool.limit_rate) == (pytest.approx(16e-9), None)
    assert conv.rate(2) == pytest.approx(2e-9)  # a unit of work takes this worker half a second with two threads
    assert (scaling_table.limit_text(conv, 2), scaling_table.limit_text(pool, 2)) == ("12%", "-")
    conv.samples[2] = [1.0, 2.0, 3.0]
    assert scaling_table.limit_text(conv, 2).endswith(" busy")
    scaling.save(found, tmp_path / "scaling.json")
    written = json.loads((tmp_path / "scaling.json").read_text())["points"][0]
    assert (written["limit_rate"], written["rate"], written["busy"]) == (conv.limit_rate, conv.rate(2), True)
    scaling_plot.draw(found, tmp_path / "scaling.svg", "dark")
    assert "busy: not to be trusted" in (tmp_path / "scaling.svg").read_text()


def test_json_and_picture(run: Any, tmp_path: Path) -> None:
    found = run(overhead=10.0)
    saved, picture = tmp_path / "scaling.json", tmp_path / "scaling.svg"
    scaling.save(found, saved)
    assert scaling.load(saved) == found
    written = json.loads(saved.read_text())["points"][4]
    assert (written["cost"], written["speedup"]) == (found.cost(found.points[4]), found.speedup(found.points[4]))
    scaling_plot.draw(found, picture)
    drawn = picture.read_text()
    for text in (*scaling.SCALING_OPS, ">batch<", ">size<", "2 images of 5 x 5 with 3 channels", "FMA roof", "plain copy"):
        assert text in drawn
    again = tmp_path / "again.png"
    assert main(["bench", "plot", str(saved), str(again)]) == 0
    assert again.read_bytes().startswith(b"\x89PNG")


def test_an_op_that_breaks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("out of beads")

    monkeypatch.setattr(Worker, "prepare", lambda *_: Prepared(broken, lambda: ()))
    monkeypatch.setattr(ours, "Ours", lambda: Worker(FakeClock(), 0.0))
    with pytest.raises(RuntimeError, match=r"conv 1x5x5x3 channels_last float32: out of beads"):
        scaling.run(scaling.Stretch(steps=STEPS, base=BASE))


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scaling, "STEPS", STEPS)
    monkeypatch.setattr(scaling, "BASE", BASE)
    saved, picture = tmp_path / "scaling.json", tmp_path / "scaling.png"
    narrow = ["--op", "conv_grad_filter", "--layout", "channels_first", "--dtype", "float64", "--seconds", "0"]
    files = ["--json", str(saved), "--plot", str(picture)]
    assert main(["bench", "scaling", *narrow, "--backend", "reference", *files]) == 0
    found = scaling.load(saved)
    assert found is not None
    assert [(p.op, p.axis, p.value, sorted(p.samples)) for p in found.points] == [
        ("conv_grad_filter", "batch", 1, [2]), ("conv_grad_filter", "batch", 4, [1, 2]),
        ("conv_grad_filter", "size", 5, [2]), ("conv_grad_filter", "size", 9, [1, 2]),
    ]  # fmt: skip
    assert found.settings["layout"] == "channels_first"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "conv_grad_filter" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "avg_pool"], "--op 'avg_pool': there are conv,"),
        (["--threads", "0"], "--threads 0"),
        (["--backend", "abacus"], "--backend 'abacus'"),
        (["--plot", "scaling.pdf"], "scaling.pdf"),
        (["--json", "no-such-folder/scaling.json"], "no-such-folder"),
    ],
)
def test_bad_requests(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scaling", *arguments]) == 2
    assert message in capsys.readouterr().err
