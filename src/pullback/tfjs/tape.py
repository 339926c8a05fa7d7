"""The one primitive by which autograd records TF.js's kernels; the gradients come from the registry in `gradients.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from autograd.extend import defvjp_argnums, primitive

from pullback.tfjs.gradients import find_gradient
from pullback.tfjs.recorded import KernelCall
from pullback.tfjs.tensors import FLOAT32, dtype_name, js_text


def _run(call: KernelCall, *tensors: Any) -> Any:
    return call.run(*tensors)


def checked(kernel: str, name: str, tensor: Any, gradient: Any) -> Any:
    """A gradient as TF.js demands it: float32, and of its input's shape."""
    if gradient.dtype != FLOAT32:
        raise TypeError(
            f"Error in gradient for op {kernel}. The gradient of input '{name}' must have 'float32' dtype, "
            f"but has '{dtype_name(gradient.dtype)}'"
        )
    if gradient.shape != np.shape(tensor):
        raise ValueError(
            f"Error in gradient for op {kernel}. The gradient of input '{name}' has shape '{js_text(gradient.shape)}', "
            f"which does not match the shape of the input '{js_text(np.shape(tensor))}'"
        )
    return gradient


def as_float32(g: Any) -> Any:
    """Tensors are float32, whatever NumPy made of them on the way."""
    return g if g.dtype == FLOAT32 else g.astype(FLOAT32)


def _gradients(argnums: Sequence[int], value: Any, args: Sequence[Any], keywords: Any) -> Callable[[Any], list[Any]]:
    call, tensors = args[0], dict(zip(args[0].names, args[1:], strict=True))

    def back(g: Any) -> list[Any]:
        config = find_gradient(call.kernel)
        found = config.grad_func(as_float32(g), config.saved(tensors, value), call.attrs)
        names = [call.names[number - 1] for number in argnums]
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(
                f"Cannot backprop through input {missing[0]}. Available gradients found: {','.join(found)}. ({call.kernel})"
            )
        return [checked(call.kernel, name, tensors[name], found[name]()) for name in names]

    return back


record = primitive(_run)
defvjp_argnums(record, _gradients)
