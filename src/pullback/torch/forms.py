"""What the functional forms share: their names, errors that bear them, and calls that a tensor or a mode takes over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function

from pullback.torch.autograd import call


def called(function: str, op: str, *tensors: torch.Tensor, **keywords: Any) -> Any:
    """An op, whose errors bear the name of our function."""
    try:
        return call(op, *tensors, **keywords)
    except ValueError as error:
        raise ValueError(f"{function}: {str(error).removeprefix(f'{op}: ')}") from None


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"torch.nn.functional.{name}, on our kernels."
    return function


def elsewhere(function: Callable[..., Any], given: tuple[Any, ...], tensors: int) -> Any:
    """A call that one of its tensors takes over, as PyTorch's protocol `__torch_function__` has it: torch.fx, for example."""
    return handle_torch_function(function, given[:tensors], *given)
