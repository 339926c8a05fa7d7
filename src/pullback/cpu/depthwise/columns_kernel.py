"""Columns of a plane under masks, and rows that may lie beyond it: what the tiles of slide_kernel.py share."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pullback.cpu.depthwise.emit_kernel import Emit
from pullback.cpu.simd.native import LINE, emit_prefetch
from pullback.cpu.simd.vectors import I32, constant_vector, splat_lanes

KEPT_TAPS = 3  # of a row of a window whose weights all stay in registers


class Strip(Emit):
    """Vector operations on a strip of columns, as many as a vector has lanes."""

    def __init__(self, lanes: Any, builder: Any, stride: int) -> None:
        super().__init__(lanes, builder)
        self.stride = stride

    def row_or(self, spare: Any, at: Any, row: Any, rows: Any) -> Any:
        """`at`, or `spare` for a row that is not there."""
        return self.builder.select(self.builder.icmp_unsigned("<", row, rows), at, spare)

    def prefetch_lines(self, ahead: Any, lines: int) -> Any:
        """Prefetch some lines; where to go on."""
        for line in range(lines):
            emit_prefetch(self.builder, self.builder.add(ahead, self.number(line * LINE)))
        return self.builder.add(ahead, self.number(lines * LINE))

    def prefetch_until(self, ahead: Any, end: Any, lines: int) -> Any:
        """Prefetch some lines, as far as `end`; where to go on."""
        more = self.prefetch_lines(ahead, lines)
        return self.builder.select(self.builder.icmp_signed("<", more, end), more, end)

    def inside(self, first: Any, width: Any, step: int = 1) -> Any:
        """Mask of the lanes whose column lies in the plane; lane 0 is column `first`, the next one `step` further."""
        builder, count = self.builder, self.lanes.count
        begin, end = (splat_lanes(builder, builder.trunc(number, I32), count) for number in (first, width))
        column = builder.add(constant_vector(ir.VectorType(I32, count), range(0, step * count, step)), begin)
        return builder.icmp_unsigned("<", column, end)

    def met(self, first: Any, width: Any, taps: int) -> list[Any]:
        """For each tap the lanes of a target vector for which it meets a column."""
        return [self.inside(self.builder.add(first, self.number(b)), width, self.stride) for b in range(taps)]

    def if_row(self, row: Any, rows: Any, values: list[Any], body: Any) -> list[Any]:
        """body(values) for a row that is there, else the values as they are."""
        return self.when(self.builder.icmp_unsigned("<", row, rows), body, lambda values: values, values)

    def when(self, condition: Any, body: Any, otherwise: Any, values: list[Any]) -> list[Any]:
        """body(values) or otherwise(values), behind a branch."""
        builder = self.builder
        blocks = [builder.append_basic_block(name) for name in ("there", "beyond", "after")]
        builder.cbranch(condition, *blocks[:2])
        ends = []
        for block, make in zip(blocks, (body, otherwise), strict=False):
            builder.position_at_end(block)
            found = make(values)
            ends.append((found, builder.block))
            builder.branch(blocks[2])
        builder.position_at_end(blocks[2])
        results = []
        for place, value in enumerate(values):
            phi = builder.phi(value.type)
            for found, block in ends:
                phi.add_incoming(found[place], block)
            results.append(phi)
        return results

    def masks(self, first: Any, width: Any, taps: int) -> list[Any]:
        """Masks of all vectors that `columns` reads."""
        if self.stride == 1:
            return [self.inside(self.builder.add(first, self.number(b)), width) for b in range(taps)]
        starts = [2 * pair + half * self.lanes.count for pair in range((taps + 1) // 2) for half in range(2)]
        return [self.inside(self.builder.add(first, self.number(start)), width) for start in starts]

    def columns(self, at: Any, masks: list[Any], taps: int) -> list[Any]:
        """For each tap the source columns that the lanes of a target vector meet; the first one's is at `at`."""
        builder, count, size = self.builder, self.lanes.count, self.lanes.size
        if self.stride == 1:
            return [self.load(builder.add(at, self.number(b * size)), False, masks[b]) for b in range(taps)]
        found = []
        for pair in range((taps + 1) // 2):
            halves = [
                self.load(builder.add(at, self.number((2 * pair + half * count) * size)), False, masks[2 * pair + half])
                for half in range(2)
            ]
            for odd in range(min(2, taps - 2 * pair)):
                order = constant_vector(ir.VectorType(I32, count), range(odd, 2 * count, 2))
                found.append(builder.shuffle_vector(*halves, order))
        return found

    def weights(self, at: Any, row_step: Any, column_step: Any, taps: int) -> Any:
        """weight(a, b): in every lane. Those of a small window stay in registers; others are read where they are used."""
        builder = self.builder

        def weight(a: int, b: int) -> Any:
            return self.splat(builder.add(at, builder.add(self.times(row_step, a), self.times(column_step, b))))

        if taps > KEPT_TAPS:
            return weight
        known = [[weight(a, b) for b in range(taps)] for a in range(taps)]
        return lambda a, b: known[a][b]
