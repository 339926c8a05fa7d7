"""Replays TF.js's recorded gradients of ops (tf.grads) and refusals: in quirks its numbers and words, by default true gradients."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from pullback import golden, tfjs
from pullback.check.compare import attempt, close, identical, is_slope
from pullback.check.outcome import Outcome
from pullback.rules import Array
from pullback.tfjs import backprop_ops

GRADIENTS, REFUSALS = "Gradients", "OpErrors"
STEP = 2.0**-7  # of the difference quotients: below the distance of the recorded maxima

OPS: dict[str, Callable[..., Any]] = {
    "maxPool": tfjs.max_pool,
    "avgPool": tfjs.avg_pool,
    "maxPool3d": tfjs.max_pool3d,
    "avgPool3d": tfjs.avg_pool3d,
    "conv2d": tfjs.conv2d,
    "conv3d": tfjs.conv3d,
    "depthwiseConv2d": tfjs.depthwise_conv2d,
    "conv2dTranspose": tfjs.conv2d_transpose,
    "conv3dTranspose": tfjs.conv3d_transpose,
    "dilation2d": tfjs.dilation2d,
    "maxPoolGrad": backprop_ops.max_pool_grad,
    "maxPool3dGrad": backprop_ops.max_pool3d_grad,
    "avgPoolGrad": backprop_ops.avg_pool_grad,
    "conv2DBackpropFilter": backprop_ops.conv2d_backprop_filter,
    "conv3DBackpropFilter": backprop_ops.conv3d_backprop_filter,
}


def _ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def _custom(value: Callable[[Any], Any], gradient: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    return lambda: tfjs.grad(tfjs.custom_grad(lambda x, save: (value(x), gradient)))(_ones(2))


def _constant_loss() -> Any:
    return tfjs.variable_grads(lambda: _ones()[()], [tfjs.variable(_ones(2))])


def _frozen_loss() -> Any:
    frozen = tfjs.variable(_ones(2), trainable=False)
    return tfjs.variable_grads(lambda: frozen.value.sum(), [frozen])


def _through_argmax(x: Any) -> Any:
    return tfjs.max_pool_with_argmax(x, 2, 1, "valid")[0]


# The refusals that no list of arguments describes, by the names of their records.
SCENES: dict[str, Callable[[], Any]] = {
    "grad(f='notafunction')": lambda: tfjs.grad("notafunction"),  # type: ignore[arg-type]
    "grads(empty args)": lambda: tfjs.grads(lambda: _ones(2))([]),
    "grad(dy int32)": lambda: tfjs.grad(lambda x: x * x)(_ones(2), np.ones(2, np.int32)),
    "grad(f returns a non-tensor)": lambda: tfjs.grad(lambda x: 3)(_ones(2)),
    "grad(through maxPoolWithArgmax (no gradient registered))": lambda: tfjs.grad(_through_argmax)(_ones(1, 3, 3, 1)),
    "valueAndGrad(x is not a tensor)": lambda: tfjs.value_and_grad(lambda x: x * x)([1.0]),
    "valueAndGrads(args not tensors)": lambda: tfjs.value_and_grads(lambda x: x * x)([1.0]),
    "variableGrads(no trainable variables)": _frozen_loss,
    "variableGrads(no connection)": _constant_loss,
    "customGrad(f not a function)": lambda: tfjs.custom_grad(3),  # type: ignore[arg-type]
    "customGrad(value not a tensor)": _custom(lambda x: 3, lambda dy, saved: dy),
    "customGrad(wrong number of gradients)": _custom(lambda x: x * x, lambda dy, saved: [dy, dy]),
    "customGrad(gradient of the wrong shape)": _custom(lambda x: x * x, lambda dy, saved: _ones(3)),
    "runKernel(unknown kernel)": lambda: tfjs.run_kernel("Nope", {}),
    "unregisterGradient(unknown)": lambda: tfjs.unregister_gradient("Nope"),
}

# The functions of the records of second derivatives: the gradient of the sum of squares of what an op gives.
_SECOND: dict[str, Callable[[Any], Any]] = {
    "maxPool": lambda x: tfjs.max_pool(x, 2, 1, "valid"),
    "avgPool": lambda x: tfjs.avg_pool(x, 2, 1, "valid"),
}


def can_run() -> bool:
    """Gradients need the package autograd."""
    return find_spec("autograd") is not None


def recorded() -> int:
    return len(golden.load("tfjs", GRADIENTS)) + len(golden.load("tfjs", REFUSALS))


def size(every: int = 1) -> int:
    return sum(len(golden.load("tfjs", file)[::every]) for file in (GRADIENTS, REFUSALS)) if can_run() else 0


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def function(case: dict[str, Any]) -> Callable[..., Any]:
    """The function that was differentiated in a record of gradients."""
    if not case["name"].startswith("second order"):
        keywords = {_snake(name): value for name, value in case["attrs"].items()}
        return lambda *tensors: OPS[case["op"]](*tensors, **keywords)
    if case["op"] in _SECOND:
        forward = _SECOND[case["op"]]
    elif case["wrt"] == ["x"]:
        weights = _ones(2, 2, 1, 1)
        forward = lambda x: tfjs.conv2d(x, weights, 1, "valid")  # noqa: E731
    else:
        image = _ones(1, 3, 3, 1)
        forward = lambda f: tfjs.conv2d(image, f, 1, "valid")  # noqa: E731
    return tfjs.grad(lambda v: (forward(v) * forward(v)).sum())


def tensors(case: dict[str, Any]) -> tuple[list[Array], Array | None]:
    """The differentiated tensors of a record, and its dy where it has one."""
    arrays = golden.arrays(case["inputs"])
    return [arrays[name] for name in case["wrt"]], arrays.get("dy")


def arguments(text: str) -> list[Any]:
    """The arguments of a recorded call: ones[1,4,4,1]:int32, 2, "valid", undefined."""
    found: list[Any] = []
    for part in re.split(r", (?![^\[]*\])", text):
        made = re.fullmatch(r"ones(\[[\d,]*\])(?::(\w+))?", part)
        if made:
            found.append(np.ones(json.loads(made[1]), made[2] or "float32"))
        else:
            found.append(None if part == "undefined" else json.loads(part))
    return found


def refusal(case: dict[str, Any]) -> Callable[[], Any]:
    """The call that was refused in a record of refusals."""
    return SCENES[case["name"]] if case["name"] in SCENES else lambda: OPS[case["op"]](*arguments(case["args"]))


def is_true(case: dict[str, Any], found: list[Array]) -> bool:
    """Whether these are the gradients of the recorded function, by difference quotients."""
    f, (xs, dy) = function(case), tensors(case)
    given = np.ones(np.shape(f(*xs)), np.float32) if dy is None else dy

    def along(place: int) -> Callable[[Array], Array]:
        return lambda v: np.asarray(f(*(v if i == place else x for i, x in enumerate(xs))))

    return all(is_slope(along(place), xs[place].astype(np.float32), given, g, STEP) for place, g in enumerate(found))


def _judge_gradient(case: dict[str, Any]) -> Outcome:
    def outcome(verdict: Any, detail: str = "") -> Outcome:
        return Outcome("tf.grads", case["name"], verdict, detail)

    xs, dy = tensors(case)

    def run() -> list[Array]:
        return tfjs.grads(function(case))(xs, dy)

    with tfjs.quirks():
        as_upstream, refused = attempt(run)
    ours, error = attempt(run)
    if "error" in case:
        if str(refused) != case["error"]:
            return outcome("failed", f"quirks mode does not say: {case['error']}")
        if error is not None:
            return outcome("refused") if str(error) == case["error"] else outcome("failed", f"raised {error!r}")
        return outcome("mended", "finite difference") if is_true(case, ours) else outcome("failed", "not the gradient")
    if refused is not None or error is not None:
        return outcome("failed", f"raised {refused or error!r}")
    theirs = [golden.array(tensor) for tensor in case["outputs"]]
    if not all(identical(a, b) for a, b in zip(as_upstream, theirs, strict=True)):
        return outcome("failed", "quirks mode differs from upstream's answer")
    if all(close(a, b) for a, b in zip(ours, theirs, strict=True)):
        return outcome("equal")
    proved = is_true(case, ours) and not is_true(case, theirs)
    return outcome("mended", "finite difference") if proved else outcome("failed", "differs from upstream without a proof")


def _judge_refusal(case: dict[str, Any]) -> Outcome:
    call = refusal(case)
    with tfjs.quirks():
        _, as_upstream = attempt(call)
    _, error = attempt(call)
    # By default what TF.js merely lacks is there; whether it is right, the gradients above tell.
    lacking = "gradient function not found" in case["error"]
    if str(as_upstream) != case["error"] or (error is None) != lacking or (error is not None and str(error) != case["error"]):
        return Outcome("ops", case["name"], "failed", f"we say {as_upstream}, by default {error}")
    return Outcome("ops", case["name"], "refused")


def replay(every: int = 1) -> Iterator[Outcome]:
    if can_run():
        yield from map(_judge_gradient, golden.load("tfjs", GRADIENTS)[::every])
        yield from map(_judge_refusal, golden.load("tfjs", REFUSALS)[::every])
