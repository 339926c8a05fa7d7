"""Values as sentences hold them: errors name what they were given, in one short line, and never print an array."""

from __future__ import annotations

from reprlib import Repr
from typing import Any


class _Short(Repr):
    def repr1(self, x: Any, level: int) -> str:
        """Arrays, of whatever library, by shape and dtype: a sentence has no room for their values."""
        shape = getattr(x, "shape", None)
        if isinstance(shape, tuple) and shape and hasattr(x, "dtype"):
            return f"<{type(x).__name__} of shape {tuple(shape)}, {x.dtype}>"
        return super().repr1(x, level)


_short = _Short()
_short.maxlevel, _short.maxstring, _short.maxother, _short.maxlong = 4, 80, 120, 40
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = _short.maxfrozenset = 10


def shown(value: Any) -> str:
    """A value as a sentence can hold it: in one short line, however long or deep it is, even if it contains itself."""
    try:
        return " ".join(_short.repr(value).split())
    except Exception:  # of a foreign __repr__, or an integer of too many digits
        return f"a value of type {type(value).__name__}"
