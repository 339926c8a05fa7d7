"""TF.js's gradient functions, `grad` to `custom_grad`: its checks and messages around autograd's reverse mode.

They need the package autograd. Tensors are float32 in and out; f computes with the ops of `tfjs` and with `autograd.numpy`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pullback.tfjs.op_checks import ensure, is_tensor, operand
from pullback.tfjs.tensors import FLOAT32, dtype_name, js_text
from pullback.tfjs.variables import Variable, all_variables, recorded_as
from pullback.tracing import any_traced, plain

Function = Callable[..., Any]

_UNCONNECTED = (
    "Cannot compute gradient of y=f(x) with respect to x. Make sure that f computes y from x with recorded operations."
)


class ValueAndGrad(NamedTuple):
    """f's value and its gradient."""

    value: Any
    grad: Any


class ValueAndGrads(NamedTuple):
    """f's value and its gradients: a list, or of variables a dict by name."""

    value: Any
    grads: Any


def _check_function(f: Any, name: str, end: str = "") -> None:
    if not callable(f):
        raise TypeError(f"The f passed in {name}(f) must be a function{end}")


def _as_dy(name: str, dy: Any) -> Any:
    """A given dy as a float32 tensor; None stays None."""
    if dy is None:
        return None
    given = operand(name, "dy", dy, "numeric" if is_tensor(dy) else "float32")
    if dtype_name(given.dtype) != "float32":
        raise TypeError(f"dy must have 'float32' dtype, but has '{dtype_name(given.dtype)}'")
    return given


def _start(name: str, dy: Any, value: Any) -> Any:
    """The gradient to start from: dy, which must have the value's shape, or ones."""
    shape = np.shape(plain(value))
    if dy is None:
        return np.ones(shape, FLOAT32)
    ensure(
        dy.shape == shape,
        f"The dy passed in {name}(f)(x, dy) has shape {js_text(dy.shape)}, but f(x) has shape {js_text(shape)}",
    )
    return dy


def _as_float32(value: Any) -> Any:
    return value if value.dtype == FLOAT32 else value.astype(FLOAT32)


def _unwrapped(result: Any) -> Any:
    value = result.value if isinstance(result, Variable) else result
    ensure(is_tensor(value), "The result y returned by f() must be a tensor.")
    return value


def _differentiate(name: str, f: Function, xs: Sequence[Any], dy: Any) -> tuple[Any, list[Any]]:
    """f(*xs) and its gradients; every x must lead to the value."""
    from pullback.autograd import pull_back

    ensure(len(xs) > 0, "gradients() received an empty list of xs.")
    given = _as_dy(name, dy)
    value, back = pull_back(lambda *boxes: _unwrapped(f(*boxes)), xs)
    if back is None:
        raise ValueError(_UNCONNECTED)
    found = back(_start(name, given, value))
    for number, gradient in enumerate(found):
        ensure(gradient is not None, f"{_UNCONNECTED} (x number {number} is not used)")
    return value, [_as_float32(gradient) for gradient in found]


def grad(f: Function) -> Callable[..., Any]:
    """The function (x, dy=None) -> gradient of f(x); dy is ones by default."""
    _check_function(f, "grad")

    def gradient(x: Any, dy: Any = None) -> Any:
        return _differentiate("grad", f, [operand("tf.grad", "x", x)], dy)[1][0]

    return gradient


def grads(f: Function) -> Callable[..., list[Any]]:
    """The function (args, dy=None) -> list of the gradients of f(*args), one for each of the list `args`."""
    _check_function(f, "grads")

    def gradients(args: Sequence[Any], dy: Any = None) -> list[Any]:
        if not isinstance(args, (list, tuple)):
            raise TypeError("The args passed in grads(f)(args) must be an array of `Tensor`s or `TensorLike`s")
        xs = [operand("tf.grads", "args", value) for value in args]
        return _differentiate("grads", f, xs, dy)[1]

    return gradients


def value_and_grad(f: Function) -> Callable[..., ValueAndGrad]:
    """The function (x, dy=None) -> (f(x), its gradient); x and dy must be tensors."""
    _check_function(f, "valueAndGrad")

    def both(x: Any, dy: Any = None) -> ValueAndGrad:
        ensure(is_tensor(x), "The x passed in valueAndGrad(f)(x) must be a tensor")
        ensure(dy is None or is_tensor(dy), "The dy passed in valueAndGrad(f)(x, dy) must be a tensor")
        value, (gradient,) = _differentiate("valueAndGrad", f, [operand("valueAndGrad", "x", x)], dy)
        return ValueAndGrad(value, gradient)

    return both


