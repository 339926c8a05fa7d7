"""vmap of the primitives: the mapped axis is folded into an axis that the op has, so that one call does all of it.

Pooling takes it into the batch. A convolution joins three arrays, each with two of the axes batch, channels in and channels out;
a mapped axis that two of the three have goes into the axis those two share, one that all have becomes groups.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching

from pullback.derivatives import DERIVATIVES
from pullback.jax.primitives import FUNCTIONS, PAIRS, PRIMITIVES, result_structs
from pullback.jax.symbolic import batched_shapes, is_symbolic
from pullback.jax.xla_calls import Keywords
from pullback.rules import LAYOUT_NAMES
from pullback.settings import Blocks, under

# Axes of the three arrays of a convolution, the channels split into (g)roups and (i)n or (o)ut: b(atch), s(patial) any number.
_AXES = {
    "channels_last": {"x": "bsgi", "filter": "sigo", "dy": "bsgo"},
    "channels_first": {"x": "bgis", "filter": "gois", "dy": "bgos"},
}
_CONV_RESULT = {"conv": "dy", "conv_grad_input": "x", "conv_grad_filter": "filter"}
_SHAPE_KEYWORD = {"x": "input_shape", "filter": "filter_shape"}


class _Fold:
    """Folds a mapped axis of some size in front of axis `into` of a convolution's arrays, and out again."""

    def __init__(self, size: int, into: str, layout: str, rank: int, groups: int) -> None:
        self.size, self.into, self.groups = size, into, groups
        self._axes = {name: axes.replace("s", "s" * rank) for name, axes in _AXES[LAYOUT_NAMES[layout]].items()}

    def _split(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape with its channels split by groups."""
        at = self._axes[name].index("g")
        return (*shape[:at], self.groups, shape[at] // self.groups, *shape[at + 1 :])

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What the fold makes of the shape without the mapped axis."""
        split = list(self._split(name, shape))
        split[self._axes[name].index(self.into)] *= self.size
        at = self._axes[name].index("g")
        return (*split[:at], split[at] * split[at + 1], *split[at + 2 :])

    def fold(self, name: str, array: Any) -> Any:
        plain = array.shape[1:]
        split = array.reshape(self.size, *self._split(name, plain))
        return jnp.moveaxis(split, 0, self._axes[name].index(self.into)).reshape(self.shape(name, plain))

    def unfold(self, name: str, array: Any, plain: tuple[int, ...]) -> Any:
        """The mapped axis first again, the others of shape `plain`."""
        split, at = self._split(name, plain), self._axes[name].index(self.into)
        opened = array.reshape(*split[:at], self.size, *split[at:])
        return jnp.moveaxis(opened, at, 0).reshape(self.size, *plain)


class _Mapped:
    """The arrays of one call by name, each with its mapped axis in front, or without one."""

    def __init__(self, op: str, arrays: Any, axes: Any, keywords: Keywords) -> None:
        named = dict(zip(DERIVATIVES[op].arrays, zip(arrays, axes, strict=True), strict=True))
        self.op, self.keywords = op, dict(keywords)
        self.arrays = {name: a if axis is None else jnp.moveaxis(a, axis, 0) for name, (a, axis) in named.items()}
        self.mapped = [name for name, (_, axis) in named.items() if axis is not None]
        self.size: int = self.arrays[self.mapped[0]].shape[0]
        # What one place of the mapped axis has and gives.
        self.plain = {
            name: jax.ShapeDtypeStruct(a.shape[1:] if name in self.mapped else a.shape, a.dtype)
            for name, a in self.arrays.items()
        }
        self.plain_results = result_structs(op, tuple(self.plain.values()), self.keywords)


def _map_conv(call: _Mapped) -> list[Any]:
    result, plain = _CONV_RESULT[call.op], call.plain_results[0].shape
    layout, groups = call.keywords.get("layout", "channels_last"), call.keywords.get("groups", 1)
    shared = set.intersection(*(set(_AXES[LAYOUT_NAMES[layout]][name]) for name in (*call.mapped, result)))
    into = min(shared - {"s"}, key="biog".index)  # groups only where nothing else is shared
    if into != "b" and is_symbolic(call.size):
        raise ValueError(f"{call.op}: vmap takes this axis of {call.size} into the channels; only the batch may be symbolic")
    fold = _Fold(call.size, into, layout, len(plain) - 2, groups)
    folded = (fold.fold(name, a) if name in call.mapped else a for name, a in call.arrays.items())
    changed = {"groups": groups * call.size if into == "g" else groups}
    if result in _SHAPE_KEYWORD:
        changed[_SHAPE_KEYWORD[result]] = fold.shape(result, plain)
    return [fold.unfold(result, FUNCTIONS[call.op](*folded, **call.keywords | changed), plain)]


def _map_pool(call: _Mapped) -> list[Any]:
    arrays = {name: a if name in call.mapped else jnp.broadcast_to(a, (call.size, *a.shape)) for name, a in call.arrays.items()}
    first = call.plain[DERIVATIVES[call.op].arrays[0]].shape
    shapes = batched_shapes(call.keywords, len(first))
    changed = {name: (call.size * shape[0], *shape[1:]) for name, shape in shapes.items()}
    # What indices count in. Gradients that are not told it have none.
    cells = math.prod(shapes.get("input_shape", shapes.get("output_shape", first)))
    if "indices" in arrays:
        i = arrays["indices"].astype(jax.dtypes.canonicalize_dtype(np.int64))  # room for the cells of all places
        beyond = (i < -1) | (i >= cells)  # must stay beyond, not point to a neighbour
        arrays["indices"] = jnp.where(beyond, -2, jnp.where(i < 0, i, i + cells * _places(call.size, i)))
    results = FUNCTIONS[call.op](
        *(a.reshape(call.size * a.shape[1], *a.shape[2:]) for a in arrays.values()), **call.keywords | changed
    )
    listed = list(results) if isinstance(results, tuple) else [results]
    opened = [a.reshape(call.size, *plain.shape) for a, plain in zip(listed, call.plain_results, strict=True)]
    if call.keywords.get("return_indices"):
        i = opened[1]
        opened[1] = jnp.where(i < 0, i, i - cells * _places(call.size, i))
    return opened


def _places(size: int, indices: Any) -> Any:
    """The number of each index's place on the mapped axis, which is the first."""
    return jnp.arange(size, dtype=indices.dtype).reshape(size, *(1,) * (indices.ndim - 1))


def _batch(op: str, several: bool, arrays: Any, axes: Any, *, keywords: Keywords, blocks: Blocks) -> tuple[Any, Any]:
    call = _Mapped(op, arrays, axes, keywords)
    with under(blocks):
        if call.size == 0:
            results = [jnp.zeros((0, *plain.shape), plain.dtype) for plain in call.plain_results]
        else:
            results = _map_conv(call) if op in _CONV_RESULT else _map_pool(call)
    return (results, [0] * len(results)) if several else (results[0], 0)


for _op, _primitive in PRIMITIVES.items():
    batching.primitive_batchers[_primitive] = partial(_batch, _op, False)
for _op, _primitive in PAIRS.items():
    batching.primitive_batchers[_primitive] = partial(_batch, _op, True)
