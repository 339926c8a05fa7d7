"""Running a kernel so that it can be differentiated: where autograd records one of its inputs, its outputs are recorded too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pullback.tfjs import registry
from pullback.tfjs.kernels_beyond import BEYOND
from pullback.tracing import any_traced, plain


@dataclass(frozen=True)
class Output:
    """One output of a kernel's call, with what its gradient needs: the kernel, its inputs' names, its attributes."""

    kernel: str
    names: tuple[str, ...]
    attrs: Mapping[str, Any]
    outputs: tuple[Any, ...]
    place: int = 0


def run_recorded(
    kernel: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, backend: str | None = None
) -> Any:
    """Run a kernel of the registry, or one that TF.js lacks; inputs may be recorded, and then so are its outputs.

    All but integers beside the first output: indices are there to be used as such.
    """
    given, values = attrs or {}, {name: plain(tensor) for name, tensor in inputs.items()}
    if kernel in BEYOND:
        result = BEYOND[kernel](inputs=values, attrs=given, backend=registry.find_backend(registry.get_backend()))
    else:
        result = registry.run_kernel(kernel, values, given, backend)
    if not any_traced(inputs.values()):
        return result
    from pullback.tfjs.tape import record

    several = isinstance(result, tuple)
    outputs = result if several else (result,)
    recorded = tuple(
        record(Output(kernel, tuple(inputs), given, outputs, place), *inputs.values())
        if place == 0 or output.dtype.kind == "f"
        else output
        for place, output in enumerate(outputs)
    )
    return recorded if several else recorded[0]