def value_and_grads(f: Function) -> Callable[..., ValueAndGrads]:
    """The function (args, dy=None) -> (f(*args), list of its gradients); args and dy must be tensors."""
    _check_function(f, "valueAndGrads")

    def both(args: Sequence[Any], dy: Any = None) -> ValueAndGrads:
        ensure(
            isinstance(args, (list, tuple)) and all(map(is_tensor, args)),
            "The args passed in valueAndGrads(f)(args) must be array of tensors",
        )
        ensure(dy is None or is_tensor(dy), "The dy passed in valueAndGrads(f)(args, dy) must be a tensor")
        xs = [operand("valueAndGrads", "args", value) for value in args]
        return ValueAndGrads(*_differentiate("valueAndGrads", f, xs, dy))

    return both


def variable_grads(f: Callable[[], Any], var_list: Sequence[Variable] | None = None) -> ValueAndGrads:
    """f() and its gradients by the names of the variables; without a list, of every trainable variable that is used.

    A variable of the list that is not trainable has None.
    """
    from pullback.autograd import pull_back

    _check_function(f, "variableGrads")
    listed = var_list is not None
    ensure(
        var_list is None or (isinstance(var_list, (list, tuple)) and all(isinstance(v, Variable) for v in var_list)),
        "The varList passed in variableGrads(f, varList) must be an array of variables",
    )
    variables = list(var_list) if var_list is not None else all_variables()
    trained = [v for v in variables if v.trainable]
    ensure(
        bool(trained),
        "variableGrads() expects at least one of the input variables to be trainable, "
        f"but none of the {len(variables)} variables is trainable.",
    )

    def loss(*values: Any) -> Any:
        with recorded_as(trained, values):
            return _unwrapped(f())

    value, back = pull_back(loss, [v.value for v in trained])
    if back is None:
        raise ValueError(
            "Cannot find a connection between any variable and the result of the loss function y=f(x). "
            "Please make sure the operations that use variables are inside the function f passed to minimize()."
        )
    rank = np.ndim(plain(value))
    ensure(rank == 0, f"The f passed in variableGrads(f) must return a scalar, but it returned a rank-{rank} tensor")
    found = dict(zip([v.name for v in trained], back(np.ones((), FLOAT32)), strict=True))
    by_name = {name: _as_float32(gradient) for name, gradient in found.items() if gradient is not None}
    unused = {v.name: None for v in variables if not v.trainable} if listed else {}
    return ValueAndGrads(value, by_name | unused)


def custom_grad(f: Function) -> Function:
    """A function with a gradient of your own: f(*tensors, save) returns (value, grad_func).

    grad_func(dy, saved) gets the tensors given to save([...]) and returns one gradient, or a list with one for each input.
    """
    _check_function(f, "customGrad", ".")

    def op(*inputs: Any) -> Any:
        ensure(all(map(is_tensor, inputs)), "The args passed in customGrad(f)(x1, x2,...) must all be tensors")
        tensors = [operand("customGrad", "x", value) for value in inputs]
        if not any_traced(tensors):
            return _run_custom(f, tensors)[0]
        from pullback.tfjs.tape_custom import CustomCall, record_custom

        return record_custom(CustomCall(lambda values: _run_custom(f, values)), *tensors)

    return op


def _run_custom(f: Function, tensors: Sequence[Any]) -> tuple[Any, Callable[[Any], list[Any]]]:
    """f's value, and its checked gradient function of dy alone."""
    saved: list[Any] = []
    where = "The function f passed in customGrad(f) must return an object where"
    result = f(*tensors, saved.extend)
    ensure(isinstance(result, tuple) and len(result) == 2 and is_tensor(result[0]), f"{where} `obj.value` is a tensor")
    value, grad_func = result
    ensure(callable(grad_func), f"{where} `obj.gradFunc` is a function.")

    def gradient(dy: Any) -> list[Any]:
        found = grad_func(dy, saved)
        listed = list(found) if isinstance(found, (list, tuple)) else [found]
        returns = f"{where} `obj.gradFunc` is a function that returns"
        ensure(len(listed) == len(tensors), f"{returns} the same number of tensors as inputs passed to f(...).")
        ensure(all(map(is_tensor, listed)), f"{returns} a list of only tensors.")
        return listed

    return value, gradient
