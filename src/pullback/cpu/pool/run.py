"""The pooling ops on the cpu backend: allocate the result, take the plan of the problem, run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.memory import new_array
from pullback.cpu.engine.plan import Plan
from pullback.cpu.pool import phases, scatter
from pullback.problem import IndexProblem, Problem
from pullback.reference import pool as reference
from pullback.reference.pool_tangent import take
from pullback.registry import dispatch
from pullback.rules import Array

INDEX = np.dtype(np.int64)
MakePlan = Callable[[Any], Plan]


def max_pool(make_plan: MakePlan, problem: Problem, x: Array) -> Any:
    x = np.ascontiguousarray(x)
    y = new_array(problem.output_shape, problem.dtype)
    addresses = {"x": address_of(x), "y": address_of(y)}
    more = None
    if problem.return_winners:
        more = new_array(problem.output_shape, problem.winner_dtype)
        addresses["winners"] = address_of(more)
    elif problem.return_indices:
        more = new_array(problem.output_shape, INDEX)
        addresses["indices"] = address_of(more)
    make_plan(problem).run(**addresses)
    return y if more is None else (y, more)


def max_pool_grad(make_plan: MakePlan, problem: Problem, dy: Array, x: Array) -> Array:
    dy, x = np.ascontiguousarray(dy), np.ascontiguousarray(x)
    dx = new_array(problem.input_shape, problem.dtype)
    make_plan(problem).run(dy=address_of(dy), x=address_of(x), dx=address_of(dx))
    return dx


def max_pool_grad_by_winners(problem: Problem, dy: Array, x: Array) -> Array:
    """max_pool_grad whose winners a forward kernel finds and keeps, all of them, before a gradient takes them."""
    _, winners = dispatch(replace(problem, op="max_pool", return_winners=True), x)
    dx: Array = dispatch(replace(problem, op="max_pool_grad_from_winners"), dy, winners)
    return dx


def max_pool_jvp(problem: Problem, t: Array, x: Array) -> Array:
    _, indices = dispatch(replace(problem, op="max_pool", return_indices=True), x)
    return take(t, indices)


def max_pool_grad_from_winners(make_plan: MakePlan, problem: Problem, dy: Array, winners: Array) -> Array:
    dy, winners = np.ascontiguousarray(dy), np.ascontiguousarray(winners)
    dx = new_array(problem.input_shape, problem.dtype)
    make_plan(problem).run(dy=address_of(dy), winners=address_of(winners), dx=address_of(dx))
    return dx


def max_pool_grad_by_phases(problem: Problem, dy: Array, winners: Array) -> Array:
    """max_pool_grad_from_winners; redone by scatter where a winner is one that no forward has found."""
    dy, winners = np.ascontiguousarray(dy), np.ascontiguousarray(winners)
    dx, faults = new_array(problem.input_shape, problem.dtype), np.zeros(1, np.int64)
    addresses = {"dy": address_of(dy), "winners": address_of(winners), "dx": address_of(dx)}
    phases.max_grad_plan(problem).run(**addresses, faults=address_of(faults))
    if faults[0]:  # it would be credited to a wrong cell
        scatter.max_grad_plan(problem).run(**addresses)
    return dx


def max_pool_grad_from_indices(problem: IndexProblem, dy: Array, indices: Array) -> Array:
    dy, flat = np.ascontiguousarray(dy), np.ascontiguousarray(indices)
    dx = new_array(problem.input_shape, problem.dtype)
    faults = np.zeros(1, np.int64)
    plan = scatter.indices_plan(problem)
    plan.run(dy=address_of(dy), indices=address_of(flat), dx=address_of(dx), faults=address_of(faults))
    if faults[0]:  # an index beyond its image: a right answer still, or an error, which the reference tells apart
        return reference.max_pool_grad_from_indices(problem, dy, indices)
    return dx


def avg_pool(make_plan: MakePlan, problem: Problem, x: Array) -> Array:
    x = np.ascontiguousarray(x)
    y = new_array(problem.output_shape, problem.dtype)
    make_plan(problem).run(x=address_of(x), y=address_of(y))
    return y


def avg_pool_grad(make_plan: MakePlan, problem: Problem, dy: Array) -> Array:
    dy = np.ascontiguousarray(dy)
    dx = new_array(problem.input_shape, problem.dtype)
    make_plan(problem).run(dy=address_of(dy), dx=address_of(dx))
    return dx
