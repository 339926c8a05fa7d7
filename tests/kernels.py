"""The kernels under test: every kernel registered for an op, each called by its own name, counting what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import pullback as pb
from pullback.registry import kernels_for

ELSEWHERE = ("crop", "pairs")  # kernels with test files of their own, which take few of the cases that others take
OPS = (
    "conv",
    "conv_grad_input",
    "conv_grad_filter",
    "max_pool",
    "max_pool_grad",
    "max_pool_grad_from_indices",
    "avg_pool",
    "avg_pool_grad",
)


@dataclass
class KernelUnderTest:
    """Calls one op on one kernel. A refused case gives None; refusing every case is an error (see conftest)."""

    op: str
    backend: str
    name: str
    accepted: int = 0
    refusals: list[str] = field(default_factory=list)

    def relative_error(self, dtype: Any) -> float:
        """What the kernel's results may err by, by norm, beyond the rounding of plain sums; 0 for all but Winograd's."""
        [kernel] = [k for k in kernels_for(self.op, self.backend) if (k.backend, k.name) == (self.backend, self.name)]
        return kernel.relative_error(dtype)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        with pb.backend(self.backend), pb.kernel(self.name):
            try:
                result = getattr(pb, self.op)(*args, **keywords)
            except pb.KernelError as refusal:
                self.refusals.append(str(refusal))
                return None
        self.accepted += 1
        return result


def kernels_of(*ops: str, names: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Run a test once for each kernel that a backend has of its own for these ops, or for those of these names."""
    found = [
        (op, kernel.backend, kernel.name)
        for op in ops
        for backend in pb.backends()
        for kernel in kernels_for(op, backend)
        if kernel.backend == backend and (kernel.name in names if names else kernel.name not in ELSEWHERE)
    ]
    return pytest.mark.parametrize("kernel_under_test", [pytest.param(k, id="-".join(k)) for k in found], indirect=True)
