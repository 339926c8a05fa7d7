"""Arrays in the memory of a GPU: what they are, as PyTorch's tensors over the same memory, and results of the caller's kind.

Whoever has such an array has imported its library; PyTorch, which is our allocator and knows the streams, is imported with the
first of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

DLPACK_CUDA = 2  # kDLCUDA
NEEDS = "arrays of a GPU need PyTorch with CUDA, and Triton: pip install 'pullback[cuda]'"


def is_device_array(value: Any) -> bool:
    """Whether a value is an array in the memory of an NVIDIA GPU, of whatever library."""
    ask = getattr(value, "__dlpack_device__", None)
    if ask is None or type(value) is np.ndarray:
        return False
    try:
        return int(ask()[0]) == DLPACK_CUDA
    except Exception:  # what cannot say where it is (a traced array) is looked at by the checks of the op
        return False


def any_device_array(values: Iterable[Any]) -> bool:
    return any(map(is_device_array, values))


def as_tensor(value: Any) -> torch.Tensor:
    """A tensor over the array's memory, ready on the current stream."""
    try:
        import torch
    except ImportError:
        raise ImportError(NEEDS) from None
    return value if isinstance(value, torch.Tensor) else torch.from_dlpack(value)


def result_like(value: Any, tensor: torch.Tensor) -> Any:
    """A result as an array of the library that `value` is of."""
    library = type(value).__module__.partition(".")[0]
    if library == "torch":
        return tensor
    dense = tensor.contiguous()
    if library == "jaxlib":
        library = "jax.dlpack"
    try:
        return import_module(library).from_dlpack(dense)
    except (ImportError, AttributeError):
        return dense
