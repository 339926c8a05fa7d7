"""accelerate(model), restore(model), accelerated(model): swapping the layers of a model in place, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn

from pullback import registry
from pullback.torch.chains import UNITS, chained_class, has_units, unchain
from pullback.torch.choices import CHOICES, Choices
from pullback.torch.gpu_layers import GPU_PLANS
from pullback.torch.graphs.model import GRAPHS, set_graphs
from pullback.torch.layers import Accelerated
from pullback.torch.modules import BACK, GPU_SWAPS, SWAPS
from pullback.torch.norm_layers import NormLayer
from pullback.torch.pending import FUSES
from pullback.torch.selection import Wishes, names_of, select
from pullback.torch.taking import TAKES, calls_functions, plain_class, taking_class
from pullback.torch.whole_steps import WholeSteps

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm)
MOST_FEW_CHANNELS = 4  # of a convolution without groups that has kernels of ours on a GPU

Model = TypeVar("Model", bound=nn.Module)


def accelerate(
    model: Model,
    *,
    measure: bool = True,
    tune: bool = False,
    fuse: bool = True,
    only: Wishes | None = None,
    except_: Wishes | None = None,
    functional: bool = False,
    graphs: bool = False,
) -> Model:  # fmt: skip
    """Turn a model's convolutions, poolings and batch normalizations into ours, in place; the model is returned.

    Parameters, state_dict, hooks and the modules themselves stay the same. Only layers of exactly PyTorch's classes are taken, so
    quantized, lazy, parametrized ones and subclasses are left alone.

    measure: the first calls of a layer with inputs of a new kind (shape, memory format, dtype, threads) take turns between
    PyTorch's kernels and ours, timed inside the step, and the faster ones are kept, for each op of a convolution: forward, input
    gradient, filter gradient. False: fixed rules decide at each call where our kernels are expected to win, so that equal programs
    give equal bits (the two kinds of kernels round differently).
    tune: measure as soon as a layer meets a new kind of input, in calls beside the step, which then takes longer.
    fuse: in training, batch normalizations wait for what follows: with a ReLU or ReLU6, or a sum and a ReLU, they are one pass
    over memory, forwards and backwards. What the model does else with such a result gets a plain tensor.
    only, except_: which layers; names ("stem", "layer1.*"), classes, functions of (name, module), or several of these. A name or a
    class means what is within, too. Other layers become PyTorch's again. A name or class that no layer has is a ValueError.
    functional: also the calls of torch.nn.functional (convolutions and poolings) inside the forward of your own modules, by the
    rules for layers, where the model runs eagerly. It costs each call of PyTorch in the model about a microsecond.
    graphs: on a GPU, after three whole steps with inputs of a kind, the model's forward and backward pass are recorded as CUDA
    graphs and replayed. What cannot be recorded stays eager, and `explain` says why.
    """
    set_graphs(model, False)
    registry.backends()  # imports the kernels now rather than in the first step
    names = names_of(model)
    layers = [module for module in names if isinstance(module, tuple(SWAPS)) or _only_on_gpu(module)]
    callers = [module for module in names if calls_functions(module)] if functional else []
    chosen = select(names, list(dict.fromkeys([*layers, *callers])), only, except_)
    steps = WholeSteps()
    for layer in layers:
        if layer not in chosen:
            _restore(layer)
            continue
        ours = (SWAPS | GPU_SWAPS).get(plain_class(type(layer)))
        if ours is not None and never_on_gpu(layer):
            _restore(layer)
            continue
        if ours is not None:
            _restore(layer)
            layer.__class__ = ours
        if isinstance(layer, Accelerated):
            _mark(layer, measure, tune, steps)
            layer.__dict__.pop(FUSES, None)
            if fuse and isinstance(layer, NormLayer):
                layer.__dict__[FUSES] = True
    if functional:
        for module in [*callers, *(layer for layer in layers if layer not in chosen)]:
            module.__class__ = taking_class(plain_class(type(module)))
            module.__dict__[TAKES] = module in chosen
    for module in names:
        unchain(module)
        if fuse and has_units(module):
            module.__class__ = chained_class(plain_class(type(module)))
    set_graphs(model, graphs)
    return model


def _only_on_gpu(module: nn.Module) -> bool:
    """Whether a layer is one that has kernels on a GPU alone, and has its parameters there."""
    kinds: tuple[type[nn.Module], ...] = tuple(GPU_SWAPS)
    return isinstance(module, kinds) and any(p is not None and p.is_cuda for p in module._parameters.values())


def never_on_gpu(layer: Any) -> bool:
    """Whether a layer has its parameters on a GPU, and no kernel of ours there: as it is, its calls cost nothing more."""
    weight = layer._parameters.get("weight")
    if weight is None or not weight.is_cuda or isinstance(layer, NORMS):
        return False
    few = getattr(layer, "groups", 1) > 1 or getattr(layer, "in_channels", MOST_FEW_CHANNELS + 1) <= MOST_FEW_CHANNELS
    return not few


def _mark(layer: Any, measure: bool, tune: bool, steps: WholeSteps) -> None:
    """What a layer has measured before it keeps; whole steps are those of this model."""
    if measure or tune:
        choices = layer.__dict__.setdefault(CHOICES, Choices())
        choices.at_once, choices.steps, choices.joined = tune, steps, False
    else:
        layer.__dict__.pop(CHOICES, None)


def restore(model: Model) -> Model:
    """Undo `accelerate`, in place; the model is returned."""
    for module in model.modules():
        _restore(module)
    return model


def _restore(module: nn.Module) -> None:
    kind = plain_class(type(module))
    kind = BACK.get(kind, kind)
    if kind is not type(module):
        module.__class__ = kind
        for mark in (CHOICES, TAKES, FUSES, GPU_PLANS, GRAPHS, UNITS):
            module.__dict__.pop(mark, None)


class State:
    """How a model's modules are swapped, to be put back."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [(module, type(module), _marks(module)) for module in model.modules()]

    def put_back(self) -> None:
        for module, kind, marks in self.modules:
            if type(module) is not kind:
                module.__class__ = kind
            for mark in _marks(module):
                del module.__dict__[mark]
            module.__dict__.update(marks)


def _marks(module: nn.Module) -> dict[str, Any]:
    return {mark: module.__dict__[mark] for mark in (CHOICES, TAKES, FUSES, GRAPHS, UNITS) if mark in module.__dict__}


@contextmanager
def accelerated(model: Model, **options: Any) -> Iterator[Model]:
    """`accelerate(model, ...)` for the length of a block; after it the model's layers are again what they were before.

    A function of its own: `accelerate` returns the model, and a model is no context manager.
    """
    before = State(model)
    try:
        yield accelerate(model, **options)
    finally:
        before.put_back()
