"""The table of ONNX's operators that pullback.onnx trains and runs: from the executor's registry and the list of gradient rules."""

from __future__ import annotations

from collections.abc import Iterable

from kernel_tables import breakable, kernel_table
from onnx import defs

from pullback.onnx.executor.registry import known_ops
from pullback.onnx.graph.rules import RULES, STOPS


def trained() -> list[str]:
    """ONNX's own operators that a gradient goes through."""
    return sorted(name for name in RULES if defs.has(name))


def run_only() -> list[str]:
    """ONNX's own operators that can be run, and have no gradient."""
    return [name for domain, name in known_ops() if not domain and defs.has(name) and name not in RULES]


def gradient(op_type: str) -> str:
    """The inputs that a gradient reaches, by their names in ONNX's schema."""
    inputs = [each.name for each in defs.get_schema(op_type).inputs]
    return ", ".join(f"`{name}`" for place, name in enumerate(inputs) if RULES[op_type].has(place))


def nodes(domain: str) -> list[str]:
    """The nodes of another domain that training graphs are made of, all of which the executor runs."""
    return [name for of, name in known_ops() if of == domain]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(breakable, names))


def table() -> str:
    """One row for each operator that is trained, then the rest in sentences."""
    stops = [name for name in run_only() if name in STOPS]
    without = [name for name in run_only() if name not in STOPS]
    sentences = {
        "Operators that run in a model, but that no gradient goes through": without,
        "Operators whose result counts as constant, so that the gradient ends there": stops,
        "Nodes of `com.microsoft` in training graphs": nodes("com.microsoft"),
        "Nodes of `ai.pullback` in training graphs": nodes("ai.pullback"),
    }
    rows = kernel_table(("operator", "gradient in"), [(breakable(name), gradient(name)) for name in trained()])
    return "\n\n".join([rows, *(f"{what}: {_listed(names)}." for what, names in sentences.items() if names)])
