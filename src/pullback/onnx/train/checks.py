"""Checks of the numbers in settings: each refusal names the setting, its value and the range."""

from __future__ import annotations

import math
import operator
from typing import Any

from pullback.onnx.errors import OnnxError
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


def whole(who: str, name: str, value: Any, least: int) -> int:
    """A whole number that is at least so much."""
    try:
        count = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = None
    if count is None or count < least:
        raise OnnxError(f"{who}: {name} is {shown(value)}; it must be a whole number, at least {least}")
    return count
