"""pullback.jax: derivatives of every order, vmap, jit, number types and errors. The marker `jax` selects it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DTYPES
from jax.test_util import check_grads
from test_derivatives import CALLS, PLACES, example

import pullback as pb
import pullback.jax as pj
from pullback.derivatives import DERIVATIVES

pytestmark = pytest.mark.jax

SIZES, KERNELS = (4, 5, 6), (2, 3, 2)
DEEPER: list[dict[str, Any]] = [
    {"rank": 1, "layout": "channels_last", "groups": 1, "stride": 2, "padding": "same"},
    {"rank": 1, "layout": "channels_first", "groups": 2, "dilation": 2, "padding": ((2, 0),)},
    {"rank": 2, "layout": "NCHW", "groups": 2, "stride": (1, 2), "padding": 1, "rounding": "ceil"},
    {"rank": 3, "layout": "channels_last", "groups": 2, "stride": (1, 2, 1), "padding": "same_lower"},
    {"rank": 3, "layout": "channels_first", "groups": 1, "stride": 2, "dilation": (2, 1, 1), "padding": (1, 0, 1)},
]


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    """64-bit numbers, unless a test turns them off."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def _floats(op: str, arrays: dict[str, np.ndarray], keywords: dict[str, Any]) -> tuple[Any, list[np.ndarray]]:
    """The op as a function of its arrays of floats, and those."""
    floats = [name for name, array in arrays.items() if array.dtype.kind == "f"]

    def function(*values: Any) -> Any:
        return getattr(pj, op)(*(arrays | dict(zip(floats, values, strict=True))).values(), **keywords)

    return function, [arrays[name] for name in floats]


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize(("op", "place"), CALLS)
def test_derivatives_forwards_and_backwards_to_order_two(op: str, place: dict[str, Any], layout: str) -> None:
    function, floats = _floats(op, *example(op, place, layout))
    check_grads(jax.jit(function), floats, order=2, modes=["fwd", "rev"], eps=1e-3)


@pytest.mark.parametrize("case", DEEPER, ids=str)
def test_derivatives_in_one_two_and_three_dimensions(case: dict[str, Any]) -> None:
    keywords = dict(case)
    rank, groups = keywords.pop("rank"), keywords.pop("groups")
    last = keywords["layout"] == "channels_last"
    rng = np.random.default_rng(rank)
    sizes, kernel = SIZES[:rank], KERNELS[:rank]
    x = (
        rng.permutation(np.prod(sizes) * 2 * 2 * groups).reshape((2, *sizes, 2 * groups) if last else (2, 2 * groups, *sizes))
        / 8
    )
    f = rng.normal(size=(*kernel, 2, 2 * groups) if last else (2 * groups, 2, *kernel))
    check_grads(partial(pj.conv, groups=groups, **keywords), (x, f), order=2, modes=["fwd", "rev"])
    for pool in (pj.max_pool, pj.avg_pool):
        check_grads(partial(pool, window=kernel, **keywords), (x,), order=2, modes=["fwd", "rev"], eps=1e-3)


def test_conv_transpose_is_differentiable() -> None:
    rng = np.random.default_rng(0)
    x, f = rng.normal(size=(2, 3, 4, 6)), rng.normal(size=(3, 2, 2, 6))
    function = partial(pj.conv_transpose, stride=2, padding=1, output_padding=(0, 1), groups=2)
    np.testing.assert_array_equal(function(x, f), pb.conv_transpose(x, f, stride=2, padding=1, output_padding=(0, 1), groups=2))
    check_grads(jax.jit(function), (x, f), order=2, modes=["fwd", "rev"])


