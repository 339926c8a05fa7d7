"""Plans of windows that are the whole image, with its cells side by side: global pooling in channels_first."""

from __future__ import annotations

from pullback.cpu.engine.pieces import cut_pieces, slack
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.plan_cache import planned
from pullback.cpu.engine.records import Record
from pullback.cpu.pool import records
from pullback.cpu.pool.common import floor_of, shape_of, simplified, variant
from pullback.cpu.refusals import ordinary
from pullback.problem import Problem

RECORDS: dict[str, type[Record]] = {
    "max_forward": records.WholeMaxForward,
    "max_grad": records.WholeMaxGrad,
    "max_grad_from_x": records.WholeMaxGradFromX,
    "avg_forward": records.WholeAvgForward,
    "avg_grad": records.WholeAvgGrad,
}


def _is_whole(problem: Problem) -> bool:
    """Whether each image, as the kernels see it, is one window of cells that lie side by side."""
    window = problem.window.merged()
    if isinstance(problem.divisor, int) and problem.divisor != window.tap_count:  # the kernels divide by the cells
        return False
    one = window.rank == 1 and window.output_size == (1,) and window.kernel == window.input_size and window.pad_low == (0,)
    return one and window.dilation == (1,) and (problem.layout == "channels_first" or problem.channels_in == 1)


def can(problem: Problem) -> str | None:
    if not _is_whole(problem):
        return "it is for windows that are the whole image, with the cells of an image side by side"
    if problem.storage_order and problem.return_indices:
        return "it numbers winners row-major, not by storage_order=1"
    return ordinary(problem)


@planned
def _plan(problem: Problem, kernel: str) -> Plan:
    shape = shape_of(simplified(problem))
    per_piece, pieces = cut_pieces(shape.images, shape.moved_bytes)
    arrays = ("x", "y", "winners", "indices", "dy", "dx")
    given = dict.fromkeys(arrays) | {
        "per_piece": per_piece, "images": shape.images, "cells": shape.in_row, "empty": problem.empty, "above": floor_of(problem),
    }  # fmt: skip
    finds_winners = kernel in ("max_forward", "max_grad_from_x")
    compiled = variant(problem, "whole", kernel, finds_winners=finds_winners)
    return make_plan(compiled, RECORDS[kernel], pieces, 2 * slack(), shape.moved_bytes, given)


def forward_plan(problem: Problem) -> Plan:
    return _plan(problem, "max_forward" if problem.winner else "avg_forward")


def max_grad_plan(problem: Problem) -> Plan:
    return _plan(problem, "max_grad")


def max_grad_from_x_plan(problem: Problem) -> Plan:
    return _plan(problem, "max_grad_from_x")


def avg_grad_plan(problem: Problem) -> Plan:
    return _plan(problem, "avg_grad")
