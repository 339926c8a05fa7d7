"""What a training step does between convolutions, on native kernels where there are any, else in NumPy.

Arrays of float32 and float64 run on the kernels of `pullback.cpu`, under the backend "cpu" and where its machine code is shipped or
can be compiled; all else runs on the functions of `pullback.reference`, whose signatures these have.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar, cast

from pullback.reference import elementwise, norm
from pullback.registry import CPU, MissingCode, current_backend

P = ParamSpec("P")
T = TypeVar("T")


@cache
def _native(family: str, name: str) -> Callable[..., Any]:
    """A function of the cpu backend, which is not imported before it is wanted."""
    return cast(Callable[..., Any], getattr(import_module(f"pullback.cpu.{family}"), name))


def _native_or(reference: Callable[P, T]) -> Callable[P, T]:
    """The native function of the same name where it can run, else this one."""
    family, name = reference.__module__.rpartition(".")[2], reference.__name__

    @wraps(reference)
    def run(*arguments: P.args, **keywords: P.kwargs) -> T:
        if current_backend() == CPU:
            with suppress(MissingCode):  # for this dtype, or at all: raised while it was planned, before anything is written
                return cast(T, _native(family, name)(*arguments, **keywords))
        return reference(*arguments, **keywords)

    return run


relu = _native_or(elementwise.relu)
relu_grad = _native_or(elementwise.relu_grad)
add = _native_or(elementwise.add)
add_relu = _native_or(elementwise.add_relu)
relu_grad_of_sum = _native_or(elementwise.relu_grad_of_sum)
clip = _native_or(elementwise.clip)
clip_grad = _native_or(elementwise.clip_grad)
sum_of_squares = _native_or(elementwise.sum_of_squares)
sgd_step = _native_or(elementwise.sgd_step)
adam_step = _native_or(elementwise.adam_step)

inverse_std = norm.inverse_std  # of so few numbers that NumPy is quick enough
training_statistics = _native_or(norm.training_statistics)
batch_statistics = _native_or(norm.batch_statistics)
normalize = _native_or(norm.normalize)
batch_norm_train = _native_or(norm.batch_norm_train)
batch_norm_grad_sums = _native_or(norm.batch_norm_grad_sums)
batch_norm_grad_apply = _native_or(norm.batch_norm_grad_apply)
batch_norm_grad = _native_or(norm.batch_norm_grad)