def test_third_derivative_and_hessian() -> None:
    x = jnp.asarray(np.random.default_rng(0).permutation(12) / 4.0)

    def energy(v: Any) -> Any:
        pooled = pj.max_pool(v.reshape(1, 12, 1), 3, stride=2)
        return (pj.conv(pooled, v[:2].reshape(2, 1, 1)) ** 2).sum()

    third = jax.grad(jax.grad(jax.grad(lambda scale: energy(scale * x))))(1.0)
    np.testing.assert_allclose(third, 24 * energy(x), rtol=1e-12)  # of scale ** 4
    hessian = jax.jit(jax.hessian(energy))(x)
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-12)
    np.testing.assert_allclose(x @ hessian @ x, 12 * energy(x), rtol=1e-12)


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize("op", DERIVATIVES)
def test_vmap_is_a_loop(op: str, layout: str) -> None:
    arrays, keywords = example(op, PLACES[2], layout)
    function = partial(getattr(pj, op), **keywords)
    for count in range(1, len(arrays) + 1):
        for mapped in combinations(arrays, count):
            axes = [arrays[name].ndim - i if name in mapped else None for i, name in enumerate(arrays)]
            stacked = [
                a if axis is None else np.stack([a, a[::-1], a], axis) for a, axis in zip(arrays.values(), axes, strict=True)
            ]
            one = [
                [a if axis is None else np.take(a, i, axis) for a, axis in zip(stacked, axes, strict=True)] for i in range(3)
            ]
            if "indices" in mapped:
                one = one[:1] + one[2:]  # reversed over the batch they would be another array's
                stacked = [a if axis is None else np.take(a, [0, 2], axis) for a, axis in zip(stacked, axes, strict=True)]
            expected = np.stack([function(*call) for call in one])
            got = jax.vmap(function, in_axes=axes)(*stacked)
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
            inside = jax.jit(jax.vmap(function, in_axes=axes, out_axes=1))(*stacked)
            np.testing.assert_array_equal(inside, np.moveaxis(got, 0, 1))
            none = [a if axis is None else np.take(a, [], axis) for a, axis in zip(stacked, axes, strict=True)]
            assert jax.vmap(function, in_axes=axes)(*none).shape == (0, *expected.shape[1:])


@pytest.mark.parametrize("storage_order", [0, 1])
def test_vmap_of_pooling_with_places(storage_order: int) -> None:
    x = np.random.default_rng(0).normal(size=(3, 2, 2, 5, 6))
    keywords = {"layout": "channels_first", "storage_order": storage_order}
    _, indices = jax.vmap(lambda a: pj.max_pool(a, 2, return_indices=True, **keywords))(x)
    expected = [pb.max_pool(a, 2, return_indices=True, **keywords) for a in x]
    np.testing.assert_array_equal(indices, [i for _, i in expected])
    dx = jax.vmap(lambda y, i: pj.max_pool_grad_from_indices(y, i, x.shape[1:], **keywords))(jnp.ones(indices.shape), indices)
    np.testing.assert_array_equal(
        dx, [pb.max_pool_grad_from_indices(np.ones(i.shape), i, x.shape[1:], **keywords) for _, i in expected]
    )
    beyond = indices.at[0, 0].set(x[0].size)  # a neighbour's first cell, were it only shifted
    with pytest.raises(ValueError, match="out of range"):
        jax.vmap(lambda y, i: pj.max_pool_grad_from_indices(y, i, x.shape[1:], **keywords))(jnp.ones(indices.shape), beyond)
    _, winners = jax.vmap(lambda a: pj.max_pool(a, 2, layout="channels_first", return_winners=True))(x)
    np.testing.assert_array_equal(winners[1], pb.max_pool(x[1], 2, layout="channels_first", return_winners=True)[1])
    y_dot = jax.jvp(lambda a: pj.max_pool(a, 2, return_indices=True, **keywords)[0], (x[0],), (x[1],))[1]
    np.testing.assert_array_equal(y_dot, pb.max_pool_jvp(x[1], x[0], 2, layout="channels_first"))


def test_vmap_twice_and_derivatives_of_each_example() -> None:
    rng = np.random.default_rng(0)
    x, f = rng.normal(size=(2, 3, 1, 6, 5, 4)), rng.normal(size=(3, 3, 2, 4))
    conv = partial(pj.conv, groups=2)
    got = jax.vmap(jax.vmap(conv, (0, None)), (0, None))(x, f)
    np.testing.assert_allclose(got[1, 2], pb.conv(x[1, 2], f, groups=2), rtol=1e-12)
    each = jax.jit(jax.vmap(jax.grad(lambda w, a: (conv(a, w) ** 2).sum()), (None, 0)))(f, x[0])
    one = pb.conv_grad_filter(2 * pb.conv(x[0, 1], f, groups=2), x[0, 1], f.shape, groups=2)
    np.testing.assert_allclose(each[1], one, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", DERIVATIVES)
def test_eager_and_compiled_are_the_numpy_op_bit_for_bit(op: str, dtype: np.dtype[Any]) -> None:
    arrays, keywords = example(op, PLACES[1], "channels_last")
    given = [a.astype(dtype) if a.dtype.kind == "f" else a for a in arrays.values()]
    expected = getattr(pb, op)(*given, **keywords)
    for result in (getattr(pj, op)(*given, **keywords), jax.jit(partial(getattr(pj, op), **keywords))(*given)):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, expected)


