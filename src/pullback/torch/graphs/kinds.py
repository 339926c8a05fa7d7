"""What a recorded call of a model holds for: its inputs, PyTorch's settings, the model's own parts; and when none can serve."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules import module as hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import TreeSpec, tree_flatten

from pullback.settings import what_is_set
from pullback.torch.saving import is_watched

CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format)
TENSORS = (torch.Tensor, nn.Parameter)


class NoGraphError(Exception):
    """Why a model, or a call of it, stays eager."""


class Given(NamedTuple):
    """The arguments of a call."""

    leaves: list[Any]
    spec: TreeSpec

    def key(self) -> tuple[Any, ...]:
        """What is frozen of them: of tensors all but their numbers, everything else."""
        parts: list[Any] = [self.spec]
        for leaf in self.leaves:
            if isinstance(leaf, torch.Tensor):
                if type(leaf) not in TENSORS or not leaf.is_cuda or leaf.layout is not torch.strided:
                    where = leaf.device if type(leaf) in TENSORS else type(leaf).__name__
                    raise NoGraphError(f"an argument is a tensor that graphs do not take ({where})")
                parts.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad))
            elif type(leaf) in CONSTANTS:
                parts.append((type(leaf), leaf))
            else:
                raise NoGraphError(f"an argument is a {type(leaf).__name__}")
        return tuple(parts)


def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
    return Given(*tree_flatten((args, kwargs)))


def settings() -> tuple[Any, ...]:
    """What PyTorch's kernels depend on beside their inputs."""
    cudnn = torch.backends.cudnn
    autocast = torch.is_autocast_enabled("cuda") and (torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled())
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, cudnn.enabled, cudnn.benchmark,
        cudnn.deterministic, cudnn.allow_tf32, torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype(), torch.cuda.current_device(), what_is_set(),
    )  # fmt: skip


def why_not_now() -> str | None:
    """Why no recording could serve at this moment: somebody wants to see the single calls."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return "PyTorch traces or compiles it"
    if torch.cuda.is_current_stream_capturing():
        return "its call is being recorded by somebody else"
    if (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or _get_current_function_mode_stack()
    ):
        return "a transform or a mode of PyTorch's sees each call"
    if forward_ad._current_level >= 0 or torch.is_anomaly_enabled():
        return "forward-mode derivatives and anomaly detection see each call"
    if torch.is_grad_enabled() and is_watched():
        return "hooks on saved tensors, as checkpoints have them, see each of them"
    return None


class Parts:
    """The modules and tensors of a model at one moment."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self.modules = modules
        self.dicts: list[dict[str, Any]] = []
        self.held: list[tuple[Any, ...]] = []
        self.tensors: list[tuple[torch.Tensor, int, bool]] = []
        self.parameters: dict[int, torch.Tensor] = {}
        self.hooks: list[Any] = []
        for module in modules:
            for values in (module._modules, module._parameters, module._buffers):
                self.dicts.append(values)
                self.held.append(tuple(values.values()))
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    self.tensors.append((tensor, tensor.data_ptr(), tensor.requires_grad))
            for parameter in module._parameters.values():
                if parameter is not None:
                    self.parameters[id(parameter)] = parameter
            if module is not model:  # the model's own run outside of its forward
                self.hooks += [
                    module._forward_pre_hooks,
                    module._forward_hooks,
                    module._backward_pre_hooks,
                    module._backward_hooks,
                ]
        self.hooks += [
            hooks._global_forward_pre_hooks, hooks._global_forward_hooks, hooks._global_backward_pre_hooks,
            hooks._global_backward_hooks,
        ]  # fmt: skip

    def hooked(self) -> bool:
        return any(self.hooks)

    def training(self) -> tuple[bool, ...]:
        return tuple([module.training for module in self.modules])

    def changed(self) -> bool:
        """Whether a module, parameter or buffer has become another, or is trained now or no longer."""
        for values, held in zip(self.dicts, self.held, strict=True):
            if len(values) != len(held):
                return True
            for value, before in zip(values.values(), held, strict=True):
                if value is not before:
                    return True
        return any(tensor.data_ptr() != place or tensor.requires_grad is not needs for tensor, place, needs in self.tensors)

    def check(self) -> None:
        for tensor, _, _ in self.tensors:
            if type(tensor) not in TENSORS or not tensor.is_cuda:
                raise NoGraphError("a parameter or a buffer is not a plain tensor on the GPU")
