"""Arrays that autograd wraps while it records: the plain ops hand calls with these over to `pullback.autograd`.

Imports nothing: where the package has not been imported, no array can be one of its.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any


def any_traced(values: Iterable[Any]) -> bool:
    """Whether autograd records one of these values."""
    tracer = sys.modules.get("autograd.tracer")
    return tracer is not None and any(tracer.isbox(value) for value in values)


def plain(value: Any) -> Any:
    """The value itself, without what autograd wrapped around it."""
    tracer = sys.modules.get("autograd.tracer")
    return value if tracer is None else tracer.getval(value)


def traced_op(name: str) -> Callable[..., Any]:
    """The op of this name that autograd can differentiate."""
    from pullback import autograd

    op: Callable[..., Any] = getattr(autograd, name)
    return op
