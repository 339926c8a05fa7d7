"""Winograd's transforms as straight-line vector code, generated from their matrices.

A tile of m outputs of a 3-tap filter: y = AT [(G g) * (BT d)], with m + 2 products instead of 3 m. Along two axes the matrices
are applied to rows and columns in turn. The filter gradient is the adjoint: dg = GT [(A dy) * (BT d)].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pullback.cpu.simd.vectors import I32, I64, constant_vector, declare, pointer, some_lanes

Matrix = tuple[tuple[float, ...], ...]

# By outputs per tile: 1 stands for an axis that is not transformed, where a tile is a single cell.
# The points of the four outputs are 0, 1, -1, 2, -2 and infinity.
INPUT: dict[int, Matrix] = {
    1: ((1,),),
    4: (
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
    4: (
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
    4: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
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
    entry = builder.add(table, ir.Constant(I64, 8 * place))
    return builder.add(builder.load(pointer(builder, entry, I64)), offset)


class _Cells:
    """Vectors at addresses: of the element type, or wide as in scratch; all lanes, or the first n."""

    def __init__(self, lanes: Any, builder: Any, wide: bool, n: Any) -> None:
        self.lanes, self.builder, self.wide = lanes, builder, wide
        self.vector = lanes.vector.llvm
        storage = self.vector.element if wide else lanes._storage()
        self.align = lanes.compute_size if wide else lanes.size
        self.packed = ir.VectorType(storage, lanes.count)
        self.mask = None if n is None else some_lanes(builder, n, lanes.count)
        self.suffix = f"v{lanes.count}{'i' if isinstance(storage, ir.IntType) else 'f'}{self.align * 8}"

    def load(self, address: Any) -> Any:
        b, place = self.builder, pointer(self.builder, address, self.packed)
        if self.mask is None:
            raw = b.load(place, align=self.align)
        else:
            function = declare(
                b,
                f"llvm.masked.load.{self.suffix}.p0",
                self.packed,
                [self.packed.as_pointer(), I32, self.mask.type, self.packed],
            )
            zeros = ir.Constant(self.packed, [0] * self.lanes.count)
            raw = b.call(function, [place, ir.Constant(I32, self.align), self.mask, zeros])
        return raw if self.wide else self.lanes._widen(b, raw, self.lanes.count)

    def store(self, value: Any, address: Any) -> None:
        b, place = self.builder, pointer(self.builder, address, self.packed)
        raw = value if self.wide else self.lanes._narrow(b, value, self.lanes.count)
        if self.mask is None:
            b.store(raw, place, align=self.align)
            return
        function = declare(
            b,
            f"llvm.masked.store.{self.suffix}.p0",
            ir.VoidType(),
            [self.packed, self.packed.as_pointer(), I32, self.mask.type],
        )
        b.call(function, [raw, place, ir.Constant(I32, self.align), self.mask])


def make_gather(lanes: Any, rows: Matrix, columns: Matrix, wide: bool, some: bool) -> Any:
    """gather(table, offset, target, step, n): cells from a table of addresses, transformed, to wide places `step` apart."""
    width = len(columns[0])

    @intrinsic
    def gather(context: Any, table: Any, offset: Any, target: Any, step: Any, n: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            table, offset, target, step, n = args
            cells = _Cells(lanes, builder, wide, n if some else None)
            results = _Cells(lanes, builder, True, None)
            sums = _Sums(builder, lanes.vector.llvm)
            done = sums.apply_twice(rows, columns, lambda i, j: cells.load(_address(builder, table, i * width + j, offset)))
            for row in done:
                for value in row:
                    results.store(value, target)
                    target = builder.add(target, step)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 5), emit

    return gather


def make_scatter(lanes: Any, rows: Matrix, columns: Matrix, wide: bool, some: bool) -> Any:
    """scatter(source, step, table, offset, n): the reverse; gives 0 if all results are finite."""
    width = len(columns[0])

    @intrinsic
    def scatter(context: Any, source: Any, step: Any, table: Any, offset: Any, n: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, step, table, offset, n = args
            cells = _Cells(lanes, builder, True, None)
            results = _Cells(lanes, builder, wide, n if some else None)
            sums = _Sums(builder, lanes.vector.llvm)

            def cell(i: int, j: int) -> Any:
                return cells.load(builder.add(source, builder.mul(step, ir.Constant(I64, i * width + j))))

            zero = check = sums.constant(0)
            done = sums.apply_twice(rows, columns, cell)
            for i, row in enumerate(done):
                for j, value in enumerate(row):
                    results.store(value, _address(builder, table, i * len(row) + j, offset))
                    check = builder.call(sums.fma, [value, zero, check])
            odd = builder.bitcast(builder.fcmp_unordered("uno", check, check), ir.IntType(lanes.count))
            return builder.zext(odd, I64) if lanes.count < 64 else odd

        return types.int64(*[types.int64] * 5), emit

    return scatter


def make_transpose(lanes: Any) -> Any:
    """(read, write) of square blocks of as many rows as lanes, turned over between element type and wide scratch.

    read(source, row_bytes, rows, n, target): rows of n <= lanes elements; missing rows repeat the last one.
    write(source, target, row_bytes, rows, n): the reverse; only `rows` rows of n elements are written.
    """
    V = lanes.count

    def turn(builder: Any, values: list[Any]) -> list[Any]:
        half = V // 2
        while half:
            first = constant_vector(ir.VectorType(I32, V), [i if not i & half else V + i - half for i in range(V)])
            second = constant_vector(ir.VectorType(I32, V), [i + half if not i & half else V + i for i in range(V)])
            for i in range(V):
                if not i & half:
                    a, b = values[i], values[i + half]
                    values[i], values[i + half] = builder.shuffle_vector(a, b, first), builder.shuffle_vector(a, b, second)
            half //= 2
        return values

    @intrinsic
    def read(context: Any, source: Any, row_bytes: Any, rows: Any, n: Any, target: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, row_bytes, rows, n, target = args
            cells, results = _Cells(lanes, builder, False, n), _Cells(lanes, builder, True, None)
            values = []
            for i in range(V):
                values.append(cells.load(source))
                more = builder.icmp_signed("<", ir.Constant(I64, i + 1), rows)
                source = builder.select(more, builder.add(source, row_bytes), source)
            for i, value in enumerate(turn(builder, values)):
                results.store(value, builder.add(target, ir.Constant(I64, i * V * lanes.compute_size)))
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 5), emit

    @intrinsic
    def write(context: Any, source: Any, target: Any, row_bytes: Any, rows: Any, n: Any) -> Any:
        def emit(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            source, target, row_bytes, rows, n = args
            cells = _Cells(lanes, builder, True, None)
            places = [builder.add(source, ir.Constant(I64, i * V * lanes.compute_size)) for i in range(V)]
            for i, value in enumerate(turn(builder, [cells.load(place) for place in places])):
                wanted = builder.icmp_signed("<", ir.Constant(I64, i), rows)
                _Cells(lanes, builder, False, builder.select(wanted, n, ir.Constant(I64, 0))).store(value, target)
                target = builder.add(target, row_bytes)
            return ctx.get_dummy_value()

        return types.void(*[types.int64] * 5), emit

    return read, write
