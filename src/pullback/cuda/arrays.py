"""Calls of the ops on arrays in the memory of a GPU, of any library that has `__dlpack__`: results are of the same library.

PyTorch is our allocator and knows the streams: arrays come as its tensors over the same memory, and go back without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from pullback.ops.arguments import FEWEST_AXES
from pullback.ops.foreign_arrays import is_device_array, library_of, refuse_recorded
from pullback.registry import CUDA, Explanation, KernelError, explain_problem, why_unavailable
from pullback.registry.in_force import asked_backend
from pullback.settings import during
from pullback.shown import shown

MODULES = {"jaxlib": "jax.dlpack", "jax": "jax.dlpack"}  # where a library keeps from_dlpack, if not at its top


def explain_on_arrays(prepare: Callable[..., tuple[Any, ...]], args: tuple[Any, ...], keywords: dict[str, Any]) -> Explanation:
    """Which kernel would run such a call."""
    import torch

    from pullback.cuda.call import problem_of

    given = [torch.from_dlpack(value) if is_device_array(value) else value for value in args]
    with during(asked_backend, CUDA):
        return explain_problem(problem_of(prepare, given, keywords))


def run_on_arrays(prepare: Callable[..., tuple[Any, ...]], out: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """An op on arrays of one GPU."""
    op = prepare.__name__.removeprefix("prepare_")
    given = tensors_of(op, {f"argument {position}": value for position, value in enumerate(args, 1)}, FEWEST_AXES)
    from pullback.cuda import call

    like = next(value for value in args if is_device_array(value))
    found = call.run(prepare, *given.values(), **keywords)
    if out is not None:
        return _into(op, out, found)
    return tuple(as_theirs(like, part) for part in found) if isinstance(found, tuple) else as_theirs(like, found)


def tensors_of(op: str, values: Mapping[str, Any], fewest_axes: int) -> dict[str, Any]:
    """Values by their names, the arrays of a GPU as tensors. Nothing else may be an array, of so many axes or more."""
    why = why_unavailable(CUDA)
    if why is not None:
        raise KernelError(f"{op}: {why}")
    import torch

    given, devices = {}, set()
    for name, value in values.items():
        if is_device_array(value):
            refuse_recorded(op, name, value)
            value = value if isinstance(value, torch.Tensor) else torch.from_dlpack(value)
            devices.add(value.device)
        elif getattr(value, "ndim", 0) >= fewest_axes:
            raise ValueError(f"{op}: {name} is in the CPU's memory and others are on a GPU; move it there")
        given[name] = value
    if len(devices) > 1:
        raise ValueError(f"{op}: the arrays are on {' and '.join(sorted(map(str, devices)))}; move them to one device")
    return given


def as_theirs(like: Any, tensor: Any) -> Any:
    """A result as an array of the library that `like` is of."""
    library = library_of(like)
    if library == "torch":
        return tensor
    module = import_module(MODULES.get(library, library))
    if not hasattr(module, "from_dlpack"):
        return tensor
    return module.from_dlpack(tensor.contiguous())


def _into(op: str, out: Any, found: Any) -> Any:
    import torch

    if not is_device_array(out):
        raise TypeError(f"{op}: out must be an array of the same GPU, not {shown(out)}")
    target = out if isinstance(out, torch.Tensor) else torch.from_dlpack(out)
    if isinstance(found, tuple) or target.shape != found.shape or target.dtype != found.dtype:
        raise ValueError(f"{op}: out has shape {tuple(target.shape)} and dtype {target.dtype}, the result another")
    target.copy_(found)
    return out
