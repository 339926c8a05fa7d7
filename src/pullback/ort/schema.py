"""What a node of each operator looks like, and the checks of a graph load: domain, version, inputs, outputs, types, attributes.

Everything here is refused before any kernel is looked for, with the sentence ONNX Runtime has for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.nearest import did_you_mean, nearest
from pullback.ops.arguments import as_array, as_int
from pullback.ort.quirks import quirks_active
from pullback.rules import Array
from pullback.shown import shown

ONNX_DOMAIN = ""
MS_DOMAIN = "com.microsoft"
DOMAIN_NAMES = {"": ONNX_DOMAIN, "ai.onnx": ONNX_DOMAIN, MS_DOMAIN: MS_DOMAIN}

NEWEST_OPSET = 22
UPSTREAM_NEWEST_OPSET = 21  # 1.19.2 cannot load a model of opset 22

HALF_TO_DOUBLE = ("float16", "float32", "float64")
ALL_FLOATS = (*HALF_TO_DOUBLE, "bfloat16")
INDEX_INPUT = "Indices"  # the one input that is int64 instead of T

_ONNX_TYPE_NAMES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class Schema:
    """One operator. `versions` lists where it changed; `types` and `attributes` say since which version each holds.

    `lenient`: upstream lets any attribute through unread, as a gradient's node carries those of its forward; by default one is
    refused that looks like a misspelt one. `mended_types`: accepted by default although upstream's schema lacks them.
    `casts_float16`: 1.19.2 runs float16 through its float32 kernel (for the pool gradients that crashed).
    """

    domain: str
    op_type: str
    versions: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[int, tuple[str, ...]]
    attributes: Mapping[str, int]
    required_attributes: tuple[str, ...] = ()
    optional_inputs: tuple[str, ...] = ()
    output_since: Mapping[str, int] | None = None
    mended_types: tuple[str, ...] = ()
    casts_float16: bool = True
    lenient: bool = False

    def since_version(self, opset: int) -> int:
        """The version of the operator in force at an opset (contrib operators have a domain version of their own)."""
        if self.domain == MS_DOMAIN:
            return self.versions[-1]
        reached = [version for version in self.versions if version <= opset]
        if not reached:
            raise ValueError(f"No Op registered for {self.op_type} with domain_version of {opset}")
        return reached[-1]

    def types_at(self, since_version: int) -> tuple[str, ...]:
        known = tuple(name for version, names in self.types.items() if version <= since_version for name in names)
        return known if quirks_active() else known + self.mended_types

    def outputs_at(self, since_version: int) -> tuple[str, ...]:
        later = self.output_since or {}
        return tuple(name for name in self.outputs if later.get(name, 0) <= since_version)


_WINDOW_ATTRIBUTES = {"auto_pad": 1, "kernel_shape": 1, "pads": 1, "strides": 1}
_MAX_POOL_ATTRIBUTES = _WINDOW_ATTRIBUTES | {"storage_order": 8, "ceil_mode": 10, "dilations": 10}
_AVERAGE_POOL_ATTRIBUTES = _WINDOW_ATTRIBUTES | {"count_include_pad": 7, "ceil_mode": 10, "dilations": 19}
_CONV_ATTRIBUTES = _WINDOW_ATTRIBUTES | {"dilations": 1, "group": 1}
_GRADIENT_TYPES = {1: HALF_TO_DOUBLE}
_MENDED_TYPES = ("bfloat16",)

SCHEMAS: dict[str, Schema] = {
    schema.op_type: schema
    for schema in (
        Schema(
            ONNX_DOMAIN, "MaxPool", (1, 8, 10, 11, 12, 22), ("X",), ("Y", "Indices"),
            {1: HALF_TO_DOUBLE, 12: ("int8", "uint8"), 22: ("bfloat16",)},
            _MAX_POOL_ATTRIBUTES, ("kernel_shape",), output_since={"Indices": 8},
        ),
        Schema(
            ONNX_DOMAIN, "AveragePool", (1, 7, 10, 11, 19, 22), ("X",), ("Y",), {1: HALF_TO_DOUBLE, 22: ("bfloat16",)},
            _AVERAGE_POOL_ATTRIBUTES, ("kernel_shape",),
        ),
        Schema(
            ONNX_DOMAIN, "Conv", (1, 11, 22), ("X", "W"), ("Y",), {1: HALF_TO_DOUBLE, 22: ("bfloat16",)},
            _CONV_ATTRIBUTES, optional_inputs=("B",),
        ),
        Schema(
            ONNX_DOMAIN, "MaxPoolGrad", (9,), ("dY", INDEX_INPUT), ("dX",), _GRADIENT_TYPES,
            _MAX_POOL_ATTRIBUTES, mended_types=_MENDED_TYPES, casts_float16=False, lenient=True,
        ),
        Schema(
            ONNX_DOMAIN, "AveragePoolGrad", (9,), ("dY",), ("dX",), _GRADIENT_TYPES,
            _AVERAGE_POOL_ATTRIBUTES, ("kernel_shape",), mended_types=_MENDED_TYPES, casts_float16=False, lenient=True,
        ),
        Schema(
            MS_DOMAIN, "ConvGrad", (1,), ("dY", "X", "W"), ("dX", "dW", "dB"), _GRADIENT_TYPES, _CONV_ATTRIBUTES,
            mended_types=_MENDED_TYPES, lenient=True,
        ),
        Schema(
            MS_DOMAIN, "ConvTransposeGrad", (1,), ("dY", "X", "W"), ("dX", "dW", "dB"), _GRADIENT_TYPES,
            _CONV_ATTRIBUTES | {"output_padding": 1, "output_shape": 1}, mended_types=_MENDED_TYPES, lenient=True,
        ),
    )
}  # fmt: skip


def as_opset(opset: Any) -> int:
    """The opset asked for, or the newest; one from the future is refused, since its rules are unknown."""
    newest = UPSTREAM_NEWEST_OPSET if quirks_active() else NEWEST_OPSET
    if opset is None:
        return newest
    number = as_int("run_kernel", "opset", opset)
    if not 1 <= number <= newest:
        raise ValueError(f"opset {number}: current official support for domain ai.onnx is from opset 1 till opset {newest}")
    return number


def find_schema(op_type: str, domain: str | None, opset: int) -> Schema:
    """The schema of an operator under a name like "ConvGrad", "com.microsoft.ConvGrad" or "com.microsoft::ConvGrad"."""
    if not isinstance(op_type, str):
        raise TypeError(f"run_kernel: op_type must be a string, not {shown(op_type)}")
    if domain is not None and not isinstance(domain, str):
        raise TypeError(f"run_kernel: domain must be a string, not {shown(domain)}")
    prefix, _, name = op_type.replace("::", ".").rpartition(".")
    if prefix:
        domain = prefix if domain is None else domain
    schema = SCHEMAS.get(name)
    home = DOMAIN_NAMES.get(domain) if domain is not None else (schema.domain if schema else ONNX_DOMAIN)
    if home is None or (home != ONNX_DOMAIN and (schema is None or schema.domain != home)):
        raise ValueError(f"Fatal error: {domain}:{name}(-1) is not a registered function/op")
    if schema is None or schema.domain != home:
        raise ValueError(f"No Op registered for {name} with domain_version of {opset}")
    return schema


def bind_inputs(schema: Schema, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs by their schema names; "indices" in any case, absent optional ones left out."""
    known = schema.inputs + schema.optional_inputs
    if not isinstance(inputs, Mapping):
        raise TypeError(f"{schema.op_type}: inputs must be a mapping of names to arrays, not {shown(inputs)}")
    bound: dict[str, Array] = {}
    for given, value in inputs.items():
        name = INDEX_INPUT if str(given).lower() == INDEX_INPUT.lower() else given
        if name not in known:
            raise ValueError(f"{schema.op_type}: there is no input {shown(given)}; the inputs are {', '.join(known)}")
        if name in bound:
            raise ValueError(f"{schema.op_type}: input {name} is given twice")
        if value is not None:
            bound[name] = as_array(schema.op_type, name, value)
    missing = [name for name in schema.inputs if name not in bound]
    if missing:
        raise ValueError(
            f"Node () has input size {len(bound)} not in range [min={len(schema.inputs)}, max={len(known)}]: "
            f"{schema.op_type} needs {', '.join(missing)}"
        )
    return bound


