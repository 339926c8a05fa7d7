"""What the tests of MPI run under mpiexec: a small network trained by all ranks together.

mpi_job.py FOLDER [what]: "train", "accumulate", "raise" (rank 1 raises after a checkpoint), "die" (rank 1 is killed after one),
"nan" (all ranks meet a loss that is not finite), "differ" (each rank has a seed of its own).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
from onnx_models import cnn, rows_for_cnn

import pullback as pb
import pullback.onnx as px
from pullback.onnx.train import mpi
from pullback.onnx.train.mpi import Ranks, world

ROWS, BATCH = 21, 10  # batches of 10, 10 and 1 rows: unequal parts, and fewer rows than ranks
EPOCHS = 3


def run(what: str, ranks: Ranks | None, folder: Path) -> px.Trainer:
    x, y = rows_for_cnn(ROWS, dtype=np.float64)
    t = px.Trainer(
        cnn(dropout=0.25, dtype=np.float64),
        optimizer=px.SGD(lr=1e300 if what == "nan" else 0.1, momentum=0.9),
        accumulate=2 if what == "accumulate" else 1,
        clip_norm=1.0,
        seed=ranks.rank if what == "differ" and ranks is not None else 0,
        ranks=ranks,
    )

    def fail(t: px.Trainer) -> None:
        if t.epoch == 1 and t.batch == 1 and ranks is not None and ranks.rank == 1:
            if what == "raise":
                raise OSError("the disk with the data is gone")
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)

    t.fit((x, y), epochs=EPOCHS, batch_size=BATCH, valid=(x, y), checkpoint=folder / "run.safetensors", on_step=fail)
    return t


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    mpi.BUCKET_BYTES = 200  # several buckets are on their way at once
    ranks = world()
    assert ranks is not None
    with ranks.job(), pb.backend("reference"):  # no kernels to compile
        t = run(what, ranks, folder)
        t.export(folder / "trained.onnx")
        if ranks.first:
            np.savez(folder / "result.npz", losses=t.history.losses, valid=t.history["valid_loss"], **t.values())
            print(f"{ranks.size} ranks, {t.history['valid_accuracy'][-1]:.3f}")


if __name__ == "__main__":
    main()
