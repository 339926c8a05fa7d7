"""The ops that the executor knows: one function each, found by domain and name, with what it may do with its inputs' memory."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from pullback.nearest import nearest
from pullback.onnx.errors import OnnxError

Run = Callable[..., Any]
F = TypeVar("F", bound=Run)

MICROSOFT = "com.microsoft"
PULLBACK = "ai.pullback"
FUSED = "fused"  # nodes that the executor makes of several


@dataclass(frozen=True)
class Node:
    """A node of a graph. An input or output that is left out has the name ""; attributes are Python values or NumPy arrays."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 0

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or what it is where the node does not say."""
        return self.attrs.get(name, default)

    def wants(self, place: int) -> bool:
        """Whether somebody reads this output."""
        return place < len(self.outputs) and bool(self.outputs[place])

    @property
    def title(self) -> str:
        """How messages call it."""
        named = f" '{self.name}'" if self.name else ""
        return f"node{named} ({self.op_type}, output '{next((o for o in self.outputs if o), '')}')"


@dataclass(frozen=True)
class Op:
    """`overwrites`: inputs whose memory the result may be written to. `views`: inputs whose memory it may share.

    `sized_by`: inputs whose values, not their shapes alone, decide the result's shape.
    """

    run: Run
    overwrites: tuple[int, ...] = ()
    views: tuple[int, ...] = ()
    sized_by: tuple[int, ...] = ()
    context: bool = False
    shaped: bool = False


_ops: dict[tuple[str, str], Op] = {}


def op(
    *op_types: str,
    domain: str = "",
    overwrites: tuple[int, ...] = (),
    views: tuple[int, ...] = (),
    sized_by: tuple[int, ...] = (),
    context: bool = False,
    shaped: bool = False,
) -> Callable[[F], F]:
    """Enter a function `run(node, *inputs)` as what the executor does for nodes of these names.

    It gets None for an absent input, and keywords: `out` if it overwrites (an array for the result, or None), `context` if it asks
    for that (random numbers, sums over ranks), `shape` if it is shaped (of the tensor whose gradient it makes).
    """

    def enter(run: F) -> F:
        for op_type in op_types:
            _ops[domain, op_type] = Op(run, overwrites, views, sized_by, context, shaped)
        return run

    return enter


@cache
def _loaded() -> dict[tuple[str, str], Op]:
    from pullback.onnx import ops

    for module in pkgutil.iter_modules(ops.__path__):
        importlib.import_module(f"{ops.__name__}.{module.name}")
    return _ops


def find_op(node: Node) -> Op:
    """What to do for a node."""
    known = _loaded()
    found = known.get((node.domain, node.op_type))
    if found is None:
        meant = nearest(node.op_type, sorted(name for domain, name in known if domain == node.domain))
        where = f" of domain {node.domain}" if node.domain else ""
        guess = f"; did you mean {meant}?" if meant else ""
        raise OnnxError(f"{node.title}: the executor has no {node.op_type}{where}{guess}")
    return found


def known_ops() -> tuple[tuple[str, str], ...]:
    """(domain, name) of every op there is, in order."""
    return tuple(sorted(_loaded()))
