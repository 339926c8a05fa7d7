"""The one primitive by which autograd records TF.js's kernels; the gradients come from the registry in `gradients.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from autograd.extend import defvjp_argnums, primitive

from pullback.tfjs.gradients import find_gradient
from pullback.tfjs.recorded import Output
from pullback.tfjs.tensors import FLOAT32, dtype_name, js_text


def _known(output: Output, *tensors: Any) -> Any:
    return output.outputs[output.place]


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
    output, tensors = args[0], dict(zip(args[0].names, args[1:], strict=True))
    outputs = [value if place == output.place else other for place, other in enumerate(output.outputs)]

    def back(g: Any) -> list[Any]:
        config = find_gradient(output.kernel)
        dys = [as_float32(g) if place == output.place else np.zeros(np.shape(y), FLOAT32) for place, y in enumerate(outputs)]
        found = config.grad_func(dys if len(dys) > 1 else dys[0], config.saved(tensors, outputs), output.attrs)
        names = [output.names[number - 1] for number in argnums]
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(
                f"Cannot backprop through input {missing[0]}. Available gradients found: {','.join(found)}. ({output.kernel})"
            )
        return [checked(output.kernel, name, tensors[name], found[name]()) for name in names]

    return back


record = primitive(_known)
defvjp_argnums(record, _gradients)
