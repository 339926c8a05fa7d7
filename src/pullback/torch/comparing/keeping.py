"""A model's state while steps are taken on it for measurement: rewound before each, and put back at the end to the last bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy


class Kept:
    """Parameters, buffers, gradients, attributes, hooks and modes of a model, random states and PyTorch's number of threads.

    What is rewound by assignment keeps its identity: the same tensors and containers, with what they held.
    """

    def __init__(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if is_lazy(parameter):
                raise ValueError(f"compare: the parameter {name!r} has no shape yet; call the model once before")
        self.attributes = [(module.__dict__, dict(module.__dict__)) for module in model.modules()]
        containers = (
            value for _, values in self.attributes for value in values.values() if isinstance(value, (dict, list, set))
        )
        self.containers = [(container, container.copy()) for container in containers]
        tensors = dict.fromkeys([*model.parameters(), *model.buffers()])
        self.tensors = [(tensor, tensor.detach().clone()) for tensor in tensors if not tensor.is_meta]
        self.leaves = [(leaf, leaf.requires_grad, leaf.grad) for leaf in tensors if leaf.is_leaf]
        self.random = (torch.get_rng_state(), random.getstate(), np.random.get_state())  # noqa: NPY002 (the one that models share)
        self.threads = torch.get_num_threads()

    def rewind(self) -> None:
        """The numbers that a step starts from, without gradients."""
        with torch.no_grad():
            for tensor, values in self.tensors:
                if not torch.equal(tensor, values):
                    tensor.copy_(values)
        for leaf, _, _ in self.leaves:
            leaf.grad = None
        torch_state, python_state, numpy_state = self.random
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002

    def put_back(self) -> None:
        for attributes, values in self.attributes:
            attributes.clear()
            attributes.update(values)
        for container, held in self.containers:
            container.clear()
            container.extend(held) if isinstance(container, list) else container.update(held)
        self.rewind()
        for leaf, requires, gradient in self.leaves:
            leaf.requires_grad_(requires)
            leaf.grad = gradient
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)


@contextmanager
def kept(model: nn.Module) -> Iterator[Kept]:
    """The model is after the block what it was before, however the block ends."""
    state = Kept(model)
    try:
        yield state
    finally:
        state.put_back()
