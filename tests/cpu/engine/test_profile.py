"""The machine's figures: factors of costs, where they come from, the file they are kept in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pullback.cpu.engine import machine, profile, profile_file
from pullback.cpu.engine.profile import BUILT_IN, FIGURES, Profile
from pullback.cpu.machine_code.levels import level

FACTORS = ("transposing", "transforming", "moving", "copying", "waiting", "calling", "sharing")
KERNELS = ("scatter", "gather", "transpose")
Variable = Callable[[str, str | None], None]


def factors(figures: Profile) -> list[float]:
    return [getattr(figures, name) for name in FACTORS] + [figures.pooling(kernel) for kernel in KERNELS]


@pytest.fixture
def nothing_found(monkeypatch: pytest.MonkeyPatch, variable: Variable, tmp_path: Path) -> Variable:
    """As in a new process with an empty cache folder."""
    variable("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    variable("PULLBACK_PROFILE", None)
    monkeypatch.setattr(profile, "_current", None)
    monkeypatch.setattr(profile, "cpu_kind", lambda: ("a maker", "of nothing known"))
    return variable


def test_built_in_figures_change_no_cost() -> None:
    assert factors(BUILT_IN) == [1.0] * 10


def test_a_factor_is_what_a_kind_of_work_costs_in_multiply_adds() -> None:
    slow = replace(BUILT_IN, transpose=BUILT_IN.transpose / 2)
    assert slow.transposing == 2.0
    assert replace(slow, fma=BUILT_IN.fma / 2).transposing == 1.0  # everything is half as fast
    assert replace(BUILT_IN, memory_all=BUILT_IN.memory_all * 4).waiting == 0.25
    assert replace(BUILT_IN, dispatch=BUILT_IN.dispatch * 2).calling == 2.0
    assert replace(BUILT_IN, dispatch=BUILT_IN.dispatch * 2).sharing == 2.0
    assert replace(BUILT_IN, scatter=BUILT_IN.scatter / 2, fma=1.0).pooling("scatter") == 2.0  # beside phases


def test_noise_is_rounded_away_and_nonsense_bounded() -> None:
    for off in (0.93, 1.07):
        noisy = replace(
            BUILT_IN, **{name: getattr(BUILT_IN, name) * off for name in ("transpose", "transform", "l2", "scatter")}
        )
        assert factors(noisy) == [1.0] * 10
    assert replace(BUILT_IN, transpose=1e-3).transposing == profile.MOST_FACTOR
    assert replace(BUILT_IN, transpose=1e30).transposing == 1 / profile.MOST_FACTOR


def test_kept_figures_are_found_and_builtin_leaves_them_aside(
    nothing_found: Variable, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    assert profile.profile() is BUILT_IN
    assert not profile_file.path().parent.exists()  # looking for it makes no folder
    assert profile_file.write(replace(BUILT_IN, fma=2.0))
    monkeypatch.setattr(profile, "_current", None)
    found = profile.profile()
    assert found.fma == 2.0
    assert str(profile_file.path()) in found.source
    assert os.listdir(profile_file.path().parent) == [profile_file.path().name]
    monkeypatch.setattr(profile, "_current", None)
    nothing_found("PULLBACK_PROFILE", "builtin")
    assert profile.profile() is BUILT_IN
    assert profile_file.forget()
    assert not profile_file.forget()


@pytest.mark.usefixtures("nothing_found")
def test_a_known_kind_of_cpu_has_its_recorded_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    (*kind, made_for), figures = next(iter(profile.RECORDED.items()))
    monkeypatch.setattr(profile, "cpu_kind", lambda: tuple(kind))
    assert profile.profile() is (figures if level().name == made_for else BUILT_IN)


@pytest.mark.usefixtures("nothing_found")
@pytest.mark.parametrize("change", ["{", "[]", '{"format": 0}', "fma", "zero", "text", "no cpu"])
def test_a_damaged_file_is_none(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(profile_file.text_of(BUILT_IN))
    if change == "fma":
        del document["fma"]
    document |= {"zero": {"l2": 0}, "text": {"l2": "fast"}, "no cpu": {"cpu": None}}.get(change, {})
    assert profile_file.write(BUILT_IN)
    profile_file.path().write_text(change if change[0] in "[{" else json.dumps(document))
    assert profile_file.read() is None
    assert profile.profile() is BUILT_IN


@pytest.mark.usefixtures("nothing_found")
def test_other_cpus_levels_and_versions_have_files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {profile_file.path()}
    for module, name, value in (
        (profile_file, "cpu_model", lambda: "another"),
        (profile_file, "__version__", "0"),
        (os, "cpu_count", lambda: 12345),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            paths.add(profile_file.path())
    assert len(paths) == 4


def test_a_file_can_be_named(nothing_found: Variable, tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    path.write_text(profile_file.text_of(replace(BUILT_IN, cores=64)))
    nothing_found("PULLBACK_PROFILE", str(path))
    assert profile.profile().cores == 64
    nothing_found("PULLBACK_PROFILE", str(tmp_path / "missing.json"))
    with pytest.raises(ValueError, match="neither builtin nor measure nor a file"):
        profile._find()


def test_measuring_is_asked_for_said_and_kept(
    nothing_found: Variable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pullback.cpu import calibrate

    monkeypatch.setattr(calibrate, "measure", lambda: replace(profile.profile(), fma=3.0))  # meanwhile the built-in ones count
    nothing_found("PULLBACK_QUIET", None)
    nothing_found("PULLBACK_PROFILE", "measure")
    assert profile.profile().fma == 3.0
    assert capsys.readouterr().err.count("measuring this CPU") == 1
    monkeypatch.setattr(profile, "_current", None)
    assert profile.profile().fma == 3.0
    assert capsys.readouterr().err == ""


def test_all_figures_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from pullback.cpu import calibrate

    monkeypatch.setattr(calibrate, "ROUNDS", 1)
    monkeypatch.setattr(calibrate, "MEMORY_BYTES", 4 << 20)
    labels: list[str] = []
    found = calibrate.measure(labels.append)
    assert len(labels) == calibrate.ROUNDS * len(calibrate.STEPS)
    assert all(getattr(found, name) > 0 for name in FIGURES)
    assert profile_file.parse(profile_file.text_of(found), found.source) == found


def test_names_of_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    ask = machine.cpu_model.__wrapped__
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: First: of all\n\nprocessor : 1\nmodel name : Second\n")
    assert ask() == "First: of all"
    (tmp_path / "cpuinfo").write_text("processor : 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
    assert ask().endswith(" 0x41 0xd40")
    (tmp_path / "cpuinfo").unlink()
    assert ask()
