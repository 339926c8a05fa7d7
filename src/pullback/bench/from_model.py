"""The cases of a PyTorch model: every distinct convolution and pooling of its forward."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from pullback.bench.cases import Case, parse_case
from pullback.bench.peers.base import package_missing
from pullback.window import Window

CALL = re.compile(r"(conv|max_pool|avg_pool|adaptive_avg_pool|adaptive_max_pool)([123])d(_with_indices)?")
ALIKE = re.compile(r"(conv_transpose|fractional_max_pool|lp_pool|max_unpool)[123]d.*")
ARGUMENTS = {
    "conv": ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    "max_pool": ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    "avg_pool": ("input", "kernel_size", "stride", "padding", "ceil_mode"),
    "adaptive_avg_pool": ("input", "output_size"),
    "adaptive_max_pool": ("input", "output_size"),
}


class NotTimedError(Exception):
    """A call that the benchmark has no op for; the text says which."""


def find_cases(spec: str) -> tuple[list[Case], Counter[str]]:
    """The cases of `module:function`, which returns a model and its inputs, and what had to be left out, with how many calls."""
    model, inputs = _load(spec)
    found: dict[str, Case] = {}
    left_out: Counter[str] = Counter()
    for name, arguments in _recorded(model, inputs):
        try:
            case = _case(name, arguments)
        except NotTimedError as reason:
            left_out[str(reason)] += 1
            continue
        families = (*found[case.name].families, *case.families) if case.name in found else case.families
        found[case.name] = replace(case, families=tuple(dict.fromkeys(families)))
    if not found:
        raise ValueError(f"--from {spec}: the forward has no convolution or pooling that can be timed")
    return list(found.values()), left_out


def _load(spec: str) -> tuple[Any, Any]:
    module, _, function = spec.partition(":")
    why = package_missing("torch", "torch")
    if why is not None:
        raise ValueError(f"--from {spec}: {why}")
    if not module or not function:
        raise ValueError(f"--from {spec}: give a module and a function in it, as in mymodel:make")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where the user's module lies, as `python -m` would have it
    try:
        make = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name != module:  # one that the user's module misses
            raise
        raise ValueError(f"--from {spec}: there is no module {module!r} here or installed") from None
    except AttributeError:
        raise ValueError(f"--from {spec}: the module {module!r} has no {function!r}") from None
    made = make()
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise ValueError(f"--from {spec}: the function must return the model and its inputs, two things")
    return made[0], made[1]


def _recorded(model: Any, inputs: Any) -> list[tuple[str, dict[str, Any]]]:
    """The calls of convolution and pooling in model(inputs): the function's name and its arguments by name."""
    torch: Any = import_module("torch")
    calls: list[tuple[str, dict[str, Any]]] = []

    class Recorder(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if match := CALL.fullmatch(name):
                calls.append((name, {**dict(zip(ARGUMENTS[match[1]], args, strict=False)), **(kwargs or {})}))
            elif ALIKE.fullmatch(name):
                calls.append((name, {}))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Recorder():
        if isinstance(inputs, dict):
            model(**inputs)
        elif isinstance(inputs, (tuple, list)):
            model(*inputs)
        else:
            model(inputs)
    return calls


def _case(name: str, given: dict[str, Any]) -> Case:
    match = CALL.fullmatch(name)
    if match is None:
        raise NotTimedError(f"{name}, for which the benchmark has no op")
    kind, rank = match[1], int(match[2])
    shape = tuple(int(size) for size in given["input"].shape)
    batch, channels, *size = shape if len(shape) == rank + 2 else (1, *shape)
    entry: dict[str, Any] = {"batch": batch, "size": size, "padding": _plain(given.get("padding", 0), rank)}
    entry["dilation"] = _plain(given.get("dilation", 1), rank)
    if kind == "conv":
        c_out, _, *kernel = (int(length) for length in given["weight"].shape)
        entry |= {"stride": _plain(given.get("stride", 1), rank), "groups": given.get("groups", 1)}
        return replace(parse_case("conv", {**entry, "c_in": channels, "c_out": c_out, "kernel": kernel}), families=("conv",))
    if kind.startswith("adaptive"):
        kernel = _adaptive(name, given["output_size"], size)
        entry["stride"] = kernel
    else:
        kernel = _plain(given["kernel_size"], rank)
        entry["stride"] = _plain(given.get("stride") or kernel, rank)
    family = "max" if "max" in kind else "avg"
    case = parse_case("pool", {**entry, "channels": channels, "window": kernel})
    if given.get("ceil_mode") and _rounded_up(case.window) != case.window.output_size:
        raise NotTimedError(f"{name} whose ceil_mode adds a window")
    return replace(case, families=(family,))


def _plain(value: Any, rank: int) -> Any:
    """A name, or one number for each axis."""
    if isinstance(value, str):
        return value
    numbers = [int(entry) for entry in value] if isinstance(value, Sequence) else [int(value)]
    return numbers * rank if len(numbers) == 1 else numbers


def _adaptive(name: str, wanted: Any, size: list[int]) -> list[int]:
    """The window of an adaptive pooling, where all its windows are alike."""
    outputs = [
        n if o is None else int(o)
        for o, n in zip(wanted if isinstance(wanted, Sequence) else [wanted] * len(size), size, strict=True)
    ]
    if any(n % o for n, o in zip(size, outputs, strict=True)):
        raise NotTimedError(f"{name} whose windows are not all alike")
    return [n // o for n, o in zip(size, outputs, strict=True)]


def _rounded_up(w: Window) -> tuple[int, ...]:
    pads = list(zip(w.pad_low, w.pad_high, strict=True))
    return Window.make(w.input_size, w.kernel, w.stride, w.dilation, pads, "ceil").output_size
