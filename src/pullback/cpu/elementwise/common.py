"""How the elementwise plans cut flat memory into pieces."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.cpu.elementwise.records import Flat
from pullback.cpu.engine.plan import Plan, make_plan
from pullback.cpu.engine.sizes import LINE, ceil_div
from pullback.cpu.machine_code.variants import Variant

# Bytes moved by a piece. Memory is read ahead along it: on Zen 4 pieces of 256 KiB take 0.7 times as long as those of 48 KiB.
LEAST_BYTES, MOST_BYTES, FEWEST_PIECES = 48 << 10, 256 << 10, 16


def piece_bytes(moved: int) -> int:
    """How many bytes a piece should move, of so many in all."""
    return max(LEAST_BYTES, min(MOST_BYTES, moved // FEWEST_PIECES))


def flat_pieces(count: int, size: int, arrays: int) -> tuple[int, int]:
    """(elements per piece, pieces) of passes over so many arrays of `count` elements of `size` bytes: whole cache lines each."""
    lines = max(1, piece_bytes(arrays * count * size) // (arrays * LINE))
    per_piece = lines * LINE // size
    return per_piece, ceil_div(count, per_piece)


def flat_plan(module: str, kernel: str, record: type[Flat], dtype: np.dtype[Any], count: int, arrays: int) -> Plan:
    """A plan of a kernel over flat memory; all of its fields but the sizes are given at the call."""
    per_piece, pieces = flat_pieces(count, dtype.itemsize, arrays)
    given = {name: None for name, _ in record.FIELDS} | {"per_piece": per_piece, "count": count}
    variant = Variant(f"elementwise.{module}", kernel, dtype.name)
    return make_plan(variant, record, pieces, 0, arrays * count * dtype.itemsize, given)
