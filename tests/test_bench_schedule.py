"""`pullback bench schedule`: the simulation on piece times that are known, recording of real calls, table, JSON and picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from pullback.bench import schedule_measure
from pullback.bench.schedule import THREADS, Costs, Job, Recording, call_seconds, job_seconds, make_row, median_recording
from pullback.cli import main
from pullback.cpu.engine import threads

FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0)


def job(*pieces: float, before: float = 0.0, most: int = 1000) -> Job:
    return Job(pieces, before, most)


def cut(pieces: int) -> dict[int, Recording]:
    """The same pieces of a second for any number of threads."""
    return dict.fromkeys(THREADS, Recording((job(*[1.0] * pieces),), 0.0))


def test_pieces_go_to_whoever_is_free_in_ascending_order() -> None:
    even = job(*[1.0] * 12)
    assert [job_seconds(even, FREE, count) for count in (1, 2, 5, 12, 64)] == [12.0, 6.0, 3.0, 1.0, 1.0]
    late = job(1.0, 1.0, 1.0, 4.0)  # the longest is claimed last
    assert job_seconds(late, FREE, 2) == 5.0
    assert job_seconds(job(4.0, 1.0, 1.0, 1.0), FREE, 2) == 4.0


def test_a_job_that_pays_for_few_threads_takes_no_more() -> None:
    assert job_seconds(job(*[1.0] * 12, most=3), FREE, 64) == 4.0
    assert job_seconds(job(*[1.0] * 12, most=1), Costs(0.5, 9.0, 9.0, 9.0, 9.0), 64) == 12.5


def test_costs_of_jobs() -> None:
    costs = Costs(call=1.0, join=2.0, start=10.0, wake=100.0, claim=0.0)
    assert job_seconds(job(4.0, 4.0), costs, 2) == 1 + 8 + 2, "the caller has done both before the worker is there"
    assert job_seconds(job(*[8.0] * 4), costs, 2) == 1 + 24 + 2
    assert job_seconds(job(*[8.0] * 4, before=1.0), costs, 2) == 1 + 32 + 2, "it slept"
    # A claim takes a second in which nobody else claims of the same range: all four claim their own two at once.
    assert job_seconds(job(*[0.0] * 8), Costs(0.0, 0.0, 0.0, 0.0, claim=1.0), 4) == 2.0
    # Who comes late finds its range done by the others.
    assert job_seconds(job(*[1.0] * 4), Costs(0.0, 0.0, start=4.0, wake=0.0, claim=0.0), 2) == 4.0
    # Unequal ranges: who is through with its own helps with the other.
    assert job_seconds(job(9.0, 3.0, 1.0, 1.0), FREE, 2) == 9.0


def test_a_call_is_its_jobs_and_what_lies_between() -> None:
    recording = Recording((job(2.0, 2.0, before=1.0), job(3.0, before=0.5)), after=0.25)
    assert call_seconds(recording, FREE, 1) == 1 + 4 + 0.5 + 3 + 0.25
    assert call_seconds(recording, FREE, 2) == 1 + 2 + 0.5 + 3 + 0.25


def test_medians_are_taken_piece_by_piece() -> None:
    runs = [
        Recording((job(*times, before=gap),), gap) for times, gap in (((1.0, 9.0), 3.0), ((2.0, 1.0), 1.0), ((8.0, 2.0), 2.0))
    ]
    assert median_recording(runs) == Recording((job(2.0, 2.0, before=2.0),), 2.0)


def test_faults_of_a_row() -> None:
    good = make_row("conv", "a", "channels_last", (10**9, 8), cut(64), FREE, {1: 64.0, 2: 40.0})
    assert good.faults() == []
    assert (good.speedup(16), good.efficiency(32)) == (16.0, 1.0)
    assert good.error(2) == pytest.approx(-0.2)
    few = make_row("conv", "a", "channels_last", (10**9, 8), cut(8), FREE, {})
    assert few.faults() == ["50% at 16"]
    small = make_row("conv", "a", "channels_last", (10**6, 8), cut(8), FREE, {})
    assert small.faults() == []
    assert make_row("conv", "a", "channels_last", (0, 8), cut(1), FREE, {}, 2.0).predicted[64] == 4.0


def test_recording_a_call_keeps_its_result_and_counts_its_pieces() -> None:
    x = np.random.default_rng(0).standard_normal((4, 40, 40, 32)).astype(np.float32)
    before, results = threads.run, []
    with pb.backend("cpu"):
        expected = pb.max_pool(x, 3)
        recording = schedule_measure.record(lambda: results.append(pb.max_pool(x, 3)))
    assert threads.run is before
    np.testing.assert_array_equal(results[0], expected)
    (only,) = recording.jobs
    assert len(only.pieces) >= only.most > 1
    assert min(only.pieces) > 0
    assert recording.after > 0 < only.before


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    pictures, found = tmp_path / "schedule.svg", tmp_path / "schedule.json"
    chosen = ["--op", "avg_pool_grad", "--op", "batch_norm", "--case", "tiny-rgb", "--case", "256-14-n16"]
    assert main(["bench", "schedule", *chosen, "--json", str(found), "--plot", str(pictures)]) == 0
    told = capsys.readouterr().out
    assert "avg_pool_grad tiny-rgb last" in told
    assert "batch_norm 256-14-n16 first" in told
    rows = json.loads(found.read_text())["rows"]
    assert [row["op"] for row in rows] == ["avg_pool_grad"] * 2 + ["batch_norm"] * 2
    assert all(row["speedup"]["1"] == 1.0 and row["predicted"]["64"] > 0 for row in rows)
    assert "avg_pool_grad" in pictures.read_text()


@pytest.mark.parametrize(
    ("options", "why"), [(["--bandwidth", "-1"], "above 0"), (["--op", "relu"], "relu"), (["--case", "x"], "'x'")]
)
def test_bad_requests(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "schedule", *options]) == 2
    assert why in capsys.readouterr().err
