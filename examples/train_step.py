"""One training step (forward, backward, SGD) of whole networks: plain PyTorch against accelerated, in both memory formats.

python examples/train_step.py                        # all networks
python examples/train_step.py resnet18-64 unet3d     # some of them
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import models
import torch
from torch import nn

import pullback as pb
from pullback.torch import accelerate

WARMUPS = 40  # in which kernels are compiled, layers measured and whole steps compared
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18-64": (models.resnet18, (16, 3, 64, 64)),
    "resnet18-224": (models.resnet18, (4, 3, 224, 224)),
    "vgg11-64": (models.vgg11, (16, 3, 64, 64)),
    "vgg11-224": (models.vgg11, (2, 3, 224, 224)),
    "mobilenetv2-128": (models.mobilenet_v2, (8, 3, 128, 128)),
    "mobilenetv1-128": (models.mobilenet_v1, (8, 3, 128, 128)),
    "resnext26-96": (models.resnext26, (8, 3, 96, 96)),
    "unet3d-32": (models.UNet3d, (2, 1, 32, 32, 32)),
}


class Training:
    """A model with its optimizer and a fixed batch."""

    def __init__(self, model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> None:
        self.model, self.x, self.labels = model, x, labels
        self.optimizer = torch.optim.SGD(model.parameters(), lr=3e-5, momentum=0.9)

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.x), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def trainings(name: str, last: bool, tune: bool) -> tuple[Training, Training]:
    """(plain, accelerated) from the same weights and batch."""
    torch.manual_seed(0)
    make, shape = CASES[name]
    model, x = make(), torch.randn(shape)
    labels = torch.randint(3, (shape[0], *(shape[2:] if name.startswith("unet") else ())))
    if last:
        form = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        model, x = model.to(memory_format=form), x.to(memory_format=form)
    ours = accelerate(copy.deepcopy(model), tune=tune)
    return Training(model, x, labels), Training(ours, x, labels)


def compare(name: str, last: bool, steps: int, tune: bool) -> str:
    """A row of the table."""
    plain, ours = trainings(name, last, tune)
    losses: list[tuple[float, float]] = []
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(WARMUPS):  # the same steps for both
        plain.step()
        ours.step()
    for _ in range(steps):
        pair = []
        for training, taken in zip((plain, ours), times, strict=True):
            start = time.perf_counter()
            pair.append(training.step())
            taken.append(time.perf_counter() - start)
        losses.append((pair[0], pair[1]))
    apart = max(abs(a - b) / abs(a) for a, b in losses)
    medians = [statistics.median(taken) * 1e3 for taken in times]
    bests = [min(taken) * 1e3 for taken in times]
    form = "channels_last" if last else "channels_first"
    return (
        f"{name:<16} {form:<15} {medians[0]:8.1f} {medians[1]:8.1f} {medians[0] / medians[1]:6.2f} "
        f"{bests[0] / bests[1]:6.2f}   {losses[-1][0]:.4f} {apart:.0e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tune", action="store_true", help="time both kinds of kernels for every layer first")
    parser.add_argument("--format", choices=("first", "last"), help="only this memory format")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    pb.set_num_threads(given.threads)
    print("network          memory format    PyTorch     ours  ratio   best   loss   apart   (ms; medians, ratio of the best)")
    for name in given.cases or CASES:
        for last in (False, True):
            if given.format in (None, "last" if last else "first"):
                print(compare(name, last, given.steps, given.tune), flush=True)


if __name__ == "__main__":
    main()
