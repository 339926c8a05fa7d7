"""run_kernel: one node of an ONNX graph as a function call, from names and attributes to the kernel's answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from pullback.ops.arguments import as_entries
from pullback.ops.replay import run_translated, translate_each_time
from pullback.ort.quirks import quirks_active
from pullback.ort.registry import Node, changes, find_kernel
from pullback.ort.schema import Schema, as_opset, bind_attributes, bind_inputs, bind_types, find_schema
from pullback.registry import REFERENCE, backend
from pullback.shown import shown

SHAPED_BY_GRAPH = ("MaxPoolGrad", "AveragePoolGrad")


def _wanted(schema: Schema, since_version: int, outputs: Iterable[str] | None) -> frozenset[str]:
    """The outputs to compute; None means all that the operator's version has."""
    known = schema.outputs_at(since_version)
    if outputs is None:
        return frozenset(known)
    names = (outputs,) if isinstance(outputs, str) else as_entries(outputs)
    if not names or any(not isinstance(name, str) or name not in known for name in names):
        raise ValueError(f"{schema.op_type}: outputs is {shown(outputs)}; choose from {', '.join(known)}")
    return frozenset(names)


def _declared_shape(schema: Schema, output_shape: Iterable[Any] | None) -> tuple[Any, ...] | None:
    if schema.op_type in SHAPED_BY_GRAPH:
        sizes = as_entries(output_shape)
        if sizes is None:
            raise ValueError(
                f"{schema.op_type}: output_shape is {shown(output_shape)}; "
                "the shape of dX is not in the inputs and must be declared"
            )
        return sizes
    if output_shape is not None:
        raise ValueError(f"{schema.op_type}: output_shape is only for {' and '.join(SHAPED_BY_GRAPH)}; here the inputs give it")
    return None


def _cast(result: Any, source: Any, target: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_cast(part, source, target) for part in result)
    with np.errstate(over="ignore"):
        return result.astype(target) if result is not None and result.dtype == source else result


def run_kernel(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    output_shape: Iterable[Any] | None = None,
    opset: int | None = None,
    domain: str | None = None,
    outputs: Iterable[str] | None = None,
) -> Any:
    """Run one operator on NumPy arrays under ONNX's names; the result is one array, or a tuple for several outputs.

    MaxPool gives (Y, Indices) and ConvGrad (dX, dW, dB); `outputs` names those wanted, the others are None. `output_shape` is
    the shape of dX, needed by the two pool gradients; its batch may be symbolic (None or a name) and then comes from dY.
    `opset` is the version of the default domain (None: the newest), `domain` the operator's (None: where it lives).
    """

    def translate() -> Any:
        return _run(op_type, inputs, attrs, output_shape, opset, domain, outputs)

    if quirks_active() or type(inputs) is not dict:
        return translate()
    options = (op_type, attrs, output_shape, opset, domain, outputs)
    return run_translated((run_kernel, changes()), inputs, options, translate)


def _run(
    op_type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None, output_shape: Iterable[Any] | None,
    opset: int | None, domain: str | None, outputs: Iterable[str] | None,
) -> Any:  # fmt: skip
    """The call, checked and translated."""
    version = as_opset(opset)
    schema = find_schema(op_type, domain, version)
    since = schema.since_version(version)
    attributes = bind_attributes(schema, since, attrs)
    arrays = bind_inputs(schema, inputs)
    dtypes = bind_types(schema, since, arrays)
    wanted = _wanted(schema, since, outputs)
    half, single = np.dtype(np.float16), np.dtype(np.float32)
    cast = quirks_active() and dtypes["T"] == half and schema.casts_float16
    if cast:
        dtypes = {"T": single}
        arrays = {name: _cast(array, half, single) for name, array in arrays.items()}
    kernel = find_kernel(schema.domain, schema.op_type, version, dtypes)
    if not kernel.run.__module__.startswith("pullback.ort."):
        translate_each_time()
    node = Node(schema.op_type, arrays, attributes, wanted, _declared_shape(schema, output_shape))
    # Upstream's bits are those of the reference kernels, which its emulations build on.
    with backend(REFERENCE) if quirks_active() else nullcontext():
        result = kernel.run(node)
    return _cast(result, single, half) if cast else result
