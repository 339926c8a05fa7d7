"""Replays the recorded ONNX Runtime kernels: in quirks mode our answer must be theirs; by default theirs or a proved one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pullback import golden, ort
from pullback.check.compare import attempt, close, identical, is_adjoint
from pullback.check.outcome import Outcome
from pullback.rules import Array

FILES = ("maxpool_grad", "averagepool_grad", "conv_grad")
Case = dict[str, Any]
Results = dict[str, Array]


def size(every: int = 1) -> int:
    return 2 * sum(len(golden.load("ort", file)[::every]) for file in FILES) + len(golden.load("ort", "errors")[::every])


def _max_pool(case: Case, x: Results) -> Results:
    y, indices = ort.run_kernel("MaxPool", {"X": x["X"]}, case["attrs"], opset=case["opset"])
    return {"Y": y, "Indices": indices}


def _max_pool_grad(case: Case, x: Results, indices: Array) -> Results:
    inputs = {"dY": x["dY"], "Indices": indices}
    return {"dX": ort.run_kernel("MaxPoolGrad", inputs, case["attrs"], output_shape=x["X"].shape, opset=case["opset"])}


def _average_pool(case: Case, x: Results) -> Results:
    return {"Y": ort.run_kernel("AveragePool", {"X": x["X"]}, case["attrs"], opset=case["opset"])}


def _average_pool_grad(case: Case, x: Results) -> Results:
    options = {"output_shape": x["X"].shape, "opset": case["opset"]}
    return {"dX": ort.run_kernel("AveragePoolGrad", {"dY": x["dY"]}, case["attrs"], **options)}


def _conv(case: Case, x: Results) -> Results:
    inputs = {name: array for name, array in x.items() if name in ("X", "W", "B")}
    return {"Y": ort.run_kernel("Conv", inputs, case["attrs"], opset=case["opset"])}


def _conv_grad(case: Case, x: Results, wanted: tuple[str, ...]) -> Results:
    inputs = {name: x[name] for name in ("dY", "X", "W")}
    found = ort.run_kernel("ConvGrad", inputs, case["attrs"], opset=case["opset"], outputs=wanted)
    return {name: array for name, array in zip(("dX", "dW", "dB"), found, strict=True) if name in wanted}


def _same(kernel: str, ours: Results, theirs: Results) -> bool:
    same = identical if kernel == "MaxPool" else close
    return all(name in ours and same(ours[name], theirs[name]) for name in theirs)


def _judge(
    kernel: str,
    case: Case,
    run: Callable[[], Results],
    theirs: Results,
    prove: Callable[[Results], str | None],
    quirk_run: Callable[[], Results] | None = None,
) -> Outcome:
    """Compare one kernel's run in both modes with the record; `prove` names the proof of a differing default."""
    name = case["name"]
    with ort.quirks():
        as_upstream, quirk_error = attempt(quirk_run or run)
    if quirk_error is not None:
        return Outcome(kernel, name, "failed", f"quirks mode raised {quirk_error!r}")
    exact = kernel in ("MaxPool", "MaxPoolGrad", "AveragePoolGrad")
    if not all((identical if exact else close)(as_upstream[key], theirs[key]) for key in theirs):
        return Outcome(kernel, name, "failed", "quirks mode differs from upstream's answer")
    ours, error = attempt(run)
    if error is not None:
        return Outcome(kernel, name, "failed", f"raised {error!r}")
    if _same(kernel, ours, theirs) and set(ours) == set(theirs):
        return Outcome(kernel, name, "equal")
    proof = prove(ours)
    if proof is None:
        return Outcome(kernel, name, "failed", "differs from upstream and no proof holds")
    if prove(theirs) is not None:
        return Outcome(kernel, name, "failed", "differs from upstream, whose answer passes the same proof")
    return Outcome(kernel, name, "mended", proof)


def _max_pool_outcomes(case: Case) -> Iterator[Outcome]:
    x, recorded = golden.arrays(case["inputs"]), golden.arrays(case["outputs"])
    truth = golden.arrays(case.get("true_outputs", {}))
    forward = {"Y": recorded["Y"], "Indices": recorded["Indices"]}
    size = x["X"].size

    def prove_forward(found: Results) -> str | None:
        """Every index points at a cell that holds the window's value."""
        flat = found["Indices"]
        if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < size:
            return None
        if not identical(x["X"].reshape(-1)[flat], found["Y"]):
            return None
        if "dX" in truth and not identical(_max_pool_grad(case, x, flat)["dX"], truth["dX"]):
            return None
        return "indices hit the maxima"

    yield _judge("MaxPool", case, lambda: _max_pool(case, x), forward, prove_forward)
    if "dX" not in recorded:
        with ort.quirks():
            _, quirk_error = attempt(lambda: _max_pool_grad(case, x, recorded["Indices"]))
        _, error = attempt(lambda: _max_pool_grad(case, x, recorded["Indices"]))
        refused = quirk_error is not None and error is not None
        detail = "" if refused else "an index out of range or a missing op was accepted"
        yield Outcome("MaxPoolGrad", case["name"], "refused" if refused else "failed", detail)
        return

    def prove_gradient(found: Results) -> str | None:
        return "recorded true gradient" if "dX" in truth and identical(found["dX"], truth["dX"]) else None

    # By default the gradient belongs to our own forward; in quirks mode to the recorded indices.
    yield _judge(
        "MaxPoolGrad",
        case,
        lambda: _max_pool_grad(case, x, _max_pool(case, x)["Indices"]),
        {"dX": recorded["dX"]},
        prove_gradient,
        lambda: _max_pool_grad(case, x, recorded["Indices"]),
    )


