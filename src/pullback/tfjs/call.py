"""One call of a kernel: its tensors and attributes, checked as they are asked for, and the way down to pullback's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from pullback import registry as core
from pullback.ops.replay import run_translated, step
from pullback.problem import AnyProblem, Problem
from pullback.rules import Array
from pullback.shown import shown
from pullback.tfjs.attributes import check_attributes
from pullback.tfjs.geometry import POSITIVE
from pullback.tfjs.quirks import in_quirks
from pullback.tfjs.tensors import as_tensor

CPU, REFERENCE = "cpu", core.REFERENCE


class KernelFunc(Protocol):
    """A kernel as TF.js calls it: tensors by name, attributes by their camelCase names, and the backend it runs for."""

    def __call__(self, *, inputs: Mapping[str, Any], attrs: Mapping[str, Any], backend: Any = None) -> Any: ...


@dataclass(frozen=True)
class BuiltinBackend:
    """What the built-in backends' factories make: "cpu" runs pullback's default dispatch, "reference" its reference kernels."""

    name: str


@dataclass(frozen=True)
class Call:
    """The inputs and attributes of one call; `label` is how the kernel calls itself when it refuses complex numbers."""

    kernel: str
    label: str
    inputs: Mapping[str, Any]
    attrs: Mapping[str, Any]

    def tensor(self, name: str, rank: int | None, *, complex_allowed: bool = False) -> Array:
        """A required input of a required rank."""
        value = self.inputs.get(name)
        if value is None:
            raise TypeError(f"{self.kernel}: the input {shown(name)} is missing")
        array = as_tensor(self.kernel, name, value)
        if array.dtype.kind == "c" and not complex_allowed:
            raise TypeError(f"{self.label} does not support complex64 tensors in the CPU backend.")
        if rank is not None and array.ndim != rank:
            raise ValueError(f"{self.kernel}: {name} has shape {array.shape} but must have rank {rank} ({POSITIVE})")
        return array

    def attr(self, name: str) -> Any:
        """An attribute, or None where it is not given (undefined)."""
        return self.attrs.get(name)


KERNELS: dict[str, KernelFunc] = {}


def _is_reference(kernel: str, backend: Any) -> bool:
    name = backend.name if isinstance(backend, BuiltinBackend) else backend
    if isinstance(name, str) and name not in (CPU, REFERENCE):
        raise ValueError(f"{kernel}: backend is {shown(name)}; the built-in ones are {shown(CPU)} and {shown(REFERENCE)}")
    return bool(name == REFERENCE)


def check_mappings(kernel: str, inputs: Any, attrs: Any) -> None:
    for argument, value in (("inputs", inputs), ("attrs", attrs)):
        if not isinstance(value, Mapping):
            raise TypeError(f"{kernel}: {argument} must be a mapping of names to values, not {shown(value)}")


def kernel(
    name: str, attributes: tuple[str, ...], *, label: str | None = None, among: dict[str, KernelFunc] = KERNELS
) -> Callable[[Callable[[Call], Any]], KernelFunc]:
    """Make a function of a Call into the kernel of this name, with these attributes, for every built-in backend."""

    def decorate(body: Callable[[Call], Any]) -> KernelFunc:
        def run(*, inputs: Mapping[str, Any], attrs: Mapping[str, Any], backend: Any = None) -> Any:
            if type(inputs) is not dict or type(attrs) is not dict:
                check_mappings(name, inputs, attrs)

            def translate() -> Any:
                if not in_quirks():
                    check_attributes(name, attributes, attrs)
                return body(Call(name, label or name[0].lower() + name[1:], inputs, attrs))

            if in_quirks():  # whose answers may hang on values
                remembered = translate
            else:
                remembered = partial(run_translated, (body,), inputs, (attrs,), translate)
            if not _is_reference(name, backend):
                return remembered()
            with core.backend(REFERENCE):
                return remembered()

        run.__name__ = run.__qualname__ = body.__name__
        run.__module__, run.__doc__ = body.__module__, body.__doc__
        among[name] = run
        return run

    return decorate


def dispatch(problem: AnyProblem, *arrays: Array) -> Any:
    """Run a problem. Quirks promise upstream's bits, which are float64 sums rounded once: the reference kernels' sums."""
    if not in_quirks():
        return step(_silently, (core.chosen_run(problem), problem), *arrays)
    with core.backend(REFERENCE):
        return _silently(core.chosen_run(problem), problem, *arrays)


def _silently(run: Callable[..., Any], problem: AnyProblem, *arrays: Array) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):  # as JavaScript's arithmetic is
        return run(problem, *arrays)


def fit_dy(call: Call, problem: Problem, dy: Array, read: Array) -> Array:
    """dy cut or filled to the output's shape, since TF.js reads only what it needs of a dy of another size.

    `read` masks the outputs whose dy is read; one of these missing from dy is an error.
    """
    shape = problem.output_shape
    if dy.shape == shape:
        return dy
    needed = np.broadcast_to(read, shape)
    for axis, (have, want) in enumerate(zip(dy.shape, shape, strict=True)):
        beyond = [slice(None)] * axis + [slice(have, None)]
        if have < want and needed[tuple(beyond)].any():
            raise ValueError(
                f"{call.kernel}: Requested out of range element of dy: its shape is {dy.shape} but the output's is {shape}"
            )
    common = tuple(slice(0, min(have, want)) for have, want in zip(dy.shape, shape, strict=True))
    if all(have >= want for have, want in zip(dy.shape, shape, strict=True)):
        return dy[common]
    fitted = np.zeros(shape, dy.dtype)
    fitted[common] = dy[common]
    return fitted


def touching(problem: Problem) -> Array:
    """Mask of the outputs whose window touches the input, to broadcast over the output's shape."""
    mask = problem.window.divisor("valid") > 0
    return mask[None, ..., None] if problem.layout == "channels_last" else mask[None, None]
