"""Winograd's transforms as straight-line vector code, generated from their matrices.

A tile of m outputs of a 3-tap filter: y = AT [(G g) * (BT d)], with m + 2 products instead of 3 m, one for each point. Along two
axes the matrices are applied to rows and columns in turn. The filter gradient is the adjoint: dg = GT [(A dy) * (BT d)].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.engine.records import WORD
from pullback.cpu.simd.transpose import emit_memory
from pullback.cpu.simd.vectors import I64, constant_vector, declare, outline, pointer, stay_outline
from pullback.cpu.winograd.records import OUTPUTS

Matrix = tuple[tuple[float, ...], ...]

# By outputs per tile: 1 stands for an axis that is not transformed, where a tile is a single cell.
# The points of the four outputs are 0, 1, -1, 2, -2 and infinity.
INPUT: dict[int, Matrix] = {
    1: ((1,),),
    OUTPUTS: (
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    ),
}
FILTER: dict[int, Matrix] = {
    1: ((1,),),
    OUTPUTS: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
OUTPUT: dict[int, Matrix] = {
    1: ((1,),),
    OUTPUTS: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
}


def transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


class _Sums:
    """Sums of vectors with constant factors, as instructions."""

    def __init__(self, builder: Any, vector: Any) -> None:
        self.builder, self.vector = builder, vector
        suffix = f"v{vector.count}f{64 if str(vector.element) == 'double' else 32}"
        self.fma = declare(builder, f"llvm.fma.{suffix}", vector, [vector] * 3)

    def constant(self, value: float) -> Any:
        return constant_vector(self.vector, [float(value)] * self.vector.count)

    def linear(self, factors: Sequence[float], values: Sequence[Any]) -> Any:
        """The sum of factors times values; factors of 1 and -1 cost no multiplication, 0 nothing."""
        terms = sorted(((f, v) for f, v in zip(factors, values, strict=True) if f), key=lambda term: term[0] != 1)
        if not terms:
            return self.constant(0)
        (first, total), b = terms[0], self.builder
        if first != 1:
            total = b.fmul(self.constant(first), total)
        for factor, value in terms[1:]:
            if factor == 1:
                total = b.fadd(total, value)
            elif factor == -1:
                total = b.fsub(total, value)
            else:
                total = b.call(self.fma, [self.constant(factor), value, total])
        return total

    def apply(self, matrix: Matrix, values: Sequence[Any]) -> list[Any]:
        """matrix times values. What points p and -p share is computed once: pairs of inputs, then pairs of outputs."""
        rows, values = [list(row) for row in matrix], list(values)
        for a, b in _pairs(transposed(matrix)):
            both, either = self.builder.fadd(values[a], values[b]), self.builder.fsub(values[a], values[b])
            values[a], values[b] = both, either
            for row in rows:
                row[a], row[b] = (row[a] + row[b]) / 2, (row[a] - row[b]) / 2
        out: list[Any] = [None] * len(rows)
        for a, b in _pairs(rows):
            both = self.linear([(p + q) / 2 for p, q in zip(rows[a], rows[b], strict=True)], values)
            either = self.linear([(p - q) / 2 for p, q in zip(rows[a], rows[b], strict=True)], values)
            out[a], out[b] = self.builder.fadd(both, either), self.builder.fsub(both, either)
        return [self.linear(row, values) if done is None else done for row, done in zip(rows, out, strict=True)]

    def apply_twice(self, rows: Matrix, columns: Matrix, cell: Any) -> list[list[Any]]:
        """rows times the matrix of cell(i, j) times the transpose of columns: first down each column, then along each row."""
        half = [self.apply(rows, [cell(i, j) for i in range(len(rows[0]))]) for j in range(len(columns[0]))]
        return [self.apply(columns, [column[i] for column in half]) for i in range(len(rows))]


def _pairs(rows: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Rows that differ in signs only, two by two."""
    found: list[tuple[int, int]] = []
    for a in range(len(rows)):
        for b in range(a + 1, len(rows)):
            alike = all(abs(p) == abs(q) for p, q in zip(rows[a], rows[b], strict=True))
            shared = sum(p == q != 0 for p, q in zip(rows[a], rows[b], strict=True))
            if alike and 0 < shared < sum(p != 0 for p in rows[a]) and not any({a, b} & set(pair) for pair in found):
                found.append((a, b))
    return found


