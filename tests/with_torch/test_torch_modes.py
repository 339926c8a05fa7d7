"""pullback.torch where PyTorch does more than run eagerly: compile, vmap, torch.func, autocast, inference, threads, fork."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from cpu_calls import run_python
from torch import nn
from torch.utils.data import DataLoader, Dataset

import pullback as pb
from pullback.cpu.machine_code.levels import LEVELS, host_levels
from pullback.torch import functional as ours
from pullback.torch import share_threads
from pullback.torch.threads import openmp_library

pytestmark = pytest.mark.torch


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def network(module: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution and both poolings of one of the two functional modules."""
    y: torch.Tensor = module.avg_pool2d(module.max_pool2d(module.conv2d(x, w, None, 1, 1), 2), 2, 1)
    return y


@pytest.mark.parametrize("last", [False, True])
def test_compile(last: bool) -> None:
    """Traced whole, by the registered ops; aot_eager needs no C++ compiler."""
    x, w = tensors((2, 3, 8, 6), (4, 3, 3, 3))
    if last:
        x = x.to(memory_format=torch.channels_last)
    pairs = []
    for run in (network, torch.compile(network, backend="aot_eager", fullgraph=True)):
        weights = w.clone().requires_grad_()
        y = run(ours, x, weights)
        y.square().sum().backward()
        pairs.append((y, weights.grad))
    torch.testing.assert_close(pairs[0], pairs[1])


def test_vmap_and_per_sample_gradients() -> None:
    x, w = tensors((3, 2, 3, 8, 6), (3, 4, 3, 3, 3))
    for dims in ((0, None), (None, 0), (0, 0)):
        given = (x if dims[0] == 0 else x[0], w if dims[1] == 0 else w[0])
        expected = torch.vmap(lambda a, b: network(nn.functional, a, b), dims)(*given)
        torch.testing.assert_close(torch.vmap(lambda a, b: network(ours, a, b), dims)(*given), expected)
        gradient = torch.func.grad(lambda b, a: network(ours, a, b).square().sum())
        truth = torch.func.grad(lambda b, a: network(nn.functional, a, b).square().sum())
        torch.testing.assert_close(torch.vmap(gradient, dims[::-1])(*given[::-1]), torch.vmap(truth, dims[::-1])(*given[::-1]))


def test_forward_mode() -> None:
    x, w, t = tensors((2, 3, 8, 6), (4, 3, 3, 3), (2, 3, 8, 6))
    expected = torch.func.jvp(lambda a: network(nn.functional, a, w), (x,), (t,))
    torch.testing.assert_close(torch.func.jvp(lambda a: network(ours, a, w), (x,), (t,)), expected)


def test_autocast_casts_as_pytorch_does() -> None:
    x, w = (t.float().requires_grad_() for t in tensors((2, 3, 8, 6), (4, 3, 3, 3)))
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = ours.conv2d(x, w), nn.functional.conv2d(x, w)
    assert y.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    y.float().sum().backward()
    assert w.grad is not None
    assert w.grad.dtype == torch.float32


def test_no_grad_and_inference_mode() -> None:
    x, w = tensors((2, 3, 8, 6), (4, 3, 3, 3))
    w.requires_grad_()
    with torch.no_grad():
        assert not network(ours, x, w).requires_grad
    with torch.inference_mode():
        y = network(ours, x, w)
        assert y.is_inference()
    torch.testing.assert_close(y.clone(), network(nn.functional, x, w).detach())


def test_meta_tensors_have_shapes_only() -> None:
    y = ours.conv2d(torch.empty(2, 3, 8, 6, device="meta"), torch.empty(4, 3, 3, 3, device="meta"), padding=1)
    assert y.is_meta
    assert y.shape == (2, 4, 8, 6)


def large() -> tuple[torch.Tensor, torch.Tensor]:
    x, w = tensors((4, 32, 28, 28), (64, 32, 3, 3))
    return x.float(), w.float()


def test_shared_threads_give_the_same_bits() -> None:
    """On PyTorch's threads and on our own, with one and with two."""
    x, w = large()
    before = torch.get_num_threads()
    found = []
    try:
        for shared in (True, False):
            assert share_threads(shared) == (shared and openmp_library() is not None)
            for count in (1, 2):
                torch.set_num_threads(count)
                with pb.threads(count):
                    found.append(ours.conv2d(x, w, padding=1))
    finally:
        torch.set_num_threads(before)
        share_threads()
    assert all(torch.equal(y, found[0]) for y in found)


class Convolved(Dataset[torch.Tensor]):
    """A dataset that calls our kernels, in whichever process it is asked."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        x, w = large()
        return ours.conv2d(x[index : index + 1], w, padding=1)[0]


def test_dataloader_workers_after_use_in_the_parent() -> None:
    x, w = large()
    expected = ours.conv2d(x, w, padding=1)  # the parent's threads are running when it forks
    batches = list(DataLoader(Convolved(), batch_size=2, num_workers=1, multiprocessing_context="fork"))
    torch.testing.assert_close(torch.cat(batches), expected)


def test_fork() -> None:
    """Compared by NumPy in the child: there PyTorch's own parallel ops (torch.equal is one) wait for threads that stayed behind."""
    x, w = large()
    expected = ours.conv2d(x, w, padding=1).numpy()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if np.array_equal(ours.conv2d(x, w, padding=1).numpy(), expected) else 1)
    assert os.waitpid(pid, 0)[1] == 0


WITHOUT_CODE = """
import torch, pullback as pb
import pullback.torch
from pullback.torch import functional, share_threads
assert not share_threads()
x = torch.ones(1, 3, 8, 8).to(memory_format=torch.channels_last)
w = torch.ones(4, 3, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
with pb.backend("reference"):
    functional.conv2d(x, w).sum().backward()
print(w.grad.unique().tolist())
"""


def test_without_machine_code_the_reference_does_it() -> None:
    """Neither threads nor transposes of weights stand in its way."""
    foreign = next(level.name for level in LEVELS if level not in host_levels())
    assert run_python(WITHOUT_CODE, PULLBACK_LEVEL=foreign) == "[36.0]"
