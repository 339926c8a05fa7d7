"""One training step (forward, backward, SGD) of networks of full size on a GPU: plain PyTorch against accelerated, in turns.

python examples/train_step_cuda.py                                    # all four in bfloat16: a few minutes
python examples/train_step_cuda.py --graphs                           # ours replayed from CUDA graphs
python examples/train_step_cuda.py --networks resnext50 --fp32        # one of them in float32
python examples/train_step_cuda.py --networks convnext_t --profile    # where the time goes, kernel by kernel
python examples/train_step_cuda.py --device cpu --size 64 --batch 1   # whether the script works, on any machine
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
import time
import traceback
from contextlib import nullcontext
from typing import Any

import torch
from models_cuda import convnext_t, efficientnet_b0, mobilenet_v2, resnext50
from torch import nn
from torch.profiler import ProfilerActivity, profile

from pullback.torch import accelerate

NETWORKS = {make.__name__: make for make in (convnext_t, efficientnet_b0, mobilenet_v2, resnext50)}
CLASSES, BATCHES = 1000, 4
LOSS_STEPS, MEMORY_STEPS = 50, 2
HEADER = "network          batch   PyTorch      ours  ratio   memory (GB)    losses apart"


class Training:
    """A model with its optimizer, going round and round over the same batches."""

    def __init__(self, model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], given: argparse.Namespace) -> None:
        self.model, self.batches, self.given, self.taken = model, batches, given, 0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(self) -> torch.Tensor:
        """The loss stays on the device, so that nobody waits for it."""
        x, labels = self.batches[self.taken % len(self.batches)]
        self.taken += 1
        self.optimizer.zero_grad(set_to_none=True)
        with nullcontext() if self.given.fp32 else torch.autocast(self.given.device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(x), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Comparison:
    """Both ways to train one network, from the same weights on the same batches."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        torch.manual_seed(given.seed)
        self.given, self.name, self.model = given, name, NETWORKS[name](CLASSES)
        self.form: dict[str, Any] = {"memory_format": torch.channels_last} if given.format == "last" else {}
        images = [torch.randn(given.batch, 3, given.size, given.size) for _ in range(BATCHES)]
        labels = [torch.randint(CLASSES, (given.batch,)) for _ in range(BATCHES)]
        self.batches = [
            (x.to(given.device, **self.form), y.to(given.device)) for x, y in zip(images, labels, strict=True)
        ]  # fmt: skip

    def plain(self) -> Training:
        return Training(copy.deepcopy(self.model).to(self.given.device, **self.form), self.batches, self.given)

    def ours(self) -> Training:
        model = copy.deepcopy(self.model).to(self.given.device, **self.form)
        return Training(accelerate(model, graphs=self.given.graphs), self.batches, self.given)


def finish(given: argparse.Namespace) -> None:
    if given.device == "cuda":
        torch.cuda.synchronize()


def milliseconds(training: Training, given: argparse.Namespace) -> float:
    """Of one step: from its first call to the end of its last kernel."""
    finish(given)
    start = time.perf_counter()
    training.step()
    finish(given)
    return (time.perf_counter() - start) * 1e3


def gigabytes(training: Training, given: argparse.Namespace) -> float:
    """The most memory that is taken from the device in a step, weights and batches among it; NaN without a GPU.

    What is reserved counts, not what is allocated: a CUDA graph keeps its memory between steps.
    """
    if given.device != "cuda":
        return float("nan")
    finish(given)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(MEMORY_STEPS):
        training.step()
    finish(given)
    return torch.cuda.max_memory_reserved() / 1e9


def give_back(given: argparse.Namespace) -> None:
    """Memory of what nobody has any more."""
    gc.collect()
    if given.device == "cuda":
        torch.cuda.empty_cache()


def together(one: Training, other: Training, steps: int) -> float:
    """The largest relative distance of their losses."""
    pairs = [(one.step(), other.step()) for _ in range(steps)]
    return max(abs(a - b) / abs(a) for a, b in ((a.item(), b.item()) for a, b in pairs))


