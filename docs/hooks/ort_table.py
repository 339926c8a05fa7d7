"""The table of the ONNX Runtime dialect's operators: from its schemas, its two lists of kernels and its readers of attributes."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import numpy as np
from defect_sections import links_by_kernel
from kernel_tables import breakable, kernel_table
from watched import Watched

from pullback import ort
from pullback.ort.attributes import conv_attributes, pool_attributes
from pullback.ort.kernels import MENDED, UPSTREAM, Row
from pullback.ort.schema import MS_DOMAIN, SCHEMAS, Schema

DEFECTS = "defects-ort.md"

IMAGE = np.ones((1, 1, 2, 2), np.float32)
CELL = np.ones((1, 1, 1, 1), np.float32)
# A call of each gradient, which is handed the attributes of its forward and reads some, and the operator that it belongs to.
GRADIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "MaxPoolGrad": ("MaxPool", {"dY": CELL, "Indices": np.zeros((1, 1, 1, 1), np.int64)}),
    "AveragePoolGrad": ("AveragePool", {"dY": CELL}),
    "ConvGrad": ("Conv", {"dY": CELL, "X": IMAGE, "W": IMAGE}),
}


def attributes(schema: Schema) -> dict[str, int]:
    """The attributes of an operator and since which version each is there; of a gradient those of its forward that it reads."""
    if not shown_versions(schema.op_type):
        return {}
    if schema.op_type not in GRADIENTS:
        return dict(schema.attributes or {})
    forward, inputs = GRADIENTS[schema.op_type]
    watched = Watched({"kernel_shape": [2, 2]})
    kernel = ort.find_kernel(schema.domain, schema.op_type, None, {"T": np.float32})
    kernel.run(ort.Node(schema.op_type, inputs, watched, frozenset(schema.outputs), IMAGE.shape))
    return {name: 1 for name in SCHEMAS[forward].attributes or {} if name in watched.asked}


def defaults() -> dict[str, Any]:
    """What the readers of attributes take for one that is absent, of a window of two axes."""
    pool = asdict(pool_attributes("MaxPool", {"kernel_shape": [2, 2]}))
    window, group = conv_attributes("Conv", {}, (1, 1, 2, 2), (1, 1, 2, 2))
    return pool | {"group": group, "kernel_shape": "the window of W" if window.kernel_shape == (2, 2) else window.kernel_shape}


def shown_value(value: Any) -> str:
    if isinstance(value, tuple):
        (entry,) = set(np.ravel(value).tolist())  # the same on each axis and side
        return str(entry)
    return str(int(value)) if isinstance(value, bool) else str(value)


def shown_attributes(schema: Schema) -> str:
    known = defaults()
    cells = []
    for name, since in attributes(schema).items():
        text = f"**`{name}`**" if name in schema.required_attributes else f"`{name}` = {shown_value(known[name])}"
        cells.append(text + (f" (since {since})" if since > schema.versions[0] else ""))
    return "<br>".join(cells) or "none is read"


def shown_types(rows: tuple[Row, ...], op_type: str) -> str:
    """The types of an operator's kernels, with the versions where only some have them."""
    mine = [row for row in rows if row[1] == op_type]
    if not mine:
        return "no kernel"
    lists = {row[4]: row[2] for row in reversed(mine)}
    if len(lists) == 1:
        return ", ".join(mine[0][4])
    first, *later = sorted(lists.items(), key=lambda item: item[1])
    parts, seen = [", ".join(first[0])], set(first[0])
    for types, since in later:
        parts += [f"since {since}: {', '.join(name for name in types if name not in seen)}"]
        seen |= set(types)
    return "; ".join(parts)


def shown_versions(op_type: str) -> str:
    """The versions of an operator that have a kernel."""
    ranges = [(since, end or since) for _, op, since, end, _, _ in MENDED if op == op_type]
    first, last = min((low for low, _ in ranges), default=0), max((high for _, high in ranges), default=0)
    return f"version {first}" + (f" to {last}" if last > first else "") if ranges else ""


def called(heading: str, text: str) -> set[str]:
    """The operators that a heading names, or else those whose functions the text calls."""
    functions = set(re.findall(r"ort\.(\w+)\(", text))
    found = {op for op in SCHEMAS if re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op).lower() in functions}
    return found & set(heading.split()) or found


def row(schema: Schema, mended: dict[str, list[str]]) -> tuple[str, ...]:
    name, versions = schema.op_type, shown_versions(schema.op_type)
    optional = [f"`{each}` (may be left out)" for each in schema.optional_inputs]
    inputs = ", ".join([*(f"`{each}`" for each in schema.inputs), *optional])
    return (
        breakable(name) + ("<br>com.microsoft" if schema.domain == MS_DOMAIN else "") + (f"<br>{versions}" if versions else ""),
        f"{inputs} → {', '.join(f'`{each}`' for each in schema.outputs)}",
        shown_attributes(schema),
        shown_types(MENDED, name),
        shown_types(UPSTREAM, name) + ("; float16 by way of float32" if schema.casts_float16 and versions else ""),
        " ".join(mended.get(name, ["no known defect" if versions else "no kernel"])),
    )


def table() -> str:
    """One row for each operator."""
    mended = links_by_kernel(DEFECTS, called)
    columns = ("operator", "inputs → outputs", "attributes", "types", "types in quirks()", "mended; back in quirks()")
    return kernel_table(columns, [row(schema, mended) for schema in SCHEMAS.values()])
