"""The kernel registry of the dialect: kernels found by domain, operator, version range and type constraint, as in ONNX Runtime.

There are two tables, one for each voice: the mended kernels, and those that answer inside `quirks()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.forking import FRONT_END, lock_free_in_children
from pullback.ort.quirks import quirks_active
from pullback.ort.schema import DOMAIN_NAMES, as_opset, find_schema
from pullback.rules import Array


@dataclass(frozen=True)
class Node:
    """One call, checked against its schema: what a kernel receives."""

    op_type: str
    inputs: Mapping[str, Array]
    attrs: Mapping[str, Any]
    wanted: frozenset[str]
    output_shape: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class KernelDef:
    """A kernel for the operator versions since_version .. end_version (None: that version only, as it is the newest).

    type_constraints: the dtype names each type parameter may take, e.g. {"T": ("float32",)}. `run(node)` returns one array, or
    for an operator with several outputs a tuple in the schema's order with None for those not in `node.wanted`.
    """

    domain: str
    op_type: str
    since_version: int
    end_version: int | None
    type_constraints: Mapping[str, tuple[str, ...]]
    run: Callable[[Node], Any]

    def serves(self, version: int) -> bool:
        # An open-ended kernel serves its own version only: a later one may mean something it does not know.
        return version == self.since_version or (
            self.end_version is not None and self.since_version <= version <= self.end_version
        )

    def accepts(self, dtypes: Mapping[str, str]) -> bool:
        return all(dtypes.get(name) in names for name, names in self.type_constraints.items())

    def conflicts(self, other: KernelDef) -> bool:
        if (self.domain, self.op_type) != (other.domain, other.op_type):
            return False
        mine, theirs = (range(k.since_version, (k.end_version or k.since_version) + 1) for k in (self, other))
        shared = self.type_constraints.keys() & other.type_constraints.keys()
        types_meet = all(set(self.type_constraints[name]) & set(other.type_constraints[name]) for name in shared)
        return mine.start < theirs.stop and theirs.start < mine.stop and types_meet


_lock = lock_free_in_children(FRONT_END)
_kernels: dict[bool, list[KernelDef]] = {False: [], True: []}
_changes = 0


def changes() -> int:
    """How often kernels have been added or taken back: what was found before then may be found no more."""
    return _changes


def register_kernel(kernel: KernelDef, *, quirks: bool = False) -> KernelDef:
    """Add a kernel to the mended table, or to that of `quirks()`; one that another already covers is a ValueError."""
    global _changes
    with _lock:
        for other in _kernels[quirks]:
            if kernel.conflicts(other):
                raise ValueError(
                    f"Failed to add kernel for {kernel.op_type} {kernel.domain} {kernel.since_version}: Conflicting with a "
                    f"registered kernel with op versions {other.since_version} to {other.end_version}"
                )
        _kernels[quirks].append(kernel)
        _changes += 1
    return kernel


def unregister_kernel(kernel: KernelDef, *, quirks: bool = False) -> None:
    """Take a kernel back; ValueError if it is not there."""
    global _changes
    with _lock:
        if kernel not in _kernels[quirks]:
            raise ValueError(f"unregister_kernel: no kernel for {kernel.op_type} {kernel.since_version} is registered as given")
        _kernels[quirks].remove(kernel)
        _changes += 1


def find_kernel(domain: str | None, op_type: str, opset: int | None, dtypes: Mapping[str, Any]) -> KernelDef:
    """The kernel for a node of the current voice; NotImplementedError where the operator exists but no kernel takes the types.

    dtypes gives each type parameter its dtype, e.g. {"T": np.float32}. opset counts in the default domain; None: the newest.
    """
    version_asked = as_opset(opset)
    schema = find_schema(op_type, domain, version_asked)
    version = schema.since_version(version_asked)
    names = {name: dtype if isinstance(dtype, str) else np.dtype(dtype).name for name, dtype in dtypes.items()}
    with _lock:
        candidates = tuple(_kernels[quirks_active()])
    for kernel in candidates:
        same_op = kernel.op_type == schema.op_type and DOMAIN_NAMES.get(kernel.domain) == schema.domain
        if same_op and kernel.serves(version) and kernel.accepts(names):
            return kernel
    raise NotImplementedError(f"Could not find an implementation for {schema.op_type}({version}) node with name ''")