def compare(name: str, given: argparse.Namespace) -> str:
    """A row of the table."""
    both = Comparison(name, given)
    plain = both.plain()
    for _ in range(given.warmup):
        plain.step()
    memory = [gigabytes(plain, given)]  # while the other is not there yet
    del plain
    give_back(given)

    plain, ours = both.plain(), both.ours()
    apart = "" if given.no_losses else f"{together(plain, ours, given.loss_steps):.0e}"
    for _ in range(given.warmup):
        plain.step()
        ours.step()
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(given.steps):
        pairs = list(zip((plain, ours), times, strict=True))
        for training, taken in pairs if turn % 2 == 0 else reversed(pairs):
            taken.append(milliseconds(training, given))

    del plain, training, pairs
    give_back(given)
    memory.append(gigabytes(ours, given))  # now that the other is gone
    del ours
    if given.twice:
        apart += f" (PyTorch from PyTorch {together(both.plain(), both.plain(), given.loss_steps):.0e})"
    medians = [statistics.median(taken) for taken in times]
    return (
        f"{name:<16} {given.batch:>5} {medians[0]:>9.2f} {medians[1]:>9.2f} {medians[0] / medians[1]:>6.2f} "
        f"{memory[0]:>6.1f} {memory[1]:>6.1f}    {apart}"
    )


def show_profile(name: str, given: argparse.Namespace) -> None:
    """The ops of both by their time on the device, of one step each."""
    both = Comparison(name, given)
    on_gpu = given.device == "cuda"
    for label, make in (("plain PyTorch", both.plain), ("accelerated", both.ours)):
        training = make()
        for _ in range(given.warmup):
            training.step()
        finish(given)
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as seen:
            training.step()
            finish(given)
        order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        print(f"{name}, {label}, one step of {given.batch} images")
        print(seen.key_averages().table(sort_by=order, row_limit=given.rows, max_name_column_width=70), flush=True)
        del training, seen
        give_back(given)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NAME", help=f"which: {', '.join(NETWORKS)}")
    add("--batch", type=int, default=128, help="images in a step (default 128); less where memory runs out")
    add("--size", type=int, default=224, help="height and width of the images (default 224), a multiple of 32")
    add("--graphs", action="store_true", help="accelerate(model, graphs=True): forward and backward pass as CUDA graphs")
    add("--steps", type=int, default=20, help="timed steps of each way, in turns; the table has their medians (default 20)")
    add("--warmup", type=int, default=5, help="steps ahead of these, in which kernels are compiled and chosen (default 5)")
    add(
        "--fp32", action="store_true",
        help="float32 all through, in place of bfloat16 by torch.autocast over float32 weights; PyTorch's convolutions then "
        "multiply in TF32, which is its default, while ours keep float32's precision",
    )  # fmt: skip
    add("--format", choices=("first", "last"), default="last", help="memory format of weights and images (default last)")
    add("--no-losses", action="store_true", help="leave out the comparison of the losses, which begins from the same weights")
    add("--loss-steps", type=int, default=LOSS_STEPS, help=f"steps over which losses are compared (default {LOSS_STEPS})")
    add(
        "--twice", action="store_true",
        help="train PyTorch's model twice as well: how far apart do its own losses come, where sums have no fixed order?",
    )  # fmt: skip
    add("--profile", action="store_true", help="in place of the table, torch.profiler's one of a step of each, by op")
    add("--rows", type=int, default=30, help="rows of such a profile (default 30)")
    add("--seed", type=int, default=0, help="of the first weights and of the batches")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only shows that the script works: take a small --size")
    given = parser.parse_args()
    if given.size < 32 or given.size % 32:
        parser.error("--size must be a multiple of 32, by which the networks narrow their images")
    if given.size == 32 and given.batch == 1:
        parser.error("--size 32 ends in one cell an image, and batch normalization needs more than one number: take --batch 2")
    if min(given.batch, given.steps, given.loss_steps) < 1:
        parser.error("--batch, --steps and --loss-steps must be at least 1")
    if given.warmup < 0:
        parser.error("--warmup must not be negative")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here; --device cpu --size 64 --batch 1 tries the script without one")
    return given


def main() -> None:
    given = arguments()
    torch.backends.cudnn.benchmark = True
    if given.profile:
        for name in given.networks:
            show_profile(name, given)
        return
    where = torch.cuda.get_device_name() if given.device == "cuda" else "the CPU"
    kind = "float32" if given.fp32 else "bfloat16"
    print(
        f"{where}, PyTorch {torch.__version__}, {kind}, channels_{given.format}, {given.size}x{given.size}; ms of a step, medians"
    )
    print(HEADER)
    failed = False
    for name in given.networks:
        try:
            print(compare(name, given), flush=True)
        except Exception:  # the others may still run, and the machine may be lent by the minute
            failed = True
            print(f"{name:<16} failed: {traceback.format_exc()}", flush=True)
        give_back(given)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
