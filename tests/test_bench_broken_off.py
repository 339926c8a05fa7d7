"""What was measured is not lost: a reader that goes away, Ctrl-C in the middle of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import CONV, POOL

from pullback import bench
from pullback.bench import limits, results, scaling
from pullback.cli import main

QUICK = ["--backend", "reference", "--peer", "none", "--seconds", "0", "--threads", "1"]


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own limits take a while to measure."""
    monkeypatch.setattr(limits, "_roofs", lambda: None)


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"pool": [POOL], "conv": [CONV]}))
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are others there")
def test_json_and_picture_are_written_though_nobody_reads_the_table(tmp_path: Path, case_file: Path) -> None:
    saved = tmp_path / "run.json"
    reading, writing = os.pipe()
    os.close(reading)
    command = [
        sys.executable,
        "-m",
        "pullback",
        "bench",
        "--cases",
        str(case_file),
        "--op",
        "conv",
        *QUICK,
        "--json",
        str(saved),
    ]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(writing)
    assert ended.returncode == 141
    assert "Traceback" not in ended.stderr
    assert len(results.load(saved).rows) == 2


def interrupted_after(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, calls: int) -> None:
    """Ctrl-C arrives as a function is called once more than so many times."""
    real, left = getattr(module, name), [calls]

    def interrupted(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, name, interrupted)


def test_ctrl_c_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted_after(monkeypatch, bench, "take_turns", 3)
    saved = tmp_path / "run.json"
    assert main(["bench", "--cases", str(case_file), *QUICK, "--json", str(saved)]) == 130
    assert json.loads(saved.read_text())["partial"] is True
    found = results.load(saved)
    assert (found.partial, len(found.rows)) == (True, 3)
    told = capsys.readouterr()
    assert f"{saved} has what was measured so far" in told.err
    assert "PARTIAL   the run was broken off after 3 rows" in told.out


def test_a_whole_run_is_not_partial(tmp_path: Path, case_file: Path) -> None:
    saved = tmp_path / "run.json"
    assert main(["bench", "--cases", str(case_file), "--op", "conv", *QUICK, "--json", str(saved)]) == 0
    assert results.load(saved).partial is False


def test_ctrl_c_keeps_the_points_of_a_scaling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scaling, "STEPS", {"batch": (1, 2)})
    monkeypatch.setattr(scaling, "BASE", {"batch": 1, "channels": 2, "size": 5})
    interrupted_after(monkeypatch, scaling, "take_turns", 1)
    saved = tmp_path / "scaling.json"
    arguments = ["--op", "conv", "--op", "conv_grad_input", "--seconds", "0", "--backend", "reference"]
    assert main(["bench", "scaling", *arguments, "--json", str(saved)]) == 130
    found = scaling.load(saved)
    assert found is not None
    assert (found.partial, [(p.op, p.value) for p in found.points]) == (True, [("conv", 1)])


def test_a_place_that_cannot_be_written_is_told_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--json", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
