"""Forward and reverse mode of the primitives: the table of derivatives, told to JAX.

JAX differentiates forward and then transposes what is linear, so each op needs its tangents and, where it is linear in an array,
its gradient there. `max_pool` keeps the winners it found (a byte each) for its derivative instead of finding them again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.interpreters import ad

from pullback.derivatives import DERIVATIVES, Call
from pullback.jax.primitives import FUNCTIONS, PAIRS, PRIMITIVES
from pullback.jax.xla_calls import Keywords
from pullback.settings import Blocks, under


def _tangent_rule(op: str, name: str) -> Callable[..., Any] | None:
    """The tangent of the result from that of one array; None where the op is piecewise constant in it."""
    rule = DERIVATIVES[op].jvp.get(name)
    if rule is None:
        return None

    def tangent(t: Any, *arrays: Any, keywords: Keywords, blocks: Blocks) -> Any:
        named = dict(zip(DERIVATIVES[op].arrays, arrays, strict=True))
        with under(blocks):
            return rule.run(FUNCTIONS, {**named, "t": t}, dict(keywords))

    return tangent


def _transpose(op: str, g: Any, *arrays: Any, keywords: Keywords, blocks: Blocks) -> list[Any]:
    """The gradient of the one array that is unknown, from that of the result."""
    named = {
        name: array.aval if ad.is_undefined_primal(array) else array
        for name, array in zip(DERIVATIVES[op].arrays, arrays, strict=True)
    }
    unknown = [name for name, array in zip(named, arrays, strict=True) if ad.is_undefined_primal(array)]
    if len(unknown) != 1 or unknown[0] not in DERIVATIVES[op].vjp:
        raise ValueError(f"{op} is not linear in {' and '.join(unknown)}, and so cannot be transposed there")
    if type(g) is ad.Zero:
        return [None] * len(arrays)
    with under(blocks):
        gradient = DERIVATIVES[op].vjp[unknown[0]].run(FUNCTIONS, {**named, "g": g}, dict(keywords))
    return [gradient if name in unknown else None for name in named]


def _pair_jvp(op: str, primals: Any, tangents: Any, *, keywords: Keywords, blocks: Blocks) -> tuple[Any, Any]:
    """y and its winners or indices, and the tangent of y taken where they say."""
    y, places = PAIRS[op].bind(*primals, keywords=keywords, blocks=blocks)
    kind = "winners" if dict(keywords).get("return_winners") else "indices"
    from_places = Call(f"max_pool_jvp_from_{kind}", ("t", "places"))
    with under(blocks):
        tangent = from_places.run(FUNCTIONS, {"t": ad.instantiate_zeros(tangents[0]), "places": places}, dict(keywords))
    none = ad.Zero(jax.core.ShapedArray(places.shape, jax.dtypes.float0))  # what JAX takes for the tangent of integers
    return [y, places], [tangent, none]


def _max_pool_jvp(primals: Any, tangents: Any, *, keywords: Keywords, blocks: Blocks) -> tuple[Any, Any]:
    values, derivatives = _pair_jvp(
        "max_pool", primals, tangents, keywords=(*keywords, ("return_winners", True)), blocks=blocks
    )
    return values[0], derivatives[0]


for _op, _primitive in PRIMITIVES.items():
    if _op != "max_pool":
        ad.defjvp(_primitive, *(_tangent_rule(_op, name) for name in DERIVATIVES[_op].arrays))
        ad.primitive_transposes[_primitive] = partial(_transpose, _op)
ad.primitive_jvps[PRIMITIVES["max_pool"]] = _max_pool_jvp
for _op, _primitive in PAIRS.items():
    ad.primitive_jvps[_primitive] = partial(_pair_jvp, _op)