def _address(builder: Any, table: Any, place: int, offset: Any) -> Any:
    entry = builder.add(table, ir.Constant(I64, WORD * place))
    return builder.add(builder.load(pointer(builder, entry, I64)), offset)


@cache
def make_gather(lanes: Any, rows: Matrix, columns: Matrix, wide: bool) -> Any:
    """gather(table, offset, target, point_pitch, n): one vector of channels of a tile, transformed, to scratch.

    Its n lanes (or all) of each cell lie `offset` bytes from an address in a table, as elements or (`wide`) as in scratch.
    """
    V, width = lanes.count, len(columns[0])

    def make(load: Any) -> Any:
        @intrinsic
        def transform(context: Any, table: Any, offset: Any, target: Any, point_pitch: Any, n: Any) -> Any:
            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                table, offset, target, point_pitch, n = args

                def cell(i: int, j: int) -> Any:
                    return emit_memory(load, ctx, builder, [_address(builder, table, i * width + j, offset), n])

                for row in _Sums(builder, lanes.vector.llvm).apply_twice(rows, columns, cell):
                    for value in row:
                        emit_memory(lanes.store_wide, ctx, builder, [target, value, n])
                        target = builder.add(target, point_pitch)
                return ctx.get_dummy_value()

            return types.void(*[types.int64] * 5), emit

        return transform

    whole, some = map(make, (lanes.load_wide, lanes.load_wide_some) if wide else (lanes.load, lanes.load_some))

    @outline
    def gather(table, offset, target, point_pitch, n):
        stay_outline()
        if n >= V:
            whole(table, offset, target, point_pitch, n)
        else:
            some(table, offset, target, point_pitch, n)

    return gather


@cache
def make_scatter(lanes: Any, rows: Matrix, columns: Matrix, wide: bool) -> Any:
    """scatter(source, point_pitch, table, offset, n): the reverse; gives 0 if all results are finite."""
    V, width = lanes.count, len(columns[0])

    def make(store: Any) -> Any:
        @intrinsic
        def transform(context: Any, source: Any, point_pitch: Any, table: Any, offset: Any, n: Any) -> Any:
            def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
                source, point_pitch, table, offset, n = args
                sums = _Sums(builder, lanes.vector.llvm)

                def cell(i: int, j: int) -> Any:
                    at = builder.add(source, builder.mul(point_pitch, ir.Constant(I64, i * width + j)))
                    return emit_memory(lanes.load_wide, ctx, builder, [at, n])

                zero = check = sums.constant(0)
                for i, row in enumerate(sums.apply_twice(rows, columns, cell)):
                    for j, value in enumerate(row):
                        emit_memory(store, ctx, builder, [_address(builder, table, i * len(row) + j, offset), value, n])
                        check = builder.call(sums.fma, [value, zero, check])
                nonfinite = builder.bitcast(builder.fcmp_unordered("uno", check, check), ir.IntType(V))
                return builder.zext(nonfinite, I64) if V < 64 else nonfinite

            return types.int64(*[types.int64] * 5), emit

        return transform

    whole, some = map(make, (lanes.store_wide, lanes.store_wide_some) if wide else (lanes.store, lanes.store_some))

    @outline
    def scatter(source, point_pitch, table, offset, n):
        stay_outline()
        return whole(source, point_pitch, table, offset, n) if n >= V else some(source, point_pitch, table, offset, n)

    return scatter
