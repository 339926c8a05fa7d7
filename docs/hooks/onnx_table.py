"""The table of ONNX's operators that pullback.onnx trains and runs: from the executor's registry and the list of gradient rules."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_tables import breakable, kernel_table
from onnx import defs

from pullback.onnx.executor.registry import known_ops
from pullback.onnx.graph.rules import RULES, STOPS

MISSING = "runs, has no gradient"
CONSTANT = "runs; constant, the gradient ends here"


def operators() -> list[str]:
    """ONNX's own operators that have a gradient or can be run; those that only a training graph has are left out."""
    standard = {schema.name for schema in defs.get_all_schemas()}
    return sorted({name for domain, name in known_ops() if not domain and name in standard} | (set(RULES) & standard))


def gradient(op_type: str) -> str:
    """The inputs that a gradient reaches, by their names in ONNX's schema."""
    if op_type not in RULES:
        return CONSTANT if op_type in STOPS else MISSING
    inputs = [each.name for each in defs.get_schema(op_type).inputs]
    return ", ".join(f"`{name}`" for place, name in enumerate(inputs) if RULES[op_type].has(place))


def nodes(domain: str) -> Sequence[str]:
    """The nodes of another domain that training graphs are made of, all of which the executor runs."""
    return [name for of, name in known_ops() if of == domain]


def table() -> str:
    """One row for each operator, then the nodes that are not ONNX's own."""
    rows = [(breakable(name), gradient(name)) for name in operators()]
    others = [
        f"Nodes of `{domain}` in training graphs: {', '.join(map(breakable, nodes(domain)))}."
        for domain in ("com.microsoft", "ai.pullback")
    ]
    return "\n\n".join([kernel_table(("operator", "gradient in"), rows), *others])
