"""What an error says of a name that nobody knows: the name that was probably meant, and those that there are."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

LEAST_ALIKE = 0.5  # of two names, as difflib measures it: 1 for the same


def _bare(name: str) -> str:
    """A name without what styles of spelling differ in."""
    return name.replace("_", "").lower()


def nearest(name: Any, known: Sequence[str], least: float = LEAST_ALIKE) -> str | None:
    """The known name most like this one; None where none is alike enough."""
    by_bare = {_bare(each): each for each in known}
    found = get_close_matches(_bare(str(name)), by_bare, n=1, cutoff=least)
    return by_bare[found[0]] if found else None


def did_you_mean(name: Any, known: Sequence[str], what: str) -> str:
    """The end of a sentence that says there is no such name; `what` the known ones are."""
    meant = nearest(name, known)
    guess = f"; did you mean {meant!r}?" if meant is not None else "."
    return f"{guess} {what} are {', '.join(known)}" if known else f"{guess} There are none"
