"""Training on several processes or machines with PyTorch's DistributedDataParallel, the model accelerated.

    torchrun --nproc-per-node 2 examples/ddp_torch.py
    torchrun --nnodes 4 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 examples/ddp_torch.py

The first on one machine, the second on each of four, HOST being one of them. Every process gets its share of
the cores and of each batch; gradients are averaged over all of them (gloo, over TCP).
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from pullback.torch import accelerate


def network() -> nn.Module:
    """A small convolutional network; the same weights in every process."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step: made up, and the same in every process."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, 3, 32, 32, generator=generator), torch.randint(10, (size,), generator=generator)


def part(whole: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """What one process gets of a batch."""
    return whole.chunk(world)[rank]


def train(model: nn.Module, steps: int, size: int, rank: int = 0, world: int = 1) -> list[float]:
    """Train a few steps; the losses of this process's parts."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        x, labels = (part(whole, rank, world) for whole in batch(step, size))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="images of all processes together")
    parser.add_argument("--save", help="where the first process writes the trained weights")
    given = parser.parse_args()
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // here) if hasattr(os, "sched_getaffinity") else 1)
    model = DistributedDataParallel(accelerate(network()))
    losses = train(model, given.steps, given.batch, rank, world)
    print(f"process {rank} of {world}: loss {losses[0]:.4f} -> {losses[-1]:.4f}", flush=True)
    if given.save and rank == 0:
        torch.save(model.module.state_dict(), given.save)
    distributed.barrier()  # nobody hangs up while the first process still writes
    del model
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    # DistributedDataParallel keeps the group's threads after the group is destroyed (seen with PyTorch 2.13), and one that asks for
    # Python's lock while the interpreter ends aborts the process: so no such end.
    sys.stdout.flush()
    os._exit(0)