def _average_pool_outcomes(case: Case) -> Iterator[Outcome]:
    x, recorded = golden.arrays(case["inputs"]), golden.arrays(case["outputs"])

    def forward(v: Array) -> Array:
        """AveragePool by default; outputs of windows past the end, which only upstream keeps, are 0."""
        y = _average_pool(case, {"X": v})["Y"]
        return np.pad(y, [(0, want - have) for want, have in zip(x["dY"].shape, y.shape, strict=True)])

    def prove_forward(found: Results) -> str | None:
        """The forward is linear too: <Y, v> = <X, gradient of v> for the gradient that is proved below, and ONNX's size."""
        if found["Y"].shape != _average_pool(case, x)["Y"].shape:
            return None
        v = np.random.default_rng(1).standard_normal(found["Y"].shape).astype(np.float32)
        back = _average_pool_grad(case, {"X": x["X"], "dY": v})["dX"].astype(np.float64)
        left, right = float(np.sum(found["Y"].astype(np.float64) * v)), float(np.sum(back * x["X"]))
        return "adjoint" if abs(left - right) <= 1e-5 * float(np.sum(np.abs(back * x["X"]))) else None

    def prove_gradient(found: Results) -> str | None:
        return "adjoint" if is_adjoint(forward, x["dY"], found["dX"]) else None

    yield _judge("AveragePool", case, lambda: _average_pool(case, x), {"Y": recorded["Y"]}, prove_forward)
    yield _judge("AveragePoolGrad", case, lambda: _average_pool_grad(case, x), {"dX": recorded["dX"]}, prove_gradient)


def _conv_outcomes(case: Case) -> Iterator[Outcome]:
    x, recorded = golden.arrays(case["inputs"]), golden.arrays(case["outputs"])
    undefined = case.get("undefined_outputs") or []
    wanted = tuple(name for name in recorded if name != "Y")
    theirs = {name: recorded[name] for name in wanted if name not in undefined}
    no_bias = {name: array for name, array in x.items() if name != "B"}

    def prove(found: Results) -> str | None:
        dx_right = "dX" not in found or is_adjoint(lambda v: _conv(case, {**no_bias, "X": v})["Y"], x["dY"], found["dX"])
        dw_right = "dW" not in found or is_adjoint(lambda v: _conv(case, {**no_bias, "W": v})["Y"], x["dY"], found["dW"])
        return "adjoint" if dx_right and dw_right else None

    yield _judge("Conv", case, lambda: _conv(case, x), {"Y": recorded["Y"]}, lambda found: None)
    defined = tuple(theirs)
    yield _judge("ConvGrad", case, lambda: _conv_grad(case, x, wanted), theirs, prove, lambda: _conv_grad(case, x, defined))


def _declared_shape(case: Case) -> Any:
    shape = case["declared"].get("dX")
    return None if shape in (None, "noshape") else tuple(shape)


def _run_error_case(case: Case) -> list[Array]:
    op = case["op"]
    options: dict[str, Any] = {"opset": case["opset"]}
    if op in ("MaxPoolGrad", "AveragePoolGrad"):
        options["output_shape"] = _declared_shape(case)
    found = ort.run_kernel(op, golden.arrays(case["inputs"]), case["attrs"], **options)
    return [a for a in (found if isinstance(found, tuple) else (found,)) if a is not None]


def _error_outcome(case: Case) -> Outcome:
    """A recorded refusal, crash or odd-but-accepted input."""
    kernel = case["op"].removeprefix("com.microsoft.")
    with ort.quirks():
        as_upstream, quirk_error = attempt(lambda: _run_error_case(case))
    ours, error = attempt(lambda: _run_error_case(case))
    if "error" in case:
        if quirk_error is None:
            return Outcome(kernel, case["name"], "failed", "upstream refuses or crashes, quirks mode gave an answer")
        if error is not None:
            return Outcome(kernel, case["name"], "refused")
        wider = "Could not find an implementation" in case["error"].get("error", "")
        why = "dtype upstream lacks"
        return Outcome(
            kernel, case["name"], "mended" if wider else "failed", why if wider else "accepted what upstream refuses"
        )
    theirs = list(golden.arrays(case["outputs"]).values())
    if quirk_error is not None or not all(close(a, b) for a, b in zip(as_upstream, theirs, strict=False)):
        return Outcome(kernel, case["name"], "failed", f"quirks mode differs from upstream's answer ({quirk_error!r})")
    if error is None and all(close(a, b) for a, b in zip(ours, theirs, strict=False)):
        return Outcome(kernel, case["name"], "equal")
    return Outcome(kernel, case["name"], "undefined") if error is not None else _mended_error_case(case, ours[0])


def _mended_error_case(case: Case, ours: Array) -> Outcome:
    """Only a gradient whose attribute upstream loses may give another answer here."""
    x = golden.arrays(case["inputs"])
    if case["op"] == "AveragePoolGrad" and is_adjoint(
        lambda v: np.asarray(ort.run_kernel("AveragePool", {"X": v}, case["attrs"], opset=case["opset"])), x["dY"], ours
    ):
        return Outcome("AveragePoolGrad", case["name"], "mended", "adjoint")
    return Outcome(case["op"], case["name"], "failed", "differs from upstream and no proof holds")


def replay(every: int = 1) -> Iterator[Outcome]:
    for file, judge in zip(FILES, (_max_pool_outcomes, _average_pool_outcomes, _conv_outcomes), strict=True):
        for case in golden.load("ort", file)[::every]:
            yield from judge(case)
    for case in golden.load("ort", "errors")[::every]:
        yield _error_outcome(case)
