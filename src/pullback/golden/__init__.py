"""Answers recorded from the real TF.js 4.22.0 and ONNX Runtime 1.19.2, one JSON file per kernel, and their loader.

Values are the shortest decimals that round to the right number, so they are rounded on load; non-finite numbers are strings.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from pullback.rules import Array


@cache
def _text(system: str, name: str) -> str:
    return files("pullback.golden").joinpath(system, f"{name}.json").read_text()


def names(system: str) -> list[str]:
    """The recorded files of a system ("tfjs" or "ort"), sorted."""
    folder = files("pullback.golden").joinpath(system)
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def load(system: str, name: str) -> list[dict[str, Any]]:
    """The cases of one file as plain dicts, fresh on every call; tensors are still JSON (see `array`)."""
    cases: list[dict[str, Any]] = json.loads(_text(system, name))
    return cases


def array(tensor: dict[str, Any]) -> Array:
    """A recorded tensor as an array; a negative size, which no array can have, is a ValueError."""
    shape, dtype = tensor["shape"], np.dtype(tensor["dtype"])
    if dtype.kind == "c":
        numbers = np.array(tensor["real"], np.float64) + 1j * np.array(tensor["imag"], np.float64)
        return numbers.astype(dtype).reshape(shape)
    if dtype.kind in "iu":
        return np.array(tensor["values"], dtype=np.int64).astype(dtype).reshape(shape)
    with np.errstate(over="ignore"):
        return np.array([float(v) for v in tensor["values"]], np.float64).astype(dtype).reshape(shape)


def arrays(tensors: dict[str, Any]) -> dict[str, Array]:
    """A case's `inputs` or `outputs` as arrays."""
    return {name: array(tensor) for name, tensor in tensors.items()}
