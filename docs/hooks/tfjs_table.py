"""The table of the TF.js dialect's kernels, asked from themselves by running recorded calls with attributes left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from defect_sections import links_by_kernel
from kernel_tables import breakable, kernel_table
from watched import Watched

from pullback import golden, tfjs

DEFECTS = "defects-tfjs.md"

# What an attribute that may be left out might mean; the recorded calls tell which it is.
CANDIDATES: dict[str, tuple[Any, ...]] = {
    "dataFormat": ("NHWC", "NCHW", "NDHWC", "NCDHW"),
    "dilations": (1, 2),
    "dimRoundingMode": ("floor", "ceil", "round"),
    "includeBatchInIndex": (False, True),
}


def answer(kernel: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> Any:
    """What a kernel answers, as something that can be compared; None for a refusal."""
    try:
        result = tfjs.run_kernel(kernel, inputs, attrs)
    except (TypeError, ValueError):
        return None
    arrays = result if isinstance(result, tuple) else (result,)
    return [(array.shape, array.tobytes()) for array in arrays]


def calls(kernel: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The recorded calls that have an answer, then the same with a numeric pad and strides that leave cells over.

    A kernel that is not recorded takes one tensor and no attributes, or its row fails to be made.
    """
    if kernel not in golden.names("tfjs"):
        return [({"x": np.ones((1, 2, 2, 1), np.float32)}, {})]
    recorded = [(golden.arrays(case["inputs"]), case["attrs"]) for case in golden.load("tfjs", kernel) if "error" not in case]
    return recorded + [(inputs, attrs | {"pad": 0, "strides": strides}) for inputs, attrs in recorded for strides in (2, 3)]


def without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def asked_for(kernel: str) -> tuple[list[str], list[str]]:
    """The inputs and the attributes that a kernel asks for, in its order."""
    inputs, attrs = dict[str, None](), dict[str, None]()
    for given_inputs, given_attrs in calls(kernel):
        watched = Watched(given_inputs), Watched(given_attrs)
        answer(kernel, *watched)
        inputs |= watched[0].asked
        attrs |= watched[1].asked
    return list(inputs), list(attrs)


def default(kernel: str, attribute: str) -> Any:
    """What an attribute means where it is left out; None where it must be given."""
    left = list(CANDIDATES.get(attribute, ()))
    omitted = [(inputs, without(attrs, attribute)) for inputs, attrs in calls(kernel)]
    if all(answer(kernel, inputs, attrs) is None for inputs, attrs in omitted):
        return None
    for inputs, attrs in omitted:
        same = answer(kernel, inputs, attrs)
        left = [value for value in left if answer(kernel, inputs, attrs | {attribute: value}) == same]
        if len(left) == 1:
            return left[0]
    raise ValueError(f"{kernel}: the recorded calls do not tell what {attribute} is by default: {left}")


def shown_input(kernel: str, name: str) -> str:
    needed = all(answer(kernel, without(inputs, name), attrs) is None for inputs, attrs in calls(kernel))
    return f"`{name}`" if needed else f"`{name}` (may be left out)"


def shown_attribute(kernel: str, name: str) -> str:
    value = default(kernel, name)
    return f"**`{name}`**" if value is None else f"`{name}` = {str(value).lower() if isinstance(value, bool) else value}"


def gradient(kernel: str) -> str:
    """Whether `grads` finds a gradient of a kernel, in TF.js and here."""
    with tfjs.quirks():
        upstream = tfjs.get_gradient(kernel)
    return "yes" if upstream is not None else "only outside `quirks()`" if tfjs.get_gradient(kernel) is not None else "no"


def called(_: str, text: str) -> set[str]:
    return set(re.findall(r'compare\(\s*"(\w+)"', text))


def row(kernel: str, mended: dict[str, list[str]]) -> tuple[str, ...]:
    inputs, attrs = asked_for(kernel)
    return (
        breakable(kernel),
        ", ".join(shown_input(kernel, each) for each in inputs),
        "<br>".join(shown_attribute(kernel, each) for each in attrs) or "none",
        gradient(kernel),
        " ".join(mended.get(kernel, ["no known defect"])),
    )


def table() -> str:
    """One row for each registered kernel."""
    mended = links_by_kernel(DEFECTS, called)
    columns = ("kernel", "inputs", "attributes", "gradient", "mended; back in quirks()")
    with np.errstate(all="ignore"):
        return kernel_table(columns, [row(each.kernel_name, mended) for each in tfjs.get_kernels_for_backend("reference")])
