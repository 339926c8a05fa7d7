"""One JAX primitive per op: what its result looks like, how it runs, and the public function that binds it.

Outside jit an op runs on views of the arrays' memory and JAX takes over the result as it is. Inside jit XLA calls the op on its
own buffers (`xla_calls`); on another device than the CPU, through a callback of JAX with copies. None of them waits for JAX.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

import pullback
from pullback.derivatives import DERIVATIVES
from pullback.jax.symbolic import is_symbolic, with_known_batch
from pullback.jax.xla_calls import TARGET, Keywords, as_text, check_indices, results_of
from pullback.ops.arguments import as_entries, as_layout
from pullback.ops.bias import as_bias
from pullback.ops.explain import PREPARE
from pullback.ops.hints import DEFAULT_LAYOUT, check_names
from pullback.registry import Explanation
from pullback.rules import Array
from pullback.settings import Blocks, blocks_in_force

ARRAYS = {op: rule.arrays for op, rule in DERIVATIVES.items()} | {"conv_transpose": ("x", "filter")}


def stand_in(name: str, like: Any) -> Array:
    """An array of this shape and dtype that takes no memory, for checks that read no values; "" where its name is not known."""
    dtype = np.dtype(like.dtype)
    # Indices of other integer types would be converted, and so take memory.
    kind = np.int64 if name in ("indices", "") and dtype.kind in "iu" else dtype
    return np.broadcast_to(np.zeros((), kind), like.shape)


def problem_of(op: str, arrays: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Callable[[tuple[int, ...]], Any]]:
    """What the op would run, and what makes a shape of it one of the call: both differ where the batch is symbolic."""
    known, plain, batch = with_known_batch(op, dict(zip(ARRAYS[op], arrays, strict=True)), keywords)
    problem = PREPARE[op](*map(stand_in, known, known.values()), **plain)[0]
    return problem, lambda shape: shape if batch is None else (batch, *shape[1:])


def result_structs(op: str, arrays: tuple[Any, ...], keywords: dict[str, Any]) -> list[jax.ShapeDtypeStruct]:
    """Shapes and dtypes of the op's results (max_pool may have two); raises what the op would raise."""
    problem, of_call = problem_of(op, arrays, keywords)
    shape = problem.result_shape if op == "conv_grad_filter" else of_call(problem.result_shape)
    structs = [jax.ShapeDtypeStruct(shape, problem.dtype)]
    if keywords.get("return_winners"):
        structs.append(jax.ShapeDtypeStruct(shape, problem.winner_dtype))
    if keywords.get("return_indices"):
        structs.append(jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(np.int64)))
    check_indices(op, problem.input_shape, (a.dtype for a in (*arrays, *structs)))
    return structs


def _primitive(op: str, several: bool) -> Any:
    """A primitive of the op with one result, or with `several`."""
    primitive = Primitive(f"pullback_{op}{'_pair' if several else ''}")
    primitive.multiple_results = several

    def run(*arrays: Any, keywords: Keywords, blocks: Blocks) -> Any:
        results = results_of(op, dict(keywords), blocks, tuple(map(np.asarray, arrays)))
        placed = jax.device_put(list(results), _device(arrays[0]), may_alias=True)
        return placed if several else placed[0]

    def look(*arrays: Any, keywords: Keywords, blocks: Blocks) -> Any:
        if any(map(_varies, arrays)):
            raise NotImplementedError(
                f"{op}: shard_map cannot check what this op's result varies over: pass check_vma=False to it"
            )
        structs = [jax.core.ShapedArray(s.shape, s.dtype) for s in result_structs(op, arrays, dict(keywords))]
        return structs if several else structs[0]

    def lower(context: Any, *operands: Any, keywords: Keywords, blocks: Blocks) -> Any:
        call = as_text(op, keywords, blocks, context.avals_in, context.avals_out)
        return jax.ffi.ffi_lowering(TARGET, has_side_effect=False)(context, *operands, call=call)

    def lower_elsewhere(context: Any, *operands: Any, keywords: Keywords, blocks: Blocks) -> Any:
        if context.module_context.lowering_parameters.for_export:
            raise NotImplementedError(f'{op}: exported programs run on the CPU: jax.export.export(..., platforms=["cpu"])')

        def call_back(*arrays: Array) -> tuple[Array, ...]:
            return results_of(op, dict(keywords), blocks, tuple(map(np.asarray, arrays)))

        return mlir.emit_python_callback(
            context, call_back, None, list(operands), context.avals_in, context.avals_out, has_side_effect=False
        )[0]

    primitive.def_impl(run)
    primitive.def_abstract_eval(look)
    mlir.register_lowering(primitive, lower, platform="cpu")
    mlir.register_lowering(primitive, lower_elsewhere)
    return primitive


