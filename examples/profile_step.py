"""Where a training step's time goes, by kind of op: plain PyTorch beside the accelerated model.

python examples/profile_step.py resnet18-64                 # channels_first
python examples/profile_step.py mobilenetv2-128 --format last
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile
from train_step import CASES, WARMUPS, Training, trainings

import pullback as pb

# What an event of PyTorch's profiler is counted as, by what its name holds; the first that fits.
KINDS = (
    ("batch normalization", ("batch_norm", "BatchNorm", "Norm")),
    ("convolution", ("convolution", "Convolution", "conv", "Mixed")),
    ("pooling", ("pool", "Pool")),
    ("activation", ("relu", "Relu", "threshold", "clamp", "hardtanh", "silu", "hardswish", "sigmoid", "gelu")),
    ("optimizer", ("_foreach", "Optimizer", "zero_grad")),
    ("sums and copies", ("add", "copy", "cat", "contiguous", "clone", "fill", "zero_", "mul", "sum")),
    ("matrix products", ("addmm", "linear", "mm")),
    ("our other ops", ("Differentiable", "pullback")),
)


def kind_of(name: str) -> str:
    return next((kind for kind, parts in KINDS if any(part in name for part in parts)), "other")


def milliseconds(training: Training, steps: int) -> dict[str, float]:
    """Of each kind in one step: the time inside its ops that is in no op below them."""
    for _ in range(WARMUPS):
        training.step()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(steps):
            training.step()
    taken: dict[str, float] = defaultdict(float)
    for event in seen.key_averages():
        taken[kind_of(event.key)] += event.self_cpu_time_total / 1e3 / steps
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--format", choices=("first", "last"), default="first", help="memory format")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    pb.set_num_threads(given.threads)
    plain, ours = (
        milliseconds(training, given.steps) for training in trainings(given.case, given.format == "last", tune=False)
    )
    print(f"{given.case}, channels_{given.format}, {given.threads} threads: ms of one step inside the ops")
    print(f"{'kind':<22} {'PyTorch':>8} {'ours':>8}")
    for kind in sorted({*plain, *ours}, key=lambda kind: -plain.get(kind, 0.0)):
        print(f"{kind:<22} {plain.get(kind, 0.0):8.1f} {ours.get(kind, 0.0):8.1f}")
    print(f"{'all':<22} {sum(plain.values()):8.1f} {sum(ours.values()):8.1f}")


if __name__ == "__main__":
    main()
