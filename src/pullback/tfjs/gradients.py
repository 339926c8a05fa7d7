"""TF.js's gradient registry and what is in it; outside `quirks()` also the gradients that TF.js lacks.

In quirks a rounding mode is lost, dilated convolutions are refused and second derivatives are not found, as upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.forking import FRONT_END, lock_free_in_children
from pullback.registry import KernelError
from pullback.tfjs.configs import as_config
from pullback.tfjs.geometry import per_axis
from pullback.tfjs.kernels_relu import slope
from pullback.tfjs.quirks import in_quirks
from pullback.tfjs.recorded import run_recorded
from pullback.tfjs.tensors import FLOAT32, js_text
from pullback.tracing import plain

Attrs = Mapping[str, Any]
Thunks = dict[str, Callable[[], Any]]
GradFunc = Callable[[Any, list[Any], Attrs], Thunks]


@dataclass(frozen=True)
class GradConfig:
    """A kernel's gradient: grad_func(dy, saved, attrs) gives a function for each input, called where its gradient is wanted.

    dy is a list for a kernel with several outputs. `saved`: the inputs named in inputs_to_save (all, with save_all_inputs), then
    the outputs marked in outputs_to_save.
    """

    kernel_name: str
    grad_func: GradFunc
    inputs_to_save: Sequence[str] = ()
    outputs_to_save: Sequence[bool] = ()
    save_all_inputs: bool = False

    def saved(self, inputs: Mapping[str, Any], outputs: Sequence[Any]) -> list[Any]:
        names = tuple(inputs) if self.save_all_inputs else self.inputs_to_save
        kept = [each for each, keep in zip(outputs, self.outputs_to_save, strict=False) if keep]
        return [*(inputs[name] for name in names), *kept]


_lock = lock_free_in_children(FRONT_END)
_gradients: dict[str, GradConfig] = {}
_beyond: dict[str, GradConfig] = {}


def register_gradient(config: GradConfig | Mapping[str, Any]) -> None:
    """Give a kernel its gradient, in place of the one it may have.

    As in TF.js the config may be a dict: {"kernelName": ..., "inputsToSave": [...], "gradFunc": ...}.
    """
    config = as_config("register_gradient", GradConfig, config)
    with _lock:
        _gradients[config.kernel_name] = config


def get_gradient(kernel_name: str) -> GradConfig | None:
    """The kernel's gradient, or None; one that TF.js lacks is None in quirks."""
    with _lock:
        found = _gradients.get(kernel_name)
        return found if found is not None or in_quirks() else _beyond.get(kernel_name)


def unregister_gradient(kernel_name: str) -> None:
    """Remove a gradient; one that is not registered is an error."""
    with _lock:
        if _gradients.pop(kernel_name, None) is None:
            raise KernelError(f"The gradient '{kernel_name}' for backend is not registered")


def find_gradient(kernel_name: str) -> GradConfig:
    config = get_gradient(kernel_name)
    if config is None:
        raise KernelError(f"Cannot compute gradient: gradient function not found for {kernel_name}.")
    return config


def _add(kernel: str, saves: Sequence[str], grad_func: GradFunc, *, upstream: bool) -> None:
    (_gradients if upstream else _beyond)[kernel] = GradConfig(kernel, grad_func, saves)


def _mode_lost(attrs: Attrs) -> Attrs:
    """Upstream forgets the rounding mode on the way back, and with it the last row and column."""
    return {name: value for name, value in attrs.items() if name != "dimRoundingMode"} if in_quirks() else attrs


def _zeros(like: Any) -> Callable[[], Any]:
    """The gradient of what only chooses among numbers."""
    return lambda: np.zeros(np.shape(like), FLOAT32)


def _add_pool(pool: str, *, loses_mode: bool) -> None:
    """A pool (x), its gradient (dy, input) and its tangent (t, input), each linear in its first array."""
    grad, tangent = f"{pool}Grad", f"{pool}Tangent"

    def of_pool(dy: Any, saved: list[Any], attrs: Attrs) -> Thunks:
        kept = _mode_lost(attrs) if loses_mode else attrs
        return {"x": lambda: run_recorded(grad, {"dy": dy, "input": saved[0]}, kept)}

    def of_grad(g: Any, saved: list[Any], attrs: Attrs) -> Thunks:
        return {"dy": lambda: run_recorded(tangent, {"t": g, "input": saved[0]}, attrs), "input": _zeros(saved[0])}

    def of_tangent(dy: Any, saved: list[Any], attrs: Attrs) -> Thunks:
        return {"t": lambda: run_recorded(grad, {"dy": dy, "input": saved[0]}, attrs), "input": _zeros(saved[0])}

    _add(pool, ["x"], of_pool, upstream=True)
    _add(grad, ["input"], of_grad, upstream=False)
    _add(tangent, ["input"], of_tangent, upstream=False)