def _varies(aval: Any) -> bool:
    """Whether shard_map follows which devices have different values of an array, and so where its gradients are summed.

    Our results would count as the same on all devices, and gradients miss the parts of the others.
    """
    axes = getattr(aval, "manual_axis_type", None)  # JAX 0.10; before, the axes themselves were in `vma`
    return bool(getattr(aval, "vma", ()) if axes is None else axes.varying)


def _device(array: Any) -> Any:
    """Where a result of this array belongs; None leaves the choice to JAX, as it was for the array."""
    if not getattr(array, "committed", False) or len(array.devices()) != 1:
        return None
    return array.sharding


PRIMITIVES: dict[str, Any] = {op: _primitive(op, several=False) for op in DERIVATIVES}
PAIRS: dict[str, Any] = {
    op: _primitive(op, several=True) for op in ("max_pool", "adaptive_max_pool")
}  # with indices or winners


def _frozen(name: str, value: Any) -> Any:
    """A keyword's value as a compiled program keeps it: plain numbers and strings, sequences as tuples."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} depends on an array that JAX is tracing; it must be known before jit (static_argnames)")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (np.ndarray, jax.Array)):
        value = np.asarray(value)[()]
    entries = as_entries(value)
    if entries is not None:
        return tuple(_frozen(name, entry) for entry in entries)
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        return value
    return operator.index(value)


def bound(op: str) -> Callable[..., tuple[dict[str, Any], dict[str, Any], Any]]:
    """A function from a call's arguments to the arrays and the keywords, by name, and the bias."""
    model, names = getattr(pullback, op), ARRAYS[op]
    signature = inspect.signature(model)

    def bind(*args: Any, **named: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
        check_names(model, args, named)
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError as error:
            raise TypeError(f"{op}: {error}") from None
        if given.pop("out", None) is not None:
            raise TypeError(f"{op}: JAX arrays cannot be written to; leave out= away")
        bias = given.pop("bias", None)
        arrays = {name: jnp.asarray(given.pop(name)) for name in names}
        return arrays, {name: _frozen(f"{op}: {name}", value) for name, value in given.items()}, bias

    return bind


def with_bias(op: str, y: Any, bias: Any, keywords: dict[str, Any]) -> Any:
    """The result of a convolution plus its bias."""
    if bias is None:
        return y
    layout, b = keywords.get("layout", DEFAULT_LAYOUT), jnp.asarray(bias)
    as_bias(op, stand_in("bias", b), y, layout)  # checks it
    return y + (b if as_layout(op, layout, y.ndim - 2) == "channels_last" else b.reshape((-1,) + (1,) * (y.ndim - 2)))


def _function(op: str) -> Callable[..., Any]:
    """The op of NumPy arrays as a function of JAX arrays, with the same arguments."""
    bind = bound(op)

    def function(*args: Any, **named: Any) -> Any:
        arrays, keywords, bias = bind(*args, **named)
        places = "indices" in arrays or keywords.get("return_indices")
        if places or any(isinstance(array, jax.core.Tracer) for array in arrays.values()):
            result_structs(op, tuple(arrays.values()), keywords)  # here 1 and True still differ, as parameters they do not
        pair = keywords.get("return_indices") or keywords.get("return_winners")
        primitive = PAIRS[op] if pair else PRIMITIVES[op]
        results = primitive.bind(*arrays.values(), keywords=tuple(keywords.items()), blocks=blocks_in_force())
        return tuple(results) if pair else with_bias(op, results, bias, keywords)

    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {op: _function(op) for op in DERIVATIVES}


def explain(op_name: str, *args: Any, **keywords: Any) -> Explanation:
    """`pullback.explain` for JAX arrays, traced ones too: only shapes and dtypes are read, so it may be called under jit."""

    def known(name: str, value: Any) -> Any:
        if not isinstance(value, jax.Array):
            return value
        if is_symbolic(tuple(value.shape)):
            raise ValueError(f"explain: the kernel of {op_name} depends on all sizes, and {value.shape} has symbolic ones")
        return stand_in(name, value)

    return pullback.explain(
        op_name, *(known("", value) for value in args), **{name: known(name, value) for name, value in keywords.items()}
    )


def public(op: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The function of this name, with the signature and the words of its NumPy model."""
    public_function = functools.wraps(getattr(pullback, op))(function or FUNCTIONS[op])
    public_function.__module__ = "pullback.jax"
    return public_function
