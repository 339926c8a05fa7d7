"""What the ops refuse, with one clear exception each, and the unusual input they must still answer rightly."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
from cases import call, cases, favourites, integers
from endless import DEEP, ITSELF, NO_END, TWICE
from hypothesis import given
from hypothesis import strategies as st
from kernels import OPS, KernelUnderTest, kernels_of
from numpy.lib.stride_tricks import as_strided

import pullback as pb
from pullback.shown import shown

X, F, DY = np.ones((2, 5, 7, 4)), np.ones((2, 3, 2, 6)), np.ones((2, 4, 5, 6))
POOLED, INDICES = np.ones((2, 2, 3, 4)), np.zeros((2, 2, 3, 4), np.int64)
VALID: dict[str, dict[str, Any]] = {
    "conv": {"x": X, "filter": F, "groups": 2},
    "conv_grad_input": {"dy": DY, "filter": F, "input_shape": X.shape, "groups": 2},
    "conv_grad_filter": {"dy": DY, "x": X, "filter_shape": F.shape, "groups": 2},
    "max_pool": {"x": X, "window": 2},
    "max_pool_grad": {"dy": POOLED, "x": X, "window": 2},
    "max_pool_grad_from_indices": {"dy": POOLED, "indices": INDICES, "input_shape": X.shape},
    "avg_pool": {"x": X, "window": 2},
    "avg_pool_grad": {"dy": POOLED, "input_shape": X.shape, "window": 2},
}
HUGE = 10**30

NOT_POSITIVE_INTEGERS = (0, -1, 1.0, 1.5, float("nan"), True, "2", b"2", 1j, (1,), (1, 2, 3), (), (1, 0), (1, 1.0), (True, 1),
                         {}, [[1, 1], [1, 1]], np.ones(2), np.array(1.0), np.bool_(True), list, *NO_END)  # fmt: skip
NOT_FLOATS: tuple[Callable[[np.ndarray], Any], ...] = (
    lambda a: a.astype(np.int32), lambda a: a.astype(np.complex64), lambda a: a.astype(object), lambda a: a.astype(str),
    lambda a: a.astype(bool), np.ma.masked_array, lambda a: None, lambda a: "array",
    lambda a: a.astype("M8[s]"), lambda a: [[[[1.0], [1.0, 2.0]]]], lambda a: ITSELF, lambda a: TWICE, lambda a: DEEP,
)  # fmt: skip
NOT_SHAPES = (None, 5, "2574", b"2574", (2, 5, 7, -4), (2.0, 5, 7, 4), (True, 5, 7, 4), ("2", 5, 7, 4), np.array(3), list,
              *NO_END)  # fmt: skip
BAD_VALUES: dict[str, tuple[Any, ...]] = {
    "stride": NOT_POSITIVE_INTEGERS,
    "dilation": (*NOT_POSITIVE_INTEGERS, None, 7, HUGE),
    "window": (*NOT_POSITIVE_INTEGERS, None, 6, (6, 1), (1, 8), HUGE),
    "groups": (0, -2, 1, 4, 2.0, True, "2", None, (2,), np.float64(2), HUGE, *NO_END),
    "padding": ("SAMEE", "full", "", b"same", None, 1.5, True, np.bool_(False), (1,), (1, 2, 3), (), [(1, 2)], "1", 1j,
                [(1, 2, 3), (0, 0)], [(1,), (1,)], [("a", "b"), (0, 0)], [(1.0, 0), (0, 0)], [None, None], ["ab", "cd"],
                [(True, 0), (0, 0)], (1.0, 1.0), -9, [(0, -7), (0, 0)], {"low": 1}, [list, list], np.ones(2), *NO_END,
                [ITSELF, TWICE], [(0, DEEP), (0, 0)]),
    "layout": (ITSELF, DEEP, "NHCW", "nwhc", "NWC", "NCDHW", "NDHWC", "NCW", "", "last", None, 3, ["NHWC"], b"NHWC"),
    "rounding": (DEEP, "Floor", "trunc", "", None, 1, True, ["floor"], np.array(["floor", "ceil"])),
    "ties": ("any", "", None, True, 0, ["first"]),
    "nan": ("leading", "NaN", None, float("nan"), True),
    "count_include_pad": (1, 0, None, "yes", 1.0),
    "divisor": (0, -3, 1.0, True, "2", (2,), HUGE),
    "return_indices": (1, 0, None, "yes"),
    "storage_order": (2, -1, True, "0", 0.0, None),
    "input_shape": NOT_SHAPES,
    "filter_shape": NOT_SHAPES,
    "indices": (INDICES * 1.0, INDICES.astype(bool), INDICES.astype(object), INDICES + X.size, INDICES - 2, None,
                INDICES.astype(np.uint64) + np.uint64(2**63), np.ma.masked_array(INDICES), list, ITSELF, TWICE, DEEP),
    "x": tuple(spoil(X) for spoil in NOT_FLOATS),
    "filter": tuple(spoil(F) for spoil in NOT_FLOATS),
    "dy": tuple(spoil(DY) for spoil in NOT_FLOATS),
}  # fmt: skip
# Wrong shapes: the message must show them.
BAD_SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "x": ((5, 7), (7,), (2, 5, 7, 4, 1, 1), ()),
    "filter": ((2, 3, 2), (2, 3, 2, 6, 1), (2, 3, 4, 6), (2, 3, 2, 5), (0, 3, 2, 6), ()),
    "input_shape": ((5, 7), (), (2, 5, 7, 4, 1, 1), (2, 5, 7, 3), (3, 5, 7, 4)),
    "filter_shape": ((2, 3, 2), (2, 3, 2, 6, 1), (2, 3, 4, 6), (2, 3, 2, 5), (0, 3, 2, 6), ()),
    "indices": ((2, 2, 3), (2, 2, 3, 4, 1), (2, 3, 2, 4), (1, 2, 3, 4), (48,)),
    "dy": ((5, 7), (), (2, 4, 5, 1), (2, 9, 9, 4), (1, 2, 3, 4), (2, 3, 2, 4, 1)),
}


def parameters(op: str) -> set[str]:
    return set(inspect.signature(getattr(pb, op)).parameters)


def label(value: Any) -> str:
    return f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else shown(value)[:40]


def bad_calls() -> list[Any]:
    found = [pytest.param(op, "stride", None, None, id=f"{op}-stride-None") for op in OPS if op.startswith("conv")]
    for op in OPS:
        for name in sorted(parameters(op)):
            for value in BAD_VALUES.get(name, ()):
                found.append(pytest.param(op, name, value, None, id=f"{op}-{name}-{label(value)}"))
            for shape in BAD_SHAPES.get(name, ()):
                valid = VALID[op][name]
                value = np.zeros(shape, valid.dtype) if isinstance(valid, np.ndarray) else shape
                found.append(pytest.param(op, name, value, shape, id=f"{op}-{name}-shape-{shape}"))
    return found


@pytest.mark.parametrize("op", OPS)
def test_the_calls_spoiled_below_are_good(each_backend: str, op: str) -> None:
    getattr(pb, op)(**VALID[op])


@pytest.mark.parametrize(("op", "name", "value", "shape"), bad_calls())
def test_bad_input_is_one_clear_exception(op: str, name: str, value: Any, shape: tuple[int, ...] | None) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(pb, op)(**(VALID[op] | {name: value}))
    assert_clear(caught.value, op)
    assert name.removesuffix("_shape") in str(caught.value)
    if shape is not None:
        assert str(shape) in str(caught.value)


def assert_clear(error: Exception, op: str) -> None:
    assert type(error) in (TypeError, ValueError)
    assert str(error).startswith(f"{op}: "), error
    assert len(str(error)) < 500
    assert error.__suppress_context__ or error.__context__ is None, "one exception, not a chain"


@pytest.mark.parametrize("op", ["conv", "conv_grad_input", "conv_grad_filter", "max_pool_grad"])
def test_mixed_dtypes_are_named(op: str) -> None:
    arrays = [name for name, value in VALID[op].items() if isinstance(value, np.ndarray)]
    for name in arrays:
        with pytest.raises(TypeError, match="float32") as caught:
            getattr(pb, op)(**(VALID[op] | {name: VALID[op][name].astype(np.float32)}))
        assert_clear(caught.value, op)
        assert all(f"{each} is float" in str(caught.value) for each in arrays)


def padded_copy(a: np.ndarray) -> np.ndarray:
    """The values of an array inside a larger one of ones."""
    frame = np.ones([2 * n + 1 for n in a.shape], a.dtype)
    inner = frame[tuple(slice(1, 2 * n + 1, 2) for n in a.shape)]
    inner[...] = a
    return inner


def backwards(a: np.ndarray) -> np.ndarray:
    reverse = (slice(None, None, -1),) * a.ndim
    return np.ascontiguousarray(a[reverse])[reverse]


def read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


def unaligned(a: np.ndarray) -> np.ndarray:
    moved = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    moved[...] = a
    return moved


def byte_swapped(a: np.ndarray) -> np.ndarray:
    return a.astype(a.dtype.newbyteorder("S")) if a.dtype.kind in "fi" else a  # bfloat16 has no other byte order


FORMS: tuple[Callable[[np.ndarray], Any], ...] = (
    padded_copy, backwards, read_only, unaligned, byte_swapped, np.asfortranarray,
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@kernels_of(*OPS, "max_pool_grad_from_winners")
def test_any_memory_layout_gives_the_same_answer(kernel_under_test: KernelUnderTest, form: Callable[..., Any]) -> None:
    for case in (*favourites(), *cases()[16::3]):
        args, keywords = call(kernel_under_test.op, case, integers)
        unusual = tuple(form(a) if isinstance(a, np.ndarray) and a.size else a for a in args)
        copies = [np.array(a) for a in unusual]
        plain, got = kernel_under_test(*args, **keywords), kernel_under_test(*unusual, **keywords)
        if got is None or plain is None:
            continue
        assert got.dtype == plain.dtype == case.dtype
        assert got.dtype.isnative
        assert np.array_equal(got, plain), case
        assert all(np.array_equal(a, copy) for a, copy in zip(unusual, copies, strict=True)), "an input was changed"
        assert got.flags.c_contiguous
        assert got.flags.writeable
        assert not any(np.may_share_memory(got, a) for a in unusual if isinstance(a, np.ndarray))


@kernels_of(*OPS)
def test_overlapping_memory(kernel_under_test: KernelUnderTest) -> None:
    """Arrays whose cells share memory, as broadcast_to and as_strided make them."""
    for case in favourites():
        args, keywords = call(kernel_under_test.op, case, integers)
        base = np.arange(-9.0, sum(args[0].shape)).astype(case.dtype)
        step = base.itemsize
        sliding = as_strided(base, args[0].shape, (0, step, step, step))
        constant = np.broadcast_to(case.dtype.type(2), args[0].shape)
        for shared in (sliding, constant):
            expected = kernel_under_test(shared.copy(), *args[1:], **keywords)
            got = kernel_under_test(shared, *args[1:], **keywords)
            if got is not None:
                assert np.array_equal(got, expected)
        assert np.array_equal(base, np.arange(-9.0, len(base) - 9))


def test_a_window_of_one_cell_is_a_copy(each_backend: str) -> None:
    for pool in (pb.max_pool, pb.avg_pool):
        y = pool(X, 1)
        assert np.array_equal(y, X)
        assert not np.may_share_memory(y, X)


@pytest.mark.parametrize("op", OPS)
def test_lists_and_numpy_numbers(each_backend: str, op: str) -> None:
    expected = getattr(pb, op)(**VALID[op])
    listed = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in VALID[op].items()}
    assert np.array_equal(getattr(pb, op)(**listed), expected)
    named = {"stride": 2, "dilation": 1, "padding": 0, "window": 2, "groups": 2}
    shapes = {name: value for name, value in VALID[op].items() if name.endswith("shape")}
    numbers = {name: value for name, value in named.items() if name in parameters(op)} if "pool" in op else {"groups": 2}
    for kind in (np.int8, np.uint64, np.array):
        converted = {name: kind(value) for name, value in numbers.items()}  # type: ignore[call-overload]
        arrays = {name: np.array(value, np.int32) for name, value in shapes.items()}
        assert np.array_equal(getattr(pb, op)(**(VALID[op] | converted | arrays)), expected)
    per_axis = {name: np.array([value, value]) for name, value in numbers.items() if name != "groups"}
    assert np.array_equal(getattr(pb, op)(**(VALID[op] | per_axis)), expected)


@pytest.mark.parametrize("op", ["max_pool", "avg_pool", "conv"])
def test_layout_names_are_the_two_layouts(each_backend: str, op: str) -> None:
    for rank, (last, first) in {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}.items():
        x = np.arange(2.0 * 3**rank * 3).reshape(2, *(3,) * rank, 3)
        other: Any = np.arange(2.0**rank * 9).reshape(*(2,) * rank, 3, 3) if op == "conv" else 2
        for short, name in ((last, "channels_last"), (first, "channels_first")):
            if op == "conv" and name == "channels_first":
                other = np.moveaxis(other, (-1, -2), (0, 1))
            forward = getattr(pb, op)
            assert np.array_equal(forward(x, other, layout=short), forward(x, other, layout=name))


JUNK = st.sampled_from([
    None, True, 0, -1, 1, 2, 3, 1.5, float("nan"), float("inf"), "", "same", "valid", "same_lower", "x", b"1", (), (1,), (1, 2),
    (2, 1), ((1, 0), (0, 1)), (1, 2, 3), [1, [2]], {}, {1: 2, 2: 1}, frozenset({1, 2}), object(), len, list, np.array([1, 2]),
    np.array(2), np.array(2.0), np.float64(1), "floor", "ceil", "round", "channels_first", "NCHW", "last", "ignore", HUGE,
    -HUGE, (HUGE, 1), range(1, 3), 1j, Ellipsis, np.ones((2, 5, 7, 4)), np.ones((0, 5, 7, 4)), np.full((2, 2, 3, 4), 7),
    X.shape, F.shape, ITSELF, TWICE,
])  # fmt: skip


@pytest.mark.parametrize("op", OPS)
@given(st.data())
def test_junk_is_refused_or_answered(op: str, data: st.DataObject) -> None:
    """Whatever is thrown at an op, out comes a clear exception or a result of the right shape."""
    chosen = data.draw(st.lists(st.sampled_from(sorted(parameters(op))), min_size=1, max_size=3, unique=True))
    given_junk = {name: data.draw(JUNK, label=name) for name in chosen}
    keywords = VALID[op] | given_junk
    try:
        result = getattr(pb, op)(**keywords)
    except (TypeError, ValueError) as error:
        assert_clear(error, op)
        return
    values = result[0] if isinstance(result, tuple) else result
    assert values.shape == expected_shape(op, keywords)


def plain_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def expected_shape(op: str, keywords: dict[str, Any]) -> tuple[int, ...]:
    """The shape of a result, from the oracle's geometry."""
    for name in ("input_shape", "filter_shape"):
        if name in keywords:
            return tuple(keywords[name])
    x = np.asarray(keywords["x"])
    if op == "max_pool_grad":
        return x.shape
    defaults = {"stride": 1 if op == "conv" else None, "dilation": 1, "padding": "valid", "rounding": "floor"}
    plain = {name: plain_value(keywords.get(name, default)) for name, default in defaults.items()}
    first = keywords.get("layout") in ("channels_first", "NCHW")
    layout = "channels_first" if first else "channels_last"
    kernel, channels = plain_value(keywords.get("window")), oracle.channels_of(x.shape, layout)
    if op == "conv":
        f = oracle.filter_last(keywords["filter"], layout)
        kernel, channels = f.shape[:-2], f.shape[-1]
    outs = oracle.geometry(oracle.sizes_of(x.shape, layout), kernel, **plain).outs
    return (x.shape[0], channels, *outs) if first else (x.shape[0], *outs, channels)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"winners": np.zeros((1, 2, 2, 1), np.int64)}, TypeError, ("winners", "int64", "uint8")),
        ({"winners": np.zeros((1, 2, 3, 1), np.uint8)}, ValueError, ("winners", "(1, 2, 3, 1)", "(1, 2, 2, 1)")),
        ({"dy": np.ones((1, 3, 2, 1))}, ValueError, ("dy", "(1, 3, 2, 1)", "(1, 2, 2, 1)")),
        ({"dy": np.ones((1, 2, 2, 1), np.int32)}, TypeError, ("dy", "int32")),
        ({"window": (16, 17)}, ValueError, ("window",)),
        ({"nan": "never"}, ValueError, ("nan", "never")),
    ],
)
def test_bad_winners_are_one_clear_exception(
    each_backend: str, change: dict[str, Any], error: type, words: tuple[str, ...]
) -> None:
    good = {"dy": np.ones((1, 2, 2, 1)), "winners": np.zeros((1, 2, 2, 1), np.uint8), "input_shape": (1, 4, 4, 1), "window": 2}
    with pytest.raises(error) as caught:
        pb.max_pool_grad_from_winners(**(good | change))
    message = str(caught.value)
    assert message.startswith("max_pool_grad_from_winners: ")
    assert all(word in message for word in words), message


def test_winners_that_are_no_taps_pass_nothing(each_backend: str) -> None:
    for layout, channels in (("channels_last", 64), ("channels_last", 1), ("channels_first", 2)):
        shape = (1, 5, 5, channels) if layout == "channels_last" else (1, channels, 5, 5)
        y, winners = pb.max_pool(np.zeros(shape, np.float32), 3, stride=2, padding=1, layout=layout, return_winners=True)
        for code in (9, 100, 255):
            dx = pb.max_pool_grad_from_winners(
                np.ones_like(y), np.full_like(winners, code), shape, 3, stride=2, padding=1, layout=layout
            )
            assert not dx.any()


def test_both_kinds_of_winners_are_too_many(each_backend: str) -> None:
    with pytest.raises(ValueError, match="return_indices and return_winners"):
        pb.max_pool(X, 2, return_indices=True, return_winners=True)
