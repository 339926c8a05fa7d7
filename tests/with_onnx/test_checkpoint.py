"""Checkpoints: resuming gives the same bits, a file is whole or not there, and one that is not whole is refused."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from onnx_models import cnn, mlp, rows_for_cnn, rows_for_mlp

import pullback.onnx as px
from pullback.onnx.train.metrics import Metric
from pullback.onnx.train.schedules import Cosine, ReduceOnPlateau, Schedule
from pullback.rules import Array

X, Y = rows_for_cnn(20)


def new_trainer(**options: Any) -> px.Trainer:
    chosen: dict[str, Any] = {"optimizer": px.AdamW(lr=0.02), "schedule": Cosine(3, warmup=1), "seed": 4} | options
    return px.Trainer(cnn(dropout=0.3), **chosen)


def fit(t: px.Trainer, epochs: int, **options: Any) -> None:
    t.fit((X, Y), epochs=epochs, valid=(X, Y), batch_size=6, **options)


def assert_same(a: px.Trainer, b: px.Trainer) -> None:
    """The same bits everywhere, and the same figures but for the seconds."""
    for one, other in ((a.values(), b.values()), *zip(a.optimizer_state().values(), b.optimizer_state().values(), strict=True)):
        assert list(one) == list(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert (a.steps, a.epoch, a.batch) == (b.steps, b.epoch, b.batch)
    for name in ("losses", "rates", "norms"):
        assert getattr(a.history, name) == getattr(b.history, name)
    figures = [[{k: v for k, v in epoch.items() if k != "seconds"} for epoch in t.history.epochs] for t in (a, b)]
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": px.SGD(lr=0.1, momentum=0.9, dampening=0.2), "schedule": ReduceOnPlateau(patience=0), "accumulate": 2}],
    ids=["adamw", "sgd"],
)
def test_resuming_after_an_epoch_gives_the_same_bits(tmp_path: Path, options: dict[str, Any]) -> None:
    straight = new_trainer(**options)
    fit(straight, 2)
    t = new_trainer(**options)
    fit(t, 1)
    t.save(tmp_path / "run.safetensors")
    resumed = px.Trainer.load(tmp_path / "run.safetensors")
    assert_same(resumed, t)
    assert resumed.settings == t.settings
    fit(resumed, 1)
    assert_same(resumed, straight)


class Stop(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("stop", [1, 3, 4, 6], ids=lambda steps: f"{steps} steps")
def test_resuming_in_the_middle_of_an_epoch_gives_the_same_bits(tmp_path: Path, stop: int) -> None:
    """Epochs have 4 steps; the run ends right after the checkpoint of some step."""

    def leave(t: px.Trainer) -> None:
        if t.steps == stop:
            t.save(tmp_path / "run.safetensors")
            raise Stop

    straight, t = new_trainer(), new_trainer()
    fit(straight, 2, patience=5)
    with pytest.raises(Stop):
        fit(t, 2, on_step=leave, patience=5)
    resumed = px.Trainer.load(tmp_path / "run.safetensors")
    fit(resumed, 2 - resumed.epoch, patience=5)
    assert_same(resumed, straight)


def test_checkpoints_on_the_way_are_those_of_steps_and_epochs(tmp_path: Path) -> None:
    file, seen = tmp_path / "run.safetensors", []

    class Watched(px.Trainer):
        def save(self, path: Any) -> None:
            super().save(path)
            seen.append((self.epoch, self.batch))

    t = Watched(mlp(), seed=1)
    t.fit(rows_for_mlp(12), epochs=2, batch_size=4, checkpoint=file, checkpoint_steps=2)
    assert seen == [(0, 2), (1, 0), (1, 1), (1, 3), (2, 0)]
    assert px.Trainer.load(file).epoch == 2
    broken_off = px.Trainer(mlp(), seed=1)
    with pytest.raises(Stop):
        broken_off.fit(rows_for_mlp(12), batch_size=4, on_step=lambda t: (_ for _ in ()).throw(Stop))
    broken_off.save(file)
    with pytest.raises(px.OnnxError, match="after batch 1 of an epoch with batch_size=4; with batch_size=5 the rest"):
        px.Trainer.load(file).fit(rows_for_mlp(12), batch_size=5)


def test_what_is_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    t = new_trainer()
    fit(t, 1)
    t.save(file)
    tensors = safetensors.numpy.load_file(file)
    np.testing.assert_array_equal(tensors["parameter/conv.w"], t.parameters["conv.w"])
    np.testing.assert_array_equal(tensors["running/norm.mean"], t.running["norm.mean"])
    assert tensors["optimizer.exp_avg/conv.w"].shape == (6, 2, 3, 3)
    summary = json.loads((tmp_path / "run.json").read_text())
    assert (summary["epoch"], summary["steps"], summary["settings"]["optimizer"]["kind"]) == (1, 4, "AdamW")
    assert summary["parameters"]["conv.w"] == [6, 2, 3, 3]
    assert sorted(os.listdir(tmp_path)) == ["run.json", "run.safetensors"]


def test_figures_that_are_not_finite_leave_the_summary_readable(tmp_path: Path) -> None:
    t = px.Trainer(mlp(), metrics=[Metric("odd", lambda output, target: float("nan"))])
    t.fit(rows_for_mlp(8), epochs=2, checkpoint=tmp_path / "run", patience=1, watch="odd")
    assert t.history.stopped_early
    epochs = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)["epochs"]
    assert epochs[0]["odd"] is None
    loaded = px.Trainer.load(tmp_path / "run", metrics=t.settings.metrics)
    assert np.isnan(loaded.history["odd"]).all()


def test_settings_of_the_users_own_are_given_again(tmp_path: Path) -> None:
    class Mine(Schedule):
        def factor(self, at: float, watched: Any = ()) -> float:
            return 0.5

    def margin(output: Array, target: Array) -> Array:
        return output.max(1)

    file = tmp_path / "run"
    px.Trainer(mlp(), schedule=Mine(), metrics=[margin]).save(file)
    assert (tmp_path / "run.json").exists()
    with pytest.raises(px.OnnxError, match=r"schedule of its own, Mine: give it again, as Trainer.load\(path, schedule=...\)"):
        px.Trainer.load(file)
    with pytest.raises(px.OnnxError, match=r"metric of its own, margin"):
        px.Trainer.load(file, schedule=Mine())
    assert px.Trainer.load(file, schedule=Mine(), metrics=[margin]).rate() == 0.005


def test_files_that_are_no_checkpoints_are_refused(tmp_path: Path) -> None:
    file, other = tmp_path / "run.safetensors", tmp_path / "other.safetensors"
    px.Trainer(mlp()).save(file)
    whole = file.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        other.write_bytes(whole[:length])
        with pytest.raises(px.OnnxError, match="is no whole checkpoint, it was broken off or is another kind of file"):
            px.Trainer.load(other)
    other.write_bytes(b"PK\x03\x04" + bytes(200))
    with pytest.raises(px.OnnxError, match="is no whole checkpoint"):
        px.Trainer.load(other)
    safetensors.numpy.save_file({"weight": np.zeros(3)}, other)
    with pytest.raises(px.OnnxError, match=r"no checkpoint of pullback.onnx"):
        px.Trainer.load(other)
    with pytest.raises(px.OnnxError, match="there is no checkpoint"):
        px.Trainer.load(tmp_path / "none")
    tensors = safetensors.numpy.load_file(file)
    about = {"format": "pullback.onnx checkpoint", "version": "2", "about": "{}"}
    safetensors.numpy.save_file(tensors, other, about)
    with pytest.raises(px.OnnxError, match="has version 2; this pullback reads up to 1: pip install -U pullback"):
        px.Trainer.load(other)
    safetensors.numpy.save_file(tensors, other, about | {"version": "1"})
    with pytest.raises(px.OnnxError, match="cannot be used: KeyError: 'settings'"):
        px.Trainer.load(other)


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    file = tmp_path / "run.safetensors"
    t = px.Trainer(mlp())
    t.save(file)
    old = {name: (tmp_path / name).read_bytes() for name in sorted(os.listdir(tmp_path))}
    t.step(*rows_for_mlp())
    write, calls = os.write, []

    def full(*arguments: Any) -> int:
        calls.append(arguments)
        if failing == "write" and len(calls) == 1:
            return write(arguments[0], bytes(arguments[1][:100]))  # some of it still fits
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(px.OnnxError, match=r"the checkpoint could not be written to .*: No space left on device; .* unchanged"):
        t.save(file)
    monkeypatch.undo()
    assert {name: (tmp_path / name).read_bytes() for name in sorted(os.listdir(tmp_path))} == old
    assert px.Trainer.load(file).steps == 0
    with pytest.raises(px.OnnxError, match="there is no folder"):
        t.save(tmp_path / "no" / "folder.safetensors")


def test_what_killed_writers_left_is_removed_after_hours(tmp_path: Path) -> None:
    old, new, other = (tmp_path / f".{name}.tmp" for name in ("run.safetensors.12.ab", "run.safetensors.13.cd", "other.12.ab"))
    for file in (old, new, other):
        file.write_bytes(b"half")
    for file in (old, other):
        os.utime(file, (1, 1))
    px.Trainer(mlp()).save(tmp_path / "run.safetensors")
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)


KILLED = """
import os, signal, sys
import pullback.onnx as px
from onnx_models import mlp, rows_for_mlp

def killed_in(name, call):
    real, calls = getattr(os, name), []
    def patched(*arguments):
        calls.append(name)
        if len(calls) == call:
            if name == "write":
                real(arguments[0], bytes(arguments[1][: len(arguments[1]) // 2]))
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    setattr(os, name, patched)

t = px.Trainer(mlp())
t.step(*rows_for_mlp())
t.save(sys.argv[1])
for name, call in (("write", 1), ("fsync", 1), ("replace", 1), ("fsync", 2)):
    child = os.fork()
    if not child:
        t.steps += 1
        killed_in(name, call)
        t.save(sys.argv[1])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(name, os.WTERMSIG(status), px.Trainer.load(sys.argv[1]).steps, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_killed_while_it_writes_a_checkpoint(tmp_path: Path) -> None:
    """kill -9 in the middle of writing, before flushing and before moving leaves the old checkpoint; after moving, the new one."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path / "run.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["write 9 1", "fsync 9 1", "replace 9 1", "fsync 9 2"]
