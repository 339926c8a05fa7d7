"""From a first run to a plan: which tensors die where, which share memory, and which results may take a dying input's place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pullback.onnx.executor.layout import as_layout
from pullback.onnx.executor.registry import Node, Op
from pullback.rules import Array


@dataclass(frozen=True)
class Step:
    """One node of a plan. Slots are places in the list of tensors, -1 for an absent input; `out`: the input to write over or -1."""

    node: Node
    op: Op
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, str], ...]
    frees: tuple[int, ...]
    out: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...]
    slots: int
    feeds: tuple[tuple[str, int], ...]
    constants: tuple[tuple[int, Array], ...]
    wanted: frozenset[str]
    known: dict[str, Array]  # outputs that depend on sizes alone
    shared: frozenset[str]  # outputs whose memory a feed, a constant or an earlier output has too


@dataclass
class _Event:
    node: Node
    op: Op
    shape: tuple[int, ...] | None
    candidates: tuple[int, ...]  # inputs whose memory has room for the result, exactly


def _to_channels_last(node: Node, x: Array) -> Array:
    return as_layout(x, last=True)


CONVERT = Op(_to_channels_last)


@dataclass
class Trace:
    """What a first run did. `static`: tensors that depend on sizes alone. `owner`: whose memory a tensor shares.

    `repeatable`: whether shapes have come of shapes alone, so that the next run with the same ones goes the same way.
    """

    outputs: tuple[str, ...]
    events: list[_Event] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    static: dict[str, Array] = field(default_factory=dict)
    owner: dict[str, str] = field(default_factory=dict)
    repeatable: bool = True
    _last: dict[str, int] = field(default_factory=dict)

    def begin(self, given: Mapping[str, Array], defaults: Mapping[str, Array]) -> None:
        """The tensors that are there before any node has run; constants are static unless a feed replaces them."""
        self.shapes.update({name: array.shape for arrays in (defaults, given) for name, array in arrays.items()})
        self.static.update({name: array for name, array in defaults.items() if name not in given})

    def converts(self, name: str, array: Array) -> None:
        """From here on a tensor lies channels_last."""
        if name in self.static:
            self.static[name] = array
        else:
            self.events.append(_Event(Node("ToChannelsLast", "ai.pullback", "", (name,), (name,)), CONVERT, None, ()))

    def root(self, name: str) -> str:
        while name in self.owner:
            name = self.owner[name]
        return name

    def _share(self, name: str, source: str) -> None:
        if self.root(name) != self.root(source):
            self.owner[self.root(name)] = self.root(source)

    def ran(
        self,
        node: Node,
        op: Op,
        inputs: Sequence[Any],
        answers: Mapping[str, Array],
        static: bool,
        shape: tuple[int, ...] | None,
    ) -> None:
        """A node has run. What shares memory with an input, declared or not, belongs to the same owner."""
        if any(node.inputs[place] and node.inputs[place] not in self.static for place in op.sized_by if place < len(inputs)):
            self.repeatable = False
        for name, array in answers.items():
            self.shapes[name] = array.shape
            for place, source in enumerate(node.inputs):
                if source and (place in op.views or np.may_share_memory(array, inputs[place])):
                    self._share(name, source)
        if static:
            self.static.update(answers)
            return
        first = answers.get(node.outputs[0]) if node.outputs else None
        candidates = tuple(
            place
            for place in op.overwrites
            if first is not None and place < len(inputs) and _may_overwrite(inputs, place, first)
        )
        self.events.append(_Event(node, op, shape, candidates))

    def dead(self, node: Node, nodes: Sequence[Node]) -> Iterable[str]:
        """Tensors that no later node reads."""
        if not self._last:
            for place, each in enumerate(nodes):
                self._last.update(dict.fromkeys((*each.inputs, *each.outputs), place))
            self._numbers = {id(each): place for place, each in enumerate(nodes)}
        here = self._numbers[id(node)]
        return [name for name in (*node.inputs, *node.outputs) if name and self._last[name] == here]


def _lie_alike(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.strides == b.strides


def _may_overwrite(inputs: Sequence[Any], place: int, result: Array) -> bool:
    """Whether an input has room for the result, exactly, and no other input has its elements at other places of that memory."""
    x = inputs[place]
    if x is None or not _lie_alike(x, result):
        return False
    others = [other for i, other in enumerate(inputs) if i != place and other is not None and np.may_share_memory(x, other)]
    return all(_lie_alike(x, other) and x.ctypes.data == other.ctypes.data for other in others)


def planned(trace: Trace, given: Mapping[str, Array], defaults: Mapping[str, Array]) -> Plan:
    """The plan of what a trace has seen."""
    slots: dict[str, int] = {}

    def slot(name: str) -> int:
        return slots.setdefault(name, len(slots)) if name else -1

    final: dict[str, int] = {}  # of a tensor: the last step that has to do with it
    last: dict[str, int] = {}  # of an owner: the last step that has to do with its memory
    for place, event in enumerate(trace.events):
        for name in (*event.node.inputs, *event.node.outputs):
            final[name] = last[trace.root(name)] = place
    held = {trace.root(name) for name in (*given, *defaults, *trace.static)}
    kept = held | {trace.root(name) for name in trace.outputs}
    steps = []
    for place, event in enumerate(trace.events):
        node = event.node
        roots = [trace.root(name) for name in node.inputs]
        dying = [i for i in event.candidates if roots[i] not in kept and last[roots[i]] == place]
        inputs = tuple(slot(name) for name in node.inputs)
        outputs = tuple((slot(name), name) for name in node.outputs if name)
        names = dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name)
        frees = tuple(slots[name] for name in names if final[name] == place)
        steps.append(Step(node, event.op, inputs, outputs, frees, dying[0] if dying else -1, event.shape))
    fixed = dict(defaults) | trace.static
    constants = tuple((number, fixed[name]) for name, number in slots.items() if name in fixed and name not in given)
    feeds = tuple((name, number) for name, number in slots.items() if name in given)
    known = {name: trace.static[name] for name in trace.outputs if name in trace.static}
    return Plan(tuple(steps), len(slots), feeds, constants, frozenset(trace.outputs), known, _shared(trace, held))


def _shared(trace: Trace, held: set[str]) -> frozenset[str]:
    """The outputs that lie in memory held by others, or by an output before them."""
    taken, shared = set(held), set()
    for name in trace.outputs:
        root = trace.root(name)
        if root in taken:
            shared.add(name)
        taken.add(root)
    return frozenset(shared)
