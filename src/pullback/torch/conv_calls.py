"""A convolution of tensors of one kind with all decided that shapes decide: problems, kernels, plans, how results lie.

A network calls the same layer thousands of times, and of small layers most of the time would go into Python between our kernels. So
a layer keeps one `ConvCall` for each kind of input. Where a kernel is nothing but jobs (cpu/engine/sequence.py), an op is one
native call on addresses; else it is the kernel's function on arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from pullback.cpu.conv.filter_order import in_known_order
from pullback.cpu.conv.transpose import NATIVE, transpose_plan
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.memory import SMALLEST, new_array
from pullback.cpu.engine.sequence import FLAG, OUT, WORK, A, B, JobSequence, Step, Steps, Where
from pullback.cpu.engine.sizes import LINE, round_up
from pullback.ops.conv import conv_problem
from pullback.problem import Problem
from pullback.registry import MissingCode, chosen_kernel, selection
from pullback.rules import Array
from pullback.torch.arrays import FIRST, NUMPY, activation, filter_array, filter_result, from_last, result, to_last
from pullback.torch.kernels import output_shape

OPS = ("conv", "conv_grad_input", "conv_grad_filter")


class _Form(NamedTuple):
    """How a tensor lies in memory without gaps."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    memory_shape: tuple[int, ...]
    back: tuple[int, ...] | None  # the axes that turn memory_shape into the shape
    dtype: torch.dtype

    @classmethod
    def of(cls, shape: Sequence[int], layout: str, dtype: torch.dtype) -> _Form:
        axes = tuple(range(len(shape))) if layout == FIRST else to_last(len(shape))
        memory, strides, step = tuple(shape[axis] for axis in axes), [0] * len(shape), 1
        for axis in reversed(axes):
            strides[axis] = step
            step *= shape[axis]
        return cls(tuple(shape), tuple(strides), memory, None if layout == FIRST else from_last(len(shape)), dtype)

    def lying(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor lying so; PyTorch copies with several threads."""
        if self.back is None:
            return tensor.contiguous()
        return tensor.permute(to_last(len(self.shape))).contiguous().permute(self.back)

    def new(self) -> tuple[torch.Tensor, int]:
        """Memory for a result, and its address; large results are recycled."""
        if self.strides[0] * self.shape[0] * self.dtype.itemsize < SMALLEST:
            small = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="cpu")
            return small, small.data_ptr()
        array = new_array(self.memory_shape, NUMPY[self.dtype])
        return torch.from_numpy(array if self.back is None else array.transpose(self.back)), address_of(array)


class _Op:
    """One op, of two tensors; what does not lie as the layout has it is copied."""

    def __init__(self, problem: Problem, forms: tuple[_Form | None, _Form | None], made: _Form, filter: Array) -> None:
        """forms: of the two tensors, None for the filter, which lies as this one does."""
        self.problem, self.layout, self.forms, self.made = problem, problem.layout, forms, made
        self.is_filter = problem.op == "conv_grad_filter"
        kernel = chosen_kernel(problem)
        self.run: Callable[..., Array] = kernel.run
        steps, (known, order) = None, in_known_order(problem, filter)
        if kernel.steps is not None and (known is filter or self.is_filter):
            with suppress(MissingCode):
                steps = kernel.steps(problem, order)
                if steps is not None and self.is_filter and self.layout != FIRST:
                    steps = _transposed(problem, steps)
                elif steps is not None and steps.checked:
                    steps = None
        self.steps: Steps | None = steps
        self.jobs = None if steps is None else JobSequence(steps.steps, (A, B, OUT), steps.work_bytes)

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first, second = self.forms
        if first is not None and a.stride() != first.strides:
            a = first.lying(a)
        if second is not None and b.stride() != second.strides:
            b = second.lying(b)
        if self.jobs is not None:
            made, place = self.made.new()
            if self.jobs.run(a.data_ptr(), b.data_ptr(), place):
                return made
        return self.by_arrays(a, b)

    def by_arrays(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """By the kernel's function, whatever the numbers are."""
        arrays = (
            filter_array(tensor, self.layout) if form is None else activation(tensor, self.layout)
            for tensor, form in zip((a, b), self.forms, strict=True)
        )
        found = self.run(self.problem, *arrays)
        return filter_result(found, self.layout) if self.is_filter else result(found, self.layout)


def _transposed(problem: Problem, steps: Steps) -> Steps | None:
    """The steps of a filter gradient in channels_last, and one that turns it into the order in which PyTorch keeps weights."""
    if problem.dtype.name not in NATIVE:
        return None
    *_, out = shape = problem.filter_shape
    start, count = round_up(steps.work_bytes, LINE), math.prod(shape)
    turned = [
        Step(plan, {field: (WORK, start) if where == OUT else where for field, where in at.items()}) for plan, at in steps.steps
    ]
    at: dict[str, Where] = {"source": (WORK, start), "target": OUT}
    if steps.checked:
        at["faults"] = FLAG
    turn = Step(transpose_plan(1, count // out, out, problem.dtype), at)
    return Steps((*turned, turn), start + count * problem.dtype.itemsize)


class ConvCall:
    """Convolutions of inputs like this one with weights like this one, and their gradients.

    A transposed convolution is the input gradient of the convolution that turns its result into x: the two change places.
    """

    def __init__(self, op: str, x: torch.Tensor, filter: torch.Tensor, keywords: Mapping[str, Any]) -> None:
        """op: "conv" or "conv_transpose". keywords: those of the op, its layout among them."""
        layout, dtype = keywords["layout"], x.dtype
        self.filter_shape, self.filter_strides, self.dtype = filter.shape, filter.stride(), dtype
        self.keywords, self.layout, self.transposed = keywords, layout, op == "conv_transpose"
        weight = filter_array(filter, layout)
        self.selection = selection()
        # A stand-in of the weight's form, which keeps nothing alive.
        self._weight = np.lib.stride_tricks.as_strided(np.empty(1, weight.dtype), weight.shape, weight.strides)
        result_shape = output_shape(op, (x, filter), keywords)
        self.x_form, self.y_form = (_Form.of(shape, layout, dtype) for shape in (x.shape, result_shape))
        self._source, self._target = (self.y_form, self.x_form) if self.transposed else (self.x_form, self.y_form)
        shapes = _laid_out(self._source.shape, layout), weight.shape
        given = {name: value for name, value in keywords.items() if name != "output_padding"}
        self._problems = {op: conv_problem(op, "input", *shapes, NUMPY[dtype], **given) for op in OPS}
        assert self._problems["conv"].output_shape == _laid_out(self._target.shape, layout)
        self.forward = self._input_gradient() if self.transposed else self._convolution()

    def _convolution(self) -> _Op:
        return _Op(self._problems["conv"], (self._source, None), self._target, self._weight)

    def _input_gradient(self) -> _Op:
        return _Op(self._problems["conv_grad_input"], (self._target, None), self._source, self._weight)

    @cached_property
    def input_gradient(self) -> _Op:
        return self._convolution() if self.transposed else self._input_gradient()

    @cached_property
    def filter_gradient(self) -> _Op:
        """Of the convolution's two arrays, its result's gradient first; of a transposed one that is x."""
        made = _Form.of(self.filter_shape, self.layout, self.dtype)
        return _Op(self._problems["conv_grad_filter"], (self._target, self._source), made, self._weight)

    def gradient_of_filter(self, g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """g: the gradient of the result."""
        return self.filter_gradient(x, g) if self.transposed else self.filter_gradient(g, x)

    def is_selected(self) -> bool:
        """Whether kernels would be chosen now from the same as when they were."""
        return self.selection == selection()

    def takes(self, filter: torch.Tensor) -> bool:
        """Whether a weight is like the first one."""
        alike: bool = (
            filter.dtype is self.dtype and filter.shape == self.filter_shape and filter.stride() == self.filter_strides
        )
        return alike


def _laid_out(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    return shape if layout == FIRST else tuple(shape[axis] for axis in to_last(len(shape)))