@dataclass(frozen=True)
class _Convolution:
    """A convolution and its two gradients, each bilinear: the derivatives of each are the other two."""

    forward: str
    of_input: str
    of_filter: str
    undilated: bool = False  # its gradients take no dilations

    def run_forward(self, x: Any, filter: Any, attrs: Attrs) -> Any:
        steps = {**attrs, "dilations": 1} if self.undilated else attrs
        return run_recorded(self.forward, {"x": x, "filter": filter}, steps)

    def run_of_input(self, dy: Any, filter: Any, like: Any, attrs: Attrs) -> Any:
        return run_recorded(self.of_input, {"dy": dy, "filter": filter}, {**attrs, "inputShape": list(np.shape(like))})

    def run_of_filter(self, x: Any, dy: Any, like: Any, attrs: Attrs) -> Any:
        return run_recorded(self.of_filter, {"x": x, "dy": dy}, {**attrs, "filterShape": list(np.shape(like))})

    def gradient(self, dy: Any, saved: list[Any], attrs: Attrs) -> Thunks:
        x, weights = saved
        return {
            "x": lambda: self.run_of_input(dy, weights, x, attrs),
            "filter": lambda: self.run_of_filter(x, dy, weights, attrs),
        }

    def gradient_of_input_gradient(self, g: Any, saved: list[Any], attrs: Attrs) -> Thunks:
        dy, weights = saved
        return {
            "dy": lambda: self.run_forward(g, weights, attrs),
            "filter": lambda: self.run_of_filter(g, dy, weights, attrs),
        }

    def gradient_of_filter_gradient(self, g: Any, saved: list[Any], attrs: Attrs) -> Thunks:
        x, dy = saved
        return {"x": lambda: self.run_of_input(dy, g, x, attrs), "dy": lambda: self.run_forward(x, g, attrs)}


def _add_convolution(plain: _Convolution, dilated: _Convolution, refusal: str, *, loses_mode: bool = False) -> None:
    rank = 3 if plain.forward == "Conv3D" else 2

    def gradient(dy: Any, saved: list[Any], attrs: Attrs) -> Thunks:
        if max(per_axis(plain.forward, "dilations", attrs["dilations"], rank)) == 1:
            return plain.gradient(dy, saved, _mode_lost(attrs) if loses_mode else attrs)
        if in_quirks():
            raise ValueError(f"Error in gradient of {refusal}. Got dilations '{js_text(attrs['dilations'])}'")
        return dilated.gradient(dy, saved, attrs)

    _add(plain.forward, ["x", "filter"], gradient, upstream=True)
    for each in (dilated, plain):  # the same one for the depthwise convolution, whose gradients know dilations
        _add(each.of_input, ["dy", "filter"], each.gradient_of_input_gradient, upstream=each.of_input == "Conv2DBackpropInput")
        _add(each.of_filter, ["x", "dy"], each.gradient_of_filter_gradient, upstream=False)


def _dilation2d_gradient(dy: Any, saved: list[Any], attrs: Attrs) -> Thunks:
    inputs = {"x": saved[0], "filter": saved[1], "dy": dy}
    return {
        "x": lambda: run_recorded("Dilation2DBackpropInput", inputs, attrs),
        "filter": lambda: run_recorded("Dilation2DBackpropFilter", inputs, attrs),
    }


def _relu_gradient(dy: Any, saved: list[Any], attrs: Attrs) -> Thunks:
    def of_x() -> Any:
        with np.errstate(invalid="ignore"):  # an infinite dy times a slope of 0
            return dy * slope(plain(saved[0]))

    return {"x": of_x}


def _argmax_gradient(dys: Any, saved: list[Any], attrs: Attrs) -> Thunks:
    return {"x": lambda: run_recorded("MaxPoolGrad", {"dy": dys[0], "input": saved[0]}, attrs)}


for _pool, _loses in (("MaxPool", True), ("AvgPool", True), ("MaxPool3D", False), ("AvgPool3D", False)):
    _add_pool(_pool, loses_mode=_loses)
_add_convolution(
    _Convolution("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", undilated=True),
    _Convolution("Conv2D", "DilatedConv2DBackpropInput", "DilatedConv2DBackpropFilter"),
    "conv2D: dilation rates greater than 1 are not yet supported in gradients",
    loses_mode=True,
)
_add_convolution(
    _Convolution("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2", undilated=True),
    _Convolution("Conv3D", "DilatedConv3DBackpropInput", "DilatedConv3DBackpropFilter"),
    "conv3D: dilation rates greater than 1 are not yet supported in gradients",
)
_depthwise = _Convolution("DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter")
_add_convolution(_depthwise, _depthwise, "depthwiseConv2dNative: dilation rates greater than 1 are not yet supported")
_add("Dilation2D", ["x", "filter"], _dilation2d_gradient, upstream=True)
_add("Relu", ["x"], _relu_gradient, upstream=True)
_add("MaxPoolWithArgmax", ["x"], _argmax_gradient, upstream=False)