def bind_attributes(schema: Schema, since_version: int, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The attributes that are given; refused where one is missing that the operator must have, or its version does not know."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{schema.op_type}: attrs must be a mapping of names to values, not {shown(given)}")
    attrs = {name: value for name, value in (given or {}).items() if value is not None}
    for name in schema.required_attributes:
        if name not in attrs:
            raise ValueError(f"Required attribute '{name}' is missing. ({schema.op_type} got {sorted(map(str, attrs))})")
    for name in attrs:
        if not _is_known(schema, since_version, name, attrs):
            raise ValueError(
                f"Unrecognized attribute: {name} for operator {schema.op_type} (version {since_version})"
                + _hint(schema, since_version, name)
            )
    return attrs


def _is_known(schema: Schema, since_version: int, name: Any, given: Mapping[str, Any]) -> bool:
    if not schema.lenient:
        return schema.attributes.get(name, since_version + 1) <= since_version
    if quirks_active() or any(name in other.attributes for other in SCHEMAS.values()):
        return True
    meant = nearest(name, tuple(schema.attributes))
    return meant is None or meant in given


def _hint(schema: Schema, since_version: int, name: Any) -> str:
    """What to write instead."""
    if name in schema.attributes:
        return f"; it has this attribute since opset {schema.attributes[name]}"
    known = [each for each in schema.attributes if schema.lenient or schema.attributes[each] <= since_version]
    return did_you_mean(name, known, "Its attributes")


def onnx_type(dtype: np.dtype[Any]) -> str:
    return f"tensor({_ONNX_TYPE_NAMES.get(dtype.name, dtype.name)})"


def bind_types(schema: Schema, since_version: int, inputs: Mapping[str, Array]) -> dict[str, np.dtype[Any]]:
    """The type parameter T that the inputs agree on; TypeError where the schema refuses a type or they differ."""
    accepted = schema.types_at(since_version)
    bound: np.dtype[Any] | None = None
    for name, array in inputs.items():
        if array.dtype.name not in (("int64",) if name == INDEX_INPUT else accepted):
            raise TypeError(
                f"Type Error: Type '{onnx_type(array.dtype)}' of input parameter ({name}) of operator ({schema.op_type}) "
                "in node () is invalid."
            )
        if name == INDEX_INPUT:
            continue
        if bound is not None and array.dtype != bound:
            raise TypeError(
                f"Type Error: Type parameter (T) of Optype ({schema.op_type}) bound to different types "
                f"({onnx_type(bound)} and {onnx_type(array.dtype)} in node ()."
            )
        bound = array.dtype
    assert bound is not None
    return {"T": bound}
