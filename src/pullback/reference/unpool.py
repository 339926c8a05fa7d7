"""Unpooling: each value put where its index points, the rest zero; and the adjoint, which reads there."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pullback.problem import IndexProblem
from pullback.reference.pool import check_indices, row_major_indices
from pullback.reference.pool_tangent import take
from pullback.rules import Array

Indices = npt.NDArray[np.int64]


def _flat(problem: IndexProblem, indices: Indices) -> Indices:
    check_indices(problem, indices)
    return (row_major_indices(problem, indices) if problem.storage_order else indices).reshape(-1)


def max_unpool(problem: IndexProblem, values: Array, indices: Indices) -> Array:
    flat = _flat(problem, indices)
    result = np.zeros(math.prod(problem.input_shape) + 1, problem.dtype)  # what has the index -1 falls into the last place
    result[flat] = values.reshape(-1)  # in order: of several values for one cell the last stays
    return result[:-1].reshape(problem.input_shape)


def max_unpool_grad(problem: IndexProblem, dy: Array, indices: Indices) -> Array:
    flat = _flat(problem, indices)
    gradient = take(dy, flat)
    last = np.zeros(math.prod(problem.input_shape) + 1, np.int64)
    last[flat] = np.arange(flat.size)
    gradient[last[flat] != np.arange(flat.size)] = 0  # of a value that another took the place of
    return gradient.reshape(problem.output_shape)
