"""Checks of numbers, names and arrays that users give: each refusal names the argument, its value and what it must be."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from pullback.onnx.errors import OnnxError
from pullback.rules import Array
from pullback.shown import shown


def number(who: str, name: str, value: Any, least: float = 0.0, most: float = math.inf, *, open_end: bool = False) -> None:
    """A finite number from `least` to `most` (`open_end`: below it)."""
    plain = not isinstance(value, bool) and hasattr(value, "__float__")
    end = f"below {most:g}" if open_end else f"at most {most:g}"
    bounds = f"at least {least:g}" + (f" and {end}" if most < math.inf else "")
    try:
        fits = plain and math.isfinite(float(value)) and least <= value and (value < most if open_end else value <= most)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise OnnxError(f"{who}: {name} is {shown(value)}; it must be a number, {bounds}")


def without_numpy(settings: Any) -> None:
    """Numbers of NumPy in a frozen dataclass become Python's, which checkpoints can hold."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        if isinstance(value, np.generic):
            object.__setattr__(settings, each.name, value.item())


def array_of(what: str, value: Any) -> Array:
    """A value as an array; a subclass, such as a mapped file, as it is."""
    try:
        return np.asanyarray(value)
    except ValueError as error:
        raise OnnxError(f"{what} is no array: {error}") from error


def names_of(argument: str, value: Any) -> tuple[str, ...]:
    """One name or pattern, or several; None is none."""
    names = (value,) if isinstance(value, str) or not isinstance(value, Iterable | None) else tuple(value or ())
    for name in names:
        if not isinstance(name, str):
            raise OnnxError(f"{argument} has {shown(name)} for a parameter; give names or patterns, as {argument}=['layer4.*']")
    return names


def whole(who: str, name: str, value: Any, least: int) -> int:
    """A whole number that is at least so much."""
    try:
        count = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = None
    if count is None or count < least:
        raise OnnxError(f"{who}: {name} is {shown(value)}; it must be a whole number, at least {least}")
    return count
