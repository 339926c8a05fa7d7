"""pullback.jax in exported programs (jax.export): sizes that are known, a symbolic batch, and what is refused. Marker `jax`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
import pullback.jax as pj

export: Any = pytest.importorskip("jax.export", reason="jax.export of old versions of JAX needs absl-py")
pytestmark = pytest.mark.jax

OURS = [export.DisabledSafetyCheck.custom_call("pullback_op")]
W = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3, 1, 2)), jnp.float32)


@pytest.fixture(autouse=True)
def _reference() -> Iterator[None]:
    """What is exported here does not depend on the kernel."""
    with pb.backend("reference"):
        yield


def _of(*shape: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _exported(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return export.export(jax.jit(function), disabled_checks=OURS, **options)(*arguments)


def _network(x: Any) -> Any:
    return pj.max_pool(jnp.tanh(pj.conv(x, W, bias=jnp.ones(2), padding="same")), 2)


def _images(batch: int) -> Any:
    return np.random.default_rng(batch).permutation(batch * 64).reshape(batch, 8, 8, 1).astype(np.float32) / 64


def test_a_program_of_known_sizes_needs_one_word_about_our_call() -> None:
    x = _images(2)
    with pytest.raises(ValueError, match="pullback_op"):
        export.export(jax.jit(_network))(x)
    program = _exported(_network, x)
    with pb.backend("reference"):
        np.testing.assert_array_equal(program.call(x), jax.jit(_network)(x))


OPEN: dict[str, Callable[[Any], Any]] = {
    "network": _network,
    "gradients": jax.grad(lambda x: (_network(x) ** 2).sum()),
    "gradient of the filter": lambda x: jax.grad(lambda w: (pj.conv(x, w) ** 2).sum())(W),
    "second derivative": lambda x: jax.jvp(jax.grad(lambda a: (pj.avg_pool(a, 3, stride=2) ** 3).sum()), (x,), (x,))[1],
    "indices": lambda x: pj.max_unpool(*pj.max_pool(x, 2, return_indices=True), x.shape),
    "adaptive": jax.grad(lambda x: (pj.adaptive_max_pool(x, 3) ** 2).sum() + (pj.adaptive_avg_pool(x, (3, 2)) ** 2).sum()),
    "global": lambda x: (pj.global_max_pool(x), pj.global_avg_pool(x), pj.lp_pool(x, 2)),
    "batch norm": lambda x: pj.batch_norm(x, jnp.ones(1), jnp.ones(1), activation="relu"),
    "transposed": lambda x: pj.conv_transpose(x, jnp.ones((2, 2, 3, 1)), stride=2),
    "mapped": lambda x: jax.vmap(lambda a: pj.max_unpool(*pj.max_pool(a, 2, return_indices=True), a.shape))(x[:, None]),
    "twice the batch": lambda x: pj.avg_pool(jnp.concatenate([x, x + 1]), 2),
}


@pytest.mark.parametrize("name", OPEN)
def test_the_batch_may_be_symbolic(name: str) -> None:
    (batch,) = export.symbolic_shape("b")
    program = _exported(OPEN[name], _of(batch, 8, 8, 1))
    for size in (1, 3):
        x = _images(size)
        for got, expected in zip(jax.tree.leaves(program.call(x)), jax.tree.leaves(OPEN[name](x)), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


REFUSED: list[tuple[str, Callable[..., Any], list[str]]] = [
    (r"conv: x is \(2, h, w, 1\), but only the batch may be symbolic", lambda x: pj.conv(x, W), ["2, h, w, 1"]),
    (r"conv: filter is \(3, 3, 1, c\), but only", pj.conv, ["2, 8, 8, 1", "3, 3, 1, c"]),
    (r"global_avg_pool: x is \(2, h, h, h\), but only", pj.global_avg_pool, ["2, h, h, h"]),
    (r"conv_transpose: x is \(2, 8, w, 2\), but only", lambda x: pj.conv_transpose(x, W), ["2, 8, w, 2"]),
    (r"avg_pool: window is b, but only", lambda x: pj.avg_pool(x, x.shape[0]), ["b, 8, 8, 1"]),
    (
        r"conv_grad_filter: x has a batch of c, dy of b; they must be the same",
        lambda dy, x: pj.conv_grad_filter(dy, x, W.shape, padding="same"),
        ["b, 8, 8, 2", "c, 8, 8, 1"],
    ),
    (
        r"avg_pool_grad: input_shape has a batch of 2, dy of b",
        lambda dy: pj.avg_pool_grad(dy, (2, 8, 8, 1), 2),
        ["b, 4, 4, 1"],
    ),
    (
        r"conv: vmap takes this axis of b into the channels; only the batch may be symbolic",
        lambda w: jax.vmap(lambda f: pj.conv(jnp.ones((1, 8, 8, 1)), f))(w),
        ["b, 3, 3, 1, 2"],
    ),
    (r"explain: the kernel of avg_pool depends on all sizes", lambda x: pj.explain("avg_pool", x, 2), ["b, 8, 8, 1"]),
]


@pytest.mark.parametrize(("message", "function", "shapes"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_other_symbolic_sizes_are_refused(message: str, function: Callable[..., Any], shapes: list[str]) -> None:
    scope = export.SymbolicScope()
    with pytest.raises(ValueError, match=message):
        _exported(function, *(_of(*export.symbolic_shape(shape, scope=scope)) for shape in shapes))


def test_indices_of_32_bits_are_checked_once_the_batch_is_known() -> None:
    from pullback.jax.xla_calls import _Call

    spec = "((('batch', 256, 256, 1), 'float32'),), ((('batch', 128, 128, 1), 'float32'), (('batch', 128, 128, 1), 'int32'))"
    text = f"('max_pool', (('window', 2), ('return_indices', True)), (), {spec})".encode()
    assert _Call(text).open
    assert not _Call(text, 2**14).open
    with pytest.raises(ValueError, match="max_pool: int32 indices cannot count the cells of"):
        _Call(text, 2**15)


def test_other_platforms_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="conv: exported programs run on the CPU"):
        _exported(_network, _images(1), platforms=["cpu", "cuda"])
