"""Filter gradients in two jobs: pieces make sums of their own, which are then added in the order of the pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.cpu.depthwise import tuning
from pullback.cpu.depthwise.records import FilterAdd
from pullback.cpu.engine.addresses import address_of
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.sizes import ceil_div, sum_bytes
from pullback.cpu.machine_code.variants import Variant
from pullback.problem import Problem
from pullback.rules import Array


@dataclass(frozen=True)
class FilterPlans:
    """The two jobs, and the bytes of the sums between them."""

    products: Plan
    add: Plan
    all_sums_bytes: int

    def run(self, dy: Array, x: Array, result: Array) -> None:
        sums = np.empty(self.all_sums_bytes, np.uint8)
        self.products.run(source=address_of(x), dy=address_of(dy), sums=address_of(sums))
        self.add.run(sums=address_of(sums), result=address_of(result))


def with_add(problem: Problem, products: Plan, pieces: int, piece_bytes: int) -> FilterPlans:
    """`products` and the job that adds its sums, of which there are `pieces`, piece_bytes apart."""
    count, block = math.prod(problem.filter_shape), tuning.ADD_BLOCK
    given = {"sums": None, "result": None, "pieces": pieces, "piece_bytes": piece_bytes, "block": block, "count": count}
    compiled = Variant("depthwise.partial_sums", "add", problem.dtype.name)
    add = make_plan(compiled, FilterAdd, ceil_div(count, block), 0, pieces * piece_bytes, given)
    return FilterPlans(products, add, pieces * piece_bytes)


def plane_pieces(problem: Problem, units: int) -> tuple[dict[str, Any], int]:
    """Fields of a FilterPieces record for so many units of each group, and how many pieces that are."""
    group_block = ceil_div(problem.groups, tuning.PLANES_PIECES)
    parts = ceil_div(problem.groups, group_block)
    per_piece = ceil_div(units, min(units, max(1, tuning.PLANES_PIECES // parts)))
    chunks = ceil_div(units, per_piece)
    sums_bytes = math.prod(problem.filter_shape) * sum_bytes(problem.dtype)
    given = {
        "dy": None, "sums": None, "sums_bytes": sums_bytes, "units": units, "per_piece": per_piece, "chunks": chunks,
        "group_block": group_block,
    }  # fmt: skip
    return given, parts * chunks
