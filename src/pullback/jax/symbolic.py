"""Sizes that are not known while tracing (symbolic shapes of jax.export): the batch may be one, every other size must be a number.

Arguments are checked with a batch of 1 in its place. The exported program names it `BATCH` and reads it from its arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import jax

BATCH = "batch"
WITHOUT_BATCH = ("filter", "filter_shape")


def batched_shapes(keywords: Mapping[str, Any], rank: int) -> dict[str, tuple[Any, ...]]:
    """The keywords that are whole shapes, and so begin with the batch."""
    given = {name: keywords.get(name) for name in ("input_shape", "output_shape", "output_size")}
    return {name: shape for name, shape in given.items() if isinstance(shape, tuple) and len(shape) == rank}


def is_symbolic(value: Any) -> bool:
    """Whether a size, or one in a tuple, is symbolic.

    Whoever has such a size has imported jax.export. It is not imported here, since that of JAX 0.5 needs more packages than JAX.
    """
    if isinstance(value, tuple):
        return any(map(is_symbolic, value))
    export = sys.modules.get("jax.export")
    return export is not None and bool(export.is_symbolic_dim(value))


def check_only_batch(op: str, name: str, shape: tuple[Any, ...]) -> None:
    """ValueError for an array or a shape with a symbolic size that is not its batch."""
    if is_symbolic(tuple(shape) if name in WITHOUT_BATCH else tuple(shape[1:])):
        shown = ", ".join(map(str, shape))
        raise ValueError(
            f"{op}: {name} is ({shown}), but only the batch may be symbolic; all other sizes must be numbers: export once for "
            "each of them"
        )


def with_known_batch(op: str, arrays: Mapping[str, Any], keywords: Mapping[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    """Arrays (of anything with shape and dtype) and keywords with a batch of 1 in place of a symbolic one, and that one or None."""
    if not any(is_symbolic(tuple(a.shape)) for a in arrays.values()) and not any(map(is_symbolic, keywords.values())):
        return arrays, dict(keywords), None
    for name, array in arrays.items():
        check_only_batch(op, name, array.shape)
    shapes = batched_shapes(keywords, len(next(iter(arrays.values())).shape))
    for name, shape in shapes.items():
        check_only_batch(op, name, shape)
    for name, value in keywords.items():
        if name not in shapes and is_symbolic(value):
            raise ValueError(f"{op}: {name} is {value}, but only the batch may be symbolic; all else must be numbers")
    batches = {name: a.shape[0] for name, a in arrays.items() if name not in WITHOUT_BATCH}
    batches |= {name: shape[0] for name, shape in shapes.items()}
    first, batch = next(iter(batches.items()))
    for name, other in batches.items():
        if other is not batch and other != batch:
            raise ValueError(f"{op}: {name} has a batch of {other}, {first} of {batch}; they must be the same")
    known = {
        name: a if name in WITHOUT_BATCH else jax.ShapeDtypeStruct((1, *a.shape[1:]), a.dtype) for name, a in arrays.items()
    }
    return known, {**keywords, **{name: (1, *shape[1:]) for name, shape in shapes.items()}}, batch


def named(value: Any) -> Any:
    """A keyword or a shape as text keeps it: the symbolic batch by its name."""
    if isinstance(value, tuple):
        return tuple(map(named, value))
    return BATCH if is_symbolic(value) else value


def filled(value: Any, batch: int | None) -> Any:
    """What `named` was given, with the batch known."""
    if isinstance(value, tuple):
        return tuple(filled(entry, batch) for entry in value)
    return batch if isinstance(value, str) and value == BATCH else value
