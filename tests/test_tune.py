"""`pullback tune` and what `pullback info` says of it, with figures that nobody measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pullback.cli import main, tune_command
from pullback.cpu import calibrate
from pullback.cpu.engine import profile, profile_file
from pullback.cpu.engine.profile import BUILT_IN, FIGURES

MADE_UP = replace(BUILT_IN, source="made up", cpu="abacus", fma=2.5e10, memory_all=1e10)
Variable = Callable[[str, str | None], None]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, variable: Variable, tmp_path: Path) -> None:
    monkeypatch.setattr(calibrate, "measure", lambda tick: MADE_UP)
    variable("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    variable("PULLBACK_PROFILE", None)


def test_figures_are_shown_kept_and_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--json", str(tmp_path / "here.json")]) == 0
    out = capsys.readouterr().out
    assert "25 GFLOP/s" in out
    assert "0.21 x" in out
    assert str(profile_file.path()) in out
    kept = profile_file.read()
    assert kept is not None
    assert kept.fma == MADE_UP.fma
    assert profile_file.read_named(str(tmp_path / "here.json")) == replace(kept, source=f"from {tmp_path / 'here.json'}")
    assert main(["info"]) == 0
    assert "25 GFLOP/s a core" in capsys.readouterr().out
    assert main(["tune", "--forget"]) == 0
    assert profile_file.read() is None
    assert main(["tune", "--forget"]) == 0
    assert "there was nothing" in capsys.readouterr().out
    assert main(["info"]) == 0
    assert "`pullback tune` measures" in capsys.readouterr().out


def test_a_dry_run_keeps_nothing() -> None:
    assert main(["tune", "--dry-run"]) == 0
    assert profile_file.read() is None


def test_what_cannot_be_kept_is_said(variable: Variable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    variable("PULLBACK_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert main(["tune"]) == 1
    assert "nothing can be kept" in capsys.readouterr().err
    assert main(["tune", "--json", str(tmp_path / "none" / "here.json")]) == 2


def test_a_variable_that_names_no_figures_is_one_sentence(variable: Variable, capsys: pytest.CaptureFixture[str]) -> None:
    variable("PULLBACK_PROFILE", "fastest")
    assert main(["info"]) == 2
    assert "neither builtin nor measure nor a file" in capsys.readouterr().err


def test_every_figure_has_a_row_and_info_measures_nothing(variable: Variable, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuple(tune_command.ROWS) == FIGURES
    assert all(hasattr(BUILT_IN, name) for name in tune_command.FACTORS)
    monkeypatch.setattr(profile, "_current", None)
    monkeypatch.delattr(calibrate, "measure")
    variable("PULLBACK_PROFILE", "measure")
    assert main(["info"]) == 0
