"""TF.js's configs of kernels and gradients as it writes them: objects with camelCase names, here dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from pullback.nearest import did_you_mean
from pullback.shown import shown

Config = TypeVar("Config")


def camel_case(name: str) -> str:
    """kernel_name as TF.js spells it: kernelName."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def as_config(who: str, kind: type[Config], given: Any) -> Config:
    """A config given as one, or as a dict with TF.js's names (or ours) for its fields."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"{who}: the config must be a {kind.__name__} or a dict, not {shown(given)}")
    known = {camel_case(field.name): field for field in fields(kind)}  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for name, value in given.items():
        spelt = camel_case(name) if isinstance(name, str) else name
        if spelt not in known:
            raise ValueError(f"{who}: there is no {shown(name)} in a config{did_you_mean(name, tuple(known), 'Its names')}")
        if value is not None:
            found[known[spelt].name] = value
    missing = [name for name, field in known.items() if field.default is MISSING and field.name not in found]
    if missing:
        raise ValueError(f"{who}: the config lacks {', '.join(missing)}; it has {', '.join(map(shown, given)) or 'nothing'}")
    for name, field in known.items():
        if field.name.endswith("_func") and not callable(found.get(field.name, as_config)):
            raise TypeError(f"{who}: {name} must be a function, not {shown(found[field.name])}")
    return kind(**found)
