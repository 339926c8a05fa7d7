"""Arrays of other libraries as NumPy arrays, or one sentence that says which module takes them. Imports none of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pullback.rules import Array

TORCH = "pullback.torch.functional (or pullback.torch.accelerate for a whole model)"


def library_of(value: Any) -> str:
    """The library that a value's type comes from: the first part of its module's name."""
    return type(value).__module__.partition(".")[0]


DLPACK_CUDA = 2  # kDLCUDA


def is_device_array(value: Any) -> bool:
    """Whether a value is an array in the memory of an NVIDIA GPU, of whatever library."""
    ask = getattr(value, "__dlpack_device__", None)
    if ask is None or type(value) is np.ndarray:
        return False
    try:
        return int(ask()[0]) == DLPACK_CUDA
    except Exception:  # what cannot say where it is, such as an array that is traced, is told by the op's own checks
        return False


def any_device_array(values: Iterable[Any]) -> bool:
    return any(map(is_device_array, values))


def refuse_recorded(op: str, name: str, value: Any) -> None:
    """TypeError for an array whose operations its own library records: as a NumPy array it would leave that record."""
    library = library_of(value)
    if library == "jax" and type(value).__name__.endswith("Tracer"):
        raise TypeError(f"{op}: {name} is a JAX array that jit, grad or vmap traces; call pullback.jax.{op} instead")
    if library == "torch" and getattr(value, "requires_grad", False):
        raise TypeError(
            f"{op}: {name} is a PyTorch tensor that requires grad, which would be lost here; use {TORCH}, or pass {name}.detach()"
        )


def as_numpy(op: str, name: str, value: Any) -> Array:
    """np.asarray, which reads all but those objects that offer nothing else than `__dlpack__`."""
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return _from_dlpack(op, name, value)
    try:
        return np.asarray(value)
    except TypeError as error:
        if library_of(value) == "torch":  # on a GPU, or of a type that NumPy does not have
            raise TypeError(
                f"{op}: {name} is a PyTorch tensor that NumPy cannot read ({_first_line(error)}); use {TORCH}, or convert it"
            ) from None
        raise TypeError(f"{op}: {name} cannot be read as an array: {_first_line(error)}") from None


def _from_dlpack(op: str, name: str, value: Any) -> Array:
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"{op}: {name} offers only __dlpack__, which NumPy cannot read: {_first_line(error)}; copy it to the CPU's memory"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:160]
