"""Garbage for each argument, as Python expressions in which `a` is the right value: some of it is unusual, but right."""

from __future__ import annotations

from collections.abc import Sequence

NUMBERS = (
    "0", "-1", "1.5", "float('nan')", "float('inf')", "True", "None", "'2'", "b'2'", "1j", "()", "(1,)", "(2, 1)",
    "(1, 2, 3)", "(1, 1, 1, 1)", "[2, 2]", "(1, 0)", "(1, None)", "{}", "{1: 2}", "range(1, 3)", "iter([1, 2])",
    "[[1, 1], [1, 1]]", "list", "object()", "3", "30", "2**31 - 1", "2**31", "2**63", "10**30", "-2**40", "(2**31 - 1, 1)",
    "a", "(a,)", "'same'", "np.ones(2)", "np.int8(3)", "np.uint64(2)", "np.array(2)", "np.array([2, 2])", "np.float64(2)",
    "np.bool_(True)",
)  # fmt: skip
WORDS = (
    "''", "None", "0", "1", "True", "'floor'", "'FLOOR'", "'last'", "b'first'", "['floor']", "float('nan')", "'NCHW'",
    "'NWC'", "(1, 2)", "np.array(['floor', 'ceil'])", "np.str_('ceil')", "np.bool_(True)", "object()", "'\\x00'",
    "'x' * 10000", "a",
)  # fmt: skip
PADDINGS = (
    *NUMBERS, "'SAME'", "[(1, 2)]", "[(1, 2), (0, 0)]", "[(1, 2, 3)]", "[(1.0, 0)]", "[(-1, -1)]", "[('q', 'b')]", "(-9, -9)",
    "-1000", "[(2**31 - 1, 0)]", "[[0, 1], [1, 0]]", "np.array([[0, 1], [1, 0]])",
)  # fmt: skip
SHAPES = (
    *NUMBERS, "a[:-1]", "a + (1,)", "a[::-1]", "list(a)", "np.array(a)", "str(a)", "map(int, a)", "(0,) * len(a)",
    "tuple(float(n) for n in a)", "tuple(n + 1 for n in a)", "tuple(-n for n in a)", "tuple(2**31 - 1 for n in a)",
    "tuple(2**16 for n in a)", "(a[0], *a[1:-1], 10**9)", "(10**9, *a[1:])",
)  # fmt: skip
ARRAYS = (
    "None", "0", "1.0", "'text'", "object()", "[]", "[[1.0], [1.0, 2.0]]", "lambda: a", "memoryview(np.zeros(3))",
    "np.float32(1)", "a[0]", "a[None]", "a[..., 0]", "a[:0]", "a.T", "a.ravel()", "a.tolist()", "a.tobytes()", "-a", "a - 5",
    "a + 10**6", "a.astype(np.int32)", "a.astype(np.int16)", "a.astype(np.uint64)", "a.astype(np.uint8)", "a.astype(bool)",
    "a.astype(complex)", "a.astype(object)", "a.astype(str)", "a.astype('M8[s]')", "a.astype([('f', 'f4')])",
    "a.astype(np.float64)", "a.astype(np.float16)", "a.astype(np.longdouble)", "np.ma.masked_array(a)", "a.view(np.recarray)",
    "a.astype(a.dtype, order='F')", "np.concatenate([a, a])", "np.concatenate([a, a], axis=-1)",
    "np.zeros(a.shape + (1,), a.dtype)", "np.zeros((0,) * a.ndim, a.dtype)",
)  # fmt: skip
GARBAGE: dict[str, Sequence[str]] = {
    **dict.fromkeys(("stride", "dilation", "window", "groups", "output_padding", "storage_order", "divisor"), NUMBERS),
    **dict.fromkeys(("layout", "rounding", "ties", "nan", "count_include_pad", "return_indices", "return_winners"), WORDS),
    "padding": PADDINGS,
    **dict.fromkeys(("input_shape", "filter_shape", "output_shape"), SHAPES),
    **dict.fromkeys(("x", "filter", "dy", "t", "indices", "winners"), ARRAYS),
    "no_such_keyword": ("1",),
}
