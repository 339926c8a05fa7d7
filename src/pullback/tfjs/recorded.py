"""Running a kernel so that it can be differentiated: where autograd records one of its inputs, the call is recorded too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pullback.tfjs.kernels_beyond import BEYOND
from pullback.tfjs.registry import find_backend, get_backend, run_kernel
from pullback.tracing import any_traced


@dataclass(frozen=True)
class KernelCall:
    """A kernel with the names of its inputs and its attributes; `result` where it is known already."""

    kernel: str
    names: tuple[str, ...]
    attrs: Mapping[str, Any]
    result: Any = None

    def run(self, *tensors: Any) -> Any:
        if self.result is not None:
            return self.result
        inputs = dict(zip(self.names, tensors, strict=True))
        if self.kernel in BEYOND:
            return BEYOND[self.kernel](inputs=inputs, attrs=self.attrs, backend=find_backend(get_backend()))
        return run_kernel(self.kernel, inputs, self.attrs)


def run_recorded(kernel: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any], result: Any = None) -> Any:
    """The kernel's result; `result`, if given, stands for it."""
    call = KernelCall(kernel, tuple(inputs), attrs, result)
    if not any_traced(inputs.values()):
        return call.run(*inputs.values())
    from pullback.tfjs.tape import record

    return record(call, *inputs.values())
