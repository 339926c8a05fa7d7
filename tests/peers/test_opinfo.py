"""PyTorch's own cases of its convolutions and poolings (its OpInfo table) on pullback.torch.functional, in all of its modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db

from pullback.torch import functional as ours

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]

PREFIX = "nn.functional."
NAMES = tuple(f"{kind}{rank}d" for kind in ("conv", "conv_transpose", "max_pool", "avg_pool") for rank in (1, 2, 3))
TABLE = {op.name.removeprefix(PREFIX): op for op in op_db if op.name.removeprefix(PREFIX) in NAMES}
MOST = 24  # cases of an op that are compiled and exported, spread evenly over all of them: each takes half a second
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-3}  # the bias is added to a rounded sum

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Any]


class Sample:
    """A case: the tensors that derivatives are taken of, and a call of either library on tensors in their place."""

    def __init__(self, name: str, given: Any) -> None:
        self.name, self.arguments, self.named = name, (given.input, *given.args), given.kwargs
        self.places = [i for i, value in enumerate(self.arguments) if isinstance(value, torch.Tensor)]
        self.tensors: Tensors = tuple(self.arguments[i].detach() for i in self.places)

    def __str__(self) -> str:
        shown = [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in self.arguments]
        return f"{self.name}{tuple(shown)} {self.named}"

    def call(self, module: Any, *tensors: torch.Tensor) -> Any:
        arguments = list(self.arguments)
        for place, tensor in zip(self.places, tensors, strict=True):
            arguments[place] = tensor
        return getattr(module, self.name)(*arguments, **self.named)

    def of(self, module: Any) -> Function:
        """The function of the tensors, its values alone."""

        def function(*tensors: torch.Tensor) -> torch.Tensor:
            found = self.call(module, *tensors)
            return found[0] if isinstance(found, tuple) else found

        return function


def samples(name: str, dtype: torch.dtype) -> Iterator[Sample]:
    torch.manual_seed(0)
    for given in TABLE[name].sample_inputs("cpu", dtype, requires_grad=False):
        yield Sample(name, given)


def like(tensor: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return torch.randn(tensor.shape, dtype=tensor.dtype, generator=torch.Generator().manual_seed(seed))


def values(sample: Sample) -> tuple[Any, Any]:
    """With the indices of a maximum, and how the results lie in memory; numbers against PyTorch's in float64."""
    exact = sample.call(nn.functional, *(t.double() if t.is_floating_point() else t for t in sample.tensors))
    found = [sample.call(module, *sample.tensors) for module in (ours, nn.functional)]
    mine, theirs, truth = (f if isinstance(f, tuple) else (f,) for f in (*found, exact))
    expected = [t.to(like.dtype) for t, like in zip(truth, theirs, strict=True)]
    return (*mine, [t.stride() for t in mine]), (*expected, [t.stride() for t in theirs])


def first(function: Function, tensors: Tensors) -> tuple[Any, Any]:
    inputs = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]
    y = function(*inputs)
    return inputs, torch.autograd.grad(y, inputs, like(y).requires_grad_(), create_graph=True, materialize_grads=True)


def gradients(sample: Sample) -> tuple[Any, Any]:
    return first(sample.of(ours), sample.tensors)[1], first(sample.of(nn.functional), sample.tensors)[1]


def second_gradients(sample: Sample) -> tuple[Any, Any]:
    found = []
    for module in (ours, nn.functional):
        inputs, slopes = first(sample.of(module), sample.tensors)
        total = sum((slope * like(slope, 1)).sum() for slope in slopes)
        found.append(torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True))
    return found[0], found[1]


def tangents(sample: Sample) -> tuple[Any, Any]:
    along = tuple(like(t, 2) for t in sample.tensors)
    mine, theirs = (torch.func.jvp(sample.of(module), sample.tensors, along) for module in (ours, nn.functional))
    return mine, theirs


def mapped(sample: Sample) -> tuple[Any, Any]:
    """vmap over each tensor alone and over all, against one call for each entry."""
    found: list[Any] = []
    expected: list[Any] = []
    count = len(sample.tensors)
    for chosen in [*((i,) for i in range(count)), tuple(range(count))]:
        dims = tuple(0 if i in chosen else None for i in range(count))
        several = [torch.stack([like(t, 3), like(t, 4)]) if i in chosen else t for i, t in enumerate(sample.tensors)]
        found.append(torch.vmap(sample.of(ours), dims)(*several))
        each = [[t[entry] if i in chosen else t for i, t in enumerate(several)] for entry in range(2)]
        expected.append(torch.stack([sample.of(nn.functional)(*one) for one in each]))
    return found, expected


