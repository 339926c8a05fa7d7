"""Training over MPI: the loss curve of one process, and an end with a clear message where a rank fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mpi_job
import numpy as np
import pytest

import pullback as pb
import pullback.onnx as px
from pullback.onnx.train.batch_gradient import parts_of
from pullback.onnx.train.mpi import RANK_VARIABLE, SIZE_VARIABLES, world

MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
needs_mpi = pytest.mark.skipif(
    MPIEXEC is None or find_spec("mpi4py") is None, reason="mpi4py or mpiexec is missing: pip install mpi4py mpich"
)


def start(ranks: int, what: str, folder: Path) -> subprocess.CompletedProcess[str]:
    assert MPIEXEC is not None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "mpi_job", str(folder), what]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


@cache
def alone(what: str) -> px.Trainer:
    with tempfile.TemporaryDirectory() as folder, pb.backend("reference"):
        return mpi_job.run(what, None, Path(folder))


@needs_mpi
@pytest.mark.parametrize(("ranks", "what"), [(2, "train"), (4, "accumulate")])
def test_the_curve_is_that_of_one_process(tmp_path: Path, ranks: int, what: str) -> None:
    """With BatchNormalization and Dropout, parts of unequal sizes, and batches of fewer rows than ranks."""
    done = start(ranks, what, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1  # the processes, by one rank
    one = alone(what)
    assert done.stdout == f"{ranks} ranks, {one.history['valid_accuracy'][-1]:.3f}\n"  # one rank prints
    with np.load(tmp_path / "result.npz") as result:
        np.testing.assert_allclose(result["losses"], one.history.losses, rtol=1e-9)
        np.testing.assert_allclose(result["valid"], one.history["valid_loss"], rtol=1e-9)
        for name, value in one.values().items():
            np.testing.assert_allclose(result[name], value, rtol=1e-8, atol=1e-10, err_msg=name)
    assert px.Trainer.load(tmp_path / "run.safetensors").epoch == mpi_job.EPOCHS


@needs_mpi
@pytest.mark.parametrize("what", ["raise", "die"])
def test_a_rank_that_fails_ends_the_job(tmp_path: Path, what: str) -> None:
    done = start(2, what, tmp_path)
    assert done.returncode != 0
    if what == "raise":
        assert "rank 1 of 2 failed, so the job ends: OSError: the disk with the data is gone" in done.stderr
    else:
        processes = re.match(r"2 ranks: 0 is process \d+ on \S+, 1 is process (\d+) on", done.stderr)
        assert processes is not None
        assert re.search(rf"PID {processes[1]}\b", done.stdout + done.stderr)  # by mpiexec
    assert px.Trainer.load(tmp_path / "run.safetensors").epoch == 1  # the last checkpoint is whole


@needs_mpi
@pytest.mark.parametrize(
    ("what", "said"), [("nan", "OnnxError: the loss is"), ("differ", "rank 1 has another model or other settings than rank 0")]
)
def test_what_all_ranks_find_wrong_is_said_once(tmp_path: Path, what: str, said: str) -> None:
    done = start(2, what, tmp_path)
    assert done.returncode == 1
    assert done.stderr.count(said) == 1
    assert "failed, so the job ends" not in done.stderr


def test_a_process_that_was_not_started_by_mpi_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SIZE_VARIABLES, RANK_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    assert world() is None
    monkeypatch.setenv("PMI_SIZE", "1")
    assert world() is None
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"training over MPI needs mpi4py: pip install 'pullback\[mpi\]'"):
        world()


class FakeRanks:
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.first = rank, size, rank == 0

    def rows(self, count: int) -> slice:
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)


@pytest.mark.parametrize(("rows", "accumulate", "size"), [(10, 1, 1), (10, 3, 4), (3, 1, 4), (2, 5, 2), (7, 2, 3)])
def test_every_row_counts_once(rows: int, accumulate: int, size: int) -> None:
    counted = np.zeros(rows)
    for rank in range(size):
        fake: Any = FakeRanks(rank, size)
        for part in parts_of(rows, accumulate, fake):
            counted[part.rows] += part.weight / (part.rows.stop - part.rows.start)
    np.testing.assert_allclose(counted, 1 / rows)
