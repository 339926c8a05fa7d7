"""Cache folders of other versions: shown by `pullback info`, removed by `pullback warmup --prune`, and nothing else is."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from pullback.cli import main
from pullback.cpu.machine_code import cache_folders, disk_cache, find, variants

OLD, RECENT = "0" * 19 + "a", "0" * 19 + "b"


def make_folder(path: Path, days: float, kernels: int = 2) -> Path:
    path.mkdir(parents=True)
    then = time.time() - days * cache_folders.DAY
    for number in range(kernels):
        file = path / f"kernel-{number}.o"
        file.write_bytes(b"x" * 1000)
        os.utime(file, (then, then))
    os.utime(path, (then, then))
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the folder in use, an old one and a recent one of other versions, and what is not ours."""
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path))
    make_folder(disk_cache.cache_folder(), 400)
    make_folder(tmp_path / OLD, 100)
    make_folder(tmp_path / RECENT, 3)
    make_folder(tmp_path / "photographs", 400)
    (tmp_path / ("0" * 20)).write_text("a file of such a name")
    (tmp_path / ("1" * 20)).symlink_to(tmp_path / "photographs")
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_old_folders_of_other_versions_are_removed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(cache)
    assert main(["warmup", "--prune"]) == 0
    assert "1 folders of other versions and machines (2.0 KiB) removed" in capsys.readouterr().out
    assert names(cache) == before - {OLD}
    assert main(["warmup", "--prune", "0"]) == 0
    assert names(cache) == before - {OLD, RECENT}
    assert len(list(disk_cache.cache_folder().iterdir())) == 2
    assert list(cache_folders.prune(0)) == []


def test_a_file_read_lately_keeps_its_folder(cache: Path) -> None:
    file = cache / OLD / "kernel-1.o"
    os.utime(file, (time.time(), file.stat().st_mtime))
    assert list(cache_folders.prune()) == []


def test_a_removal_that_was_broken_off_is_ended(cache: Path) -> None:
    (cache / RECENT).rename(cache / (RECENT + cache_folders.GONE))
    assert {folder.path.name for folder in cache_folders.prune()} == {OLD, RECENT + cache_folders.GONE}


def test_a_folder_that_another_process_removes_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = cache_folders.cache_folders()
    shutil.rmtree(cache / OLD)
    monkeypatch.setattr(cache_folders, "cache_folders", lambda: seen)
    assert list(cache_folders.prune()) == []


def test_kernels_are_compiled_again_into_a_removed_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(disk_cache.cache_folder())
    monkeypatch.setattr(find, "_loaded", {})
    assert find.code(variants.Variant("engine.threads", "lead")).address != 0
    assert len(list(disk_cache.cache_folder().glob("*.o"))) == 1


def test_no_cache_folder_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path / "never made"))
    assert cache_folders.cache_folders() == []
    assert list(cache_folders.prune(0)) == []


def test_info_shows_them(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"{cache}: 2 kernels in 2.0 KiB for this version and level" in out
    assert "4 kernels in 3.9 KiB in 2 folders for others, last used 3 to 100 days ago (pullback warmup --prune)" in out


@pytest.mark.parametrize("days", ["-1", "nan"])
def test_a_bad_number_of_days(cache: Path, days: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(cache)
    assert main(["warmup", f"--prune={days}"]) == 2
    assert "--prune is" in capsys.readouterr().err
    assert names(cache) == before