def test_large_results_lie_where_xla_wants_them() -> None:
    x = np.random.default_rng(0).normal(size=(4, 64, 64, 32)).astype(np.float32)
    y, winners = jax.jit(lambda a: pj.max_pool(a, 3, stride=1, padding="same", return_winners=True))(x)
    expected = pb.max_pool(x, 3, stride=1, padding="same", return_winners=True)
    np.testing.assert_array_equal(y, expected[0])
    np.testing.assert_array_equal(winners, expected[1])
    turned = jnp.swapaxes(x, 1, 2)
    got = jax.jit(lambda a: jnp.swapaxes(pj.avg_pool(jnp.swapaxes(a, 1, 2), 2), 1, 2))(turned)
    np.testing.assert_array_equal(got, np.swapaxes(pb.avg_pool(x, 2), 1, 2))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_convolution_equals_that_of_lax(layout: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 9, 8, 4) if layout == "NHWC" else (2, 4, 9, 8))
    f = rng.normal(size=(3, 2, 2, 6) if layout == "NHWC" else (6, 2, 3, 2))

    def ours(a: Any, w: Any) -> Any:
        return jnp.sin(pj.conv(a, w, stride=(2, 1), padding=((1, 0), (2, 1)), dilation=(1, 2), groups=2, layout=layout)).sum()

    def theirs(a: Any, w: Any) -> Any:
        numbers = (layout, "HWIO" if layout == "NHWC" else "OIHW", layout)
        y = jax.lax.conv_general_dilated(
            a, w, (2, 1), ((1, 0), (2, 1)), rhs_dilation=(1, 2), feature_group_count=2, dimension_numbers=numbers
        )
        return jnp.sin(y).sum()

    for got, expected in zip(jax.grad(ours, (0, 1))(x, f), jax.grad(theirs, (0, 1))(x, f), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_remat_and_scan() -> None:
    rng = np.random.default_rng(0)
    x, f = rng.normal(size=(1, 6, 6, 2)), rng.normal(size=(3, 3, 2, 2)) / 8

    def layer(a: Any, w: Any) -> Any:
        return pj.max_pool(jnp.tanh(pj.conv(a, w, padding="same")), 3, stride=1, padding="same")

    def looped(w: Any) -> Any:
        return layer(layer(layer(x, w), w), w).sum()

    def scanned(w: Any) -> Any:
        return jax.lax.scan(lambda a, _: (jax.checkpoint(layer)(a, w), None), x, None, length=3)[0].sum()

    np.testing.assert_allclose(jax.jit(jax.grad(scanned))(f), jax.grad(looped)(f), rtol=1e-12)


def test_without_64_bits() -> None:
    jax.config.update("jax_enable_x64", False)
    x = np.random.default_rng(0).normal(size=(1, 4, 4, 1))
    y, indices = jax.jit(lambda a: pj.max_pool(a, 2, return_indices=True))(x)
    assert (y.dtype, indices.dtype) == (jnp.float32, jnp.int32)
    np.testing.assert_array_equal(indices, pb.max_pool(x, 2, return_indices=True)[1])
    dx = pj.max_pool_grad_from_indices(y, indices, x.shape)
    np.testing.assert_array_equal(dx, jax.grad(lambda a: (pj.max_pool(a, 2) ** 2).sum() / 2)(x))
    huge = jax.ShapeDtypeStruct((1, 2**16, 2**16, 1), jnp.float32)
    with pytest.raises(ValueError, match=r"max_pool: int32 indices .*jax_enable_x64"):
        jax.eval_shape(lambda a: pj.max_pool(a, 2, return_indices=True), huge)


def test_keywords_may_be_anything_that_the_numpy_op_takes() -> None:
    x = np.random.default_rng(0).normal(size=(1, 9, 9, 2))
    expected = pb.max_pool(x, (3, 2), stride=2, padding="same")
    for window in ([3, 2], np.array([3, 2]), jnp.array([3, 2]), (np.int32(3), jnp.int32(2))):
        got = jax.jit(lambda a, w=window: pj.max_pool(a, w, stride=np.array(2), padding=np.str_("same")))(x)
        np.testing.assert_array_equal(got, expected)


def test_errors_come_while_tracing() -> None:
    x, f = jnp.zeros((1, 6, 6, 4)), jnp.zeros((3, 3, 2, 4))
    cases: list[tuple[type[Exception], str, Any]] = [
        (ValueError, r"conv: with groups=1 the 4 input channels", lambda a: pj.conv(a, f)),
        (ValueError, r"conv_grad_input: dy has shape", lambda a: pj.conv_grad_input(a, f, (1, 9, 9, 4), groups=2)),
        (ValueError, r"conv_transpose: output_padding", lambda a: pj.conv_transpose(a, f, output_padding=1)),
        (TypeError, r"conv: x is float64, filter is float32", lambda a: pj.conv(a, f.astype(jnp.float32), groups=2)),
        (TypeError, r"avg_pool: x has dtype int", lambda a: pj.avg_pool(a.astype(int), 2)),
        (TypeError, r"avg_pool: stride must be an integer, not True", lambda a: pj.avg_pool(a, 2, stride=True)),
        (TypeError, r"avg_pool: stride depends on .* jit", lambda a: pj.avg_pool(a, 2, stride=(1, a[0, 0, 0, 0]))),
        (TypeError, r"avg_pool: missing a required argument: 'window'", lambda a: pj.avg_pool(a)),
        (TypeError, r"avg_pool: there is no 'ties'; avg_pool takes", lambda a: pj.avg_pool(a, 2, ties="first")),
        (
            TypeError,
            r"max_pool_jvp_from_winners: winners have dtype",
            lambda a: pj.max_pool_jvp_from_winners(a, a[:, ::2, ::2], 2),
        ),
    ]
    jax.jit(lambda a: pj.avg_pool(a, 2, stride=1))(x)  # stride=True is not this call
    for kind, message, function in cases:
        with pytest.raises(kind, match=message):
            jax.eval_shape(function, x)
    with pytest.raises(ValueError, match="max_pool_grad is not linear in x"):
        jax.linear_transpose(lambda a: pj.max_pool_grad(jnp.zeros((1, 3, 3, 4)), a, 2), x)(x)


def test_settings_of_the_place_of_tracing_reach_the_kernels() -> None:
    x = jnp.ones((1, 4, 4, 1))
    with pb.backend("reference"), pb.kernel("no such kernel"):
        compiled = jax.jit(lambda a: pj.avg_pool(a, 2)).lower(x).compile()
    with pytest.raises(Exception, match="KernelError: avg_pool: no kernel 'no such kernel' on backend 'reference'"):
        jax.block_until_ready(compiled(x))
    np.testing.assert_array_equal(jax.jit(lambda a: pj.avg_pool(a, 2))(x), np.ones((1, 2, 2, 1)))


@pytest.mark.parametrize("op", sorted(set(pj.__all__) - {"explain"}))
def test_functions_have_the_signature_of_their_model(op: str) -> None:
    function = getattr(pj, op)
    assert inspect.signature(function) == inspect.signature(getattr(pb, op))
    assert function.__doc__ == getattr(pb, op).__doc__


def test_jax_has_every_op_of_numpy_arrays() -> None:
    others = {"draw", "grad", "grads", "value_and_grads"}  # JAX has these itself
    ops = {
        name for name in pb.__all__ if inspect.isfunction(op := getattr(pb, name)) and op.__module__.startswith("pullback.ops")
    }
    assert ops - others == set(pj.__all__)


def test_the_bias_and_its_gradient() -> None:
    rng = np.random.default_rng(0)
    x, f, b = rng.normal(size=(2, 3, 5, 6)), rng.normal(size=(4, 3, 2, 2)), rng.normal(size=4)
    function = jax.jit(partial(pj.conv, layout="channels_first"))
    np.testing.assert_allclose(function(x, f, bias=b), pb.conv(x, f, bias=b, layout="channels_first"), rtol=1e-12)
    gradient = jax.grad(lambda b: (function(x, f, bias=b) ** 2).sum())(b)
    dy = 2 * pb.conv(x, f, bias=b, layout="channels_first")
    np.testing.assert_allclose(gradient, pb.conv_grad_bias(dy, layout="channels_first"), rtol=1e-12)
    np.testing.assert_allclose(pj.conv_grad_bias(dy, layout="channels_first"), gradient, rtol=1e-12)
    np.testing.assert_allclose(
        pj.conv_transpose(dy, f, bias=b[:3], layout="NCHW"), pb.conv_transpose(dy, f, bias=b[:3], layout="NCHW"), rtol=1e-12
    )
    with pytest.raises(ValueError, match="conv: bias has shape"):
        pj.conv(x, f, bias=b[:3], layout="channels_first")
    with pytest.raises(TypeError, match="conv: JAX arrays cannot be written to"):
        pj.conv(x, f, layout="channels_first", out=np.empty(3))


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_global_and_lp_pools_are_those_of_numpy_and_differentiable(layout: str) -> None:
    x = np.random.default_rng(1).permutation(2 * 4 * 5 * 3).reshape(2, 4, 5, 3) / 8.0 - 3
    for pool in ("global_max_pool", "global_avg_pool"):
        y = getattr(pb, pool)(x, layout=layout)
        np.testing.assert_array_equal(jax.jit(partial(getattr(pj, pool), layout=layout))(x), y)
        check_grads(partial(getattr(pj, pool), layout=layout), (x,), order=2, modes=["fwd", "rev"], eps=1e-3)
        rest = (x,) if pool == "global_max_pool" else (x.shape,)
        np.testing.assert_array_equal(
            getattr(pj, f"{pool}_grad")(y, *rest, layout=layout), getattr(pb, f"{pool}_grad")(y, *rest, layout=layout)
        )
    norm = partial(pj.lp_pool, window=2, p=3, layout=layout)
    np.testing.assert_allclose(norm(x), pb.lp_pool(x, 2, p=3, layout=layout), rtol=1e-12)
    check_grads(norm, (x,), order=1, modes=["fwd", "rev"])
    np.testing.assert_allclose(
        pj.lp_pool_grad(norm(x), x, 2, p=3, layout=layout), pb.lp_pool_grad(norm(x), x, 2, p=3, layout=layout), rtol=1e-9
    )


@pytest.mark.parametrize("fixed", [False, True])
def test_batch_norm_is_that_of_numpy_and_differentiable(fixed: bool) -> None:
    rng = np.random.default_rng(1)
    x, add, dy = (rng.normal(size=(2, 3, 4, 5)) for _ in range(3))
    scale, bias = rng.normal(size=3), rng.normal(size=3)
    options: dict[str, Any] = {"activation": "relu6", "add": add, "layout": "channels_first"}
    if fixed:
        options |= {"mean": rng.normal(size=3), "variance": rng.uniform(1, 2, 3)}
    found = jax.jit(partial(pj.batch_norm, return_statistics=True, **options))(x, scale, bias)
    for ours, right in zip(found, pb.batch_norm(x, scale, bias, return_statistics=True, **options), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-9, atol=1e-12)
    for ours, right in zip(
        pj.batch_norm_grad(dy, x, scale, bias, **options), pb.batch_norm_grad(dy, x, scale, bias, **options), strict=True
    ):
        np.testing.assert_allclose(ours, right, rtol=1e-9, atol=1e-12)
    check_grads(partial(pj.batch_norm, layout="NCHW"), (x, scale, bias), order=1, modes=["rev"], eps=1e-3)
    with pytest.raises(ValueError, match=r"batch_norm: scale has shape \(2,\)"):
        pj.batch_norm(x, scale[:2], bias, layout="NCHW")
    with pytest.raises(TypeError, match="batch_norm: x has dtype int"):
        pj.batch_norm(x.astype(int), scale, bias, layout="NCHW")


def test_explain_reads_traced_arrays() -> None:
    said = []

    @jax.jit
    def step(x: Any, f: Any) -> Any:
        said.append(str(pj.explain("conv", x, filter=f)))
        return pj.conv(x, f)

    x, f = np.ones((1, 5, 5, 3), np.float32), np.ones((2, 2, 3, 4), np.float32)
    step(x, f)
    assert said == [str(pb.explain("conv", x, f))]


def test_numpy_ops_on_traced_arrays_name_this_module() -> None:
    with pytest.raises(
        TypeError, match=r"avg_pool: x is a JAX array that jit, grad or vmap traces; call pullback\.jax\.avg_pool"
    ):
        jax.jit(lambda x: pb.avg_pool(x, 2))(np.ones((1, 4, 4, 1)))
    assert pb.avg_pool(jnp.ones((1, 4, 4, 1)), 2).shape == (1, 2, 2, 1)  # a plain array is read
