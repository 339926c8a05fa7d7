"""Layer normalization: each row by its own mean and variance. A program holds whole rows, so that x is read once, also backwards.

Results are rounded to the type they are stored in, whatever that of x is: the casts that mixed precision puts around a
normalization need no passes of their own.
"""

import triton
import triton.language as tl

SIZES = ("rows", "columns", "chunk")  # see channels_kernel.py


@triton.jit
def load_rows(x, row, rows, columns, BC: tl.constexpr, SUM: tl.constexpr, WIDE: tl.constexpr):
    """(numbers, offsets, inside) of whole rows."""
    column = tl.arange(0, BC)[None, :]
    place = row.to(tl.int64) if WIDE else row
    place = place * columns + column
    inside = (row < rows) & (column < columns)
    return tl.load(x + place, mask=inside, other=0.0).to(SUM), place, inside


@triton.jit(do_not_specialize=SIZES)
def normalize_rows(
    x, scale, shift, y, means, inverses, rows, columns,
    EPS: tl.constexpr, SCALE: tl.constexpr, SHIFT: tl.constexpr, VECTOR: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr,
    BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y, and the mean and 1 / sqrt(variance + EPS) of each row."""
    columns = columns * VECTOR
    row = (tl.program_id(0) * BR + tl.arange(0, BR))[:, None]
    value, place, inside = load_rows(x, row, rows, columns, BC, SUM, WIDE)
    column = tl.arange(0, BC)[None, :]
    mean = tl.sum(value, axis=1)[:, None] / columns
    far = tl.where(inside, value - mean, 0.0)
    inverse = 1 / tl.sqrt(tl.sum(far * far, axis=1)[:, None] / columns + EPS)
    tl.store(means + row, mean, mask=row < rows)
    tl.store(inverses + row, inverse, mask=row < rows)
    result = far * inverse
    if SCALE:
        result = result * tl.load(scale + column, mask=column < columns, other=0.0).to(SUM)
    if SHIFT:
        result = result + tl.load(shift + column, mask=column < columns, other=0.0).to(SUM)
    tl.store(y + place, result.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def gradient_of_rows(
    dy, x, scale, means, inverses, dx, part, rows, columns, chunk,
    SCALE: tl.constexpr, SUMS: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr, SUM: tl.constexpr, BR: tl.constexpr,
    BC: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dx of a chunk of rows; SUMS: part[chunk, 0, column], the sum of dy, part[chunk, 1, column], of dy times normalized x."""
    columns = columns * VECTOR
    column = tl.arange(0, BC)[None, :]
    first = tl.program_id(0) * chunk
    end = tl.minimum(first + chunk, rows)
    if SCALE:
        a = tl.load(scale + column, mask=column < columns, other=0.0).to(SUM)
    plain = tl.zeros((BR, BC), SUM)
    product = tl.zeros((BR, BC), SUM)
    for at in tl.range(first, end, BR, num_stages=STAGES):
        row = (at + tl.arange(0, BR))[:, None]
        g, place, inside = load_rows(dy, row, end, columns, BC, SUM, WIDE)
        value, _, _ = load_rows(x, row, end, columns, BC, SUM, WIDE)
        mean = tl.load(means + row, mask=row < end, other=0.0)
        inverse = tl.load(inverses + row, mask=row < end, other=0.0)
        unit = tl.where(inside, (value - mean) * inverse, 0.0)
        if SUMS:
            plain += g
            product += g * unit
        if SCALE:
            g = g * a
        mean_g = tl.sum(g, axis=1)[:, None] / columns
        mean_product = tl.sum(g * unit, axis=1)[:, None] / columns
        tl.store(dx + place, ((g - mean_g - unit * mean_product) * inverse).to(dx.dtype.element_ty), mask=inside)
    if SUMS:
        place = tl.program_id(0).to(tl.int64) * 2 * columns + column
        tl.store(part + place, tl.sum(plain, axis=0)[None, :], mask=column < columns)
        tl.store(part + place + columns, tl.sum(product, axis=0)[None, :], mask=column < columns)