def batched_gradients(sample: Sample) -> tuple[Any, Any]:
    found = []
    for module, at_once in ((ours, True), (nn.functional, False)):
        inputs = [t.clone().requires_grad_() for t in sample.tensors]
        y = sample.of(module)(*inputs)
        dys = torch.stack([like(y, 5), like(y, 6), like(y, 7)])
        if at_once:
            slopes = torch.autograd.grad(y, inputs, dys, is_grads_batched=True)
        else:
            each = [torch.autograd.grad(y, inputs, dy, retain_graph=True) for dy in dys]
            slopes = tuple(map(torch.stack, zip(*each, strict=True)))
        found.append(slopes)
    return found[0], found[1]


def compiled(sample: Sample) -> tuple[Any, Any]:
    torch._dynamo.reset()
    function = sample.of(ours)
    mine = first_of(torch.compile(function, backend="aot_eager", fullgraph=True), sample.tensors)
    return mine, first_of(sample.of(nn.functional), sample.tensors)


def first_of(function: Function, tensors: Tensors) -> tuple[Any, Any]:
    """Values and gradients: a compiled function has no second ones."""
    inputs = [t.clone().requires_grad_() for t in tensors]
    y = function(*inputs)
    return y.detach(), torch.autograd.grad(y, inputs, like(y))


class _Module(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, tensors: Tensors) -> torch.Tensor:
        y: torch.Tensor = self.function(*tensors)
        return y


def exported(sample: Sample) -> tuple[Any, Any]:
    """For any batch, where there is one: exported for three copies, called for two."""
    function, given = sample.of(ours), sample.tensors
    if given[0].dim() - int(sample.name[-2]) != 2 or given[0].shape[0] == 0:
        program = torch.export.export(_Module(function), (given,))
    else:
        x, *rest = given
        sizes = ({0: torch.export.Dim("batch")}, *({} for _ in rest))
        program = torch.export.export(_Module(function), ((torch.cat([x] * 3), *rest),), dynamic_shapes=(sizes,))
        given = (torch.cat([x] * 2), *rest)
    return program.module()(given), sample.of(nn.functional)(*given)


MODES: dict[str, Callable[[Sample], tuple[Any, Any]]] = {
    "values": values, "gradients": gradients, "second gradients": second_gradients, "tangents": tangents, "vmap": mapped,
    "batched gradients": batched_gradients, "compile": compiled, "export": exported,
}  # fmt: skip

# What does not apply: (op begins with, mode, which cases, why). A case listed here must fail, and no other may.
EXCEPTIONS: tuple[tuple[str, str, Callable[[Sample], bool], str], ...] = (
    ("", "values", lambda sample: not sample.tensors[0].is_floating_point(), "our kernels compute with floats"),
)


def excused(sample: Sample, mode: str) -> str | None:
    for name, where, which, why in EXCEPTIONS:
        if sample.name.startswith(name) and mode == where and which(sample):
            return why
    return None


def difference(sample: Sample, mode: str, tolerance: float) -> str | None:
    try:
        mine, theirs = MODES[mode](sample)
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, check_stride=False, equal_nan=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def compare(cases: list[Sample], mode: str, tolerance: float) -> None:
    """Run the cases; all that fail without an excuse, and all that have one and do not, are told together."""
    wrong = []
    for sample in cases:
        found, excuse = difference(sample, mode, tolerance), excused(sample, mode)
        if found is not None and excuse is None:
            wrong.append(f"{sample}: {found}")
        elif found is None and excuse is not None:
            wrong.append(f"{sample} works, and is listed as one that does not: {excuse}")
    assert not wrong, f"{len(wrong)} of {len(cases)} cases:\n" + "\n".join(wrong[:10])


def test_all_of_our_functions_are_in_the_table() -> None:
    assert set(TABLE) == set(NAMES)
    assert all(hasattr(ours, name) for name in NAMES)


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name in NAMES for dtype in sorted(TABLE[name].dtypes, key=str)])
def test_values(name: str, dtype: torch.dtype) -> None:
    compare(list(samples(name, dtype)), "values", TOLERANCES.get(dtype, 1e-9))


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "values"])
@pytest.mark.parametrize("name", NAMES)
def test_modes(name: str, mode: str) -> None:
    cases = list(samples(name, torch.float64))
    if mode in ("compile", "export"):
        cases = cases[:: -(-len(cases) // MOST)]
    compare(cases, mode, 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_errors(name: str) -> None:
    """What PyTorch refuses, ours refuses with a sentence that begins with the name of the function."""
    op = TABLE[name]
    wrong = []
    for given in op.error_inputs("cpu") if op.error_inputs_func is not None else ():
        sample = Sample(name, given.sample_input)
        try:
            sample.call(ours, *sample.tensors)
        except (TypeError, ValueError) as error:
            if not str(error).startswith(f"{name}: ") or "\n" in str(error):
                wrong.append(f"{sample}: {error}")
        except Exception as error:
            wrong.append(f"{sample}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{sample}: nothing is wrong")
    assert not wrong, "\n".join(wrong)
