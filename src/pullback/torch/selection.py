"""Which modules `only` and `except_` mean: names with wildcards, classes, or a predicate of name and module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, cast

from torch import nn

Predicate = Callable[[str, nn.Module], bool]
Wish = str | type[nn.Module] | Predicate
Wishes = Wish | Collection[Wish]
_COMPILED = "_orig_mod."  # what torch.compile puts before the names of the modules within


def names_of(model: nn.Module) -> dict[nn.Module, str]:
    """Every module's name, the same whether parts of the model are compiled or not."""
    return {module: f"{name}.".replace(_COMPILED, "").removesuffix(".") for name, module in model.named_modules()}


def select(
    names: Mapping[nn.Module, str], candidates: Sequence[nn.Module], only: Wishes | None, except_: Wishes | None
) -> set[nn.Module]:  # fmt: skip
    """The candidates that are meant. A name or a class means the modules that have it and all within them."""
    chosen = set(candidates)
    if only is not None:
        chosen = _meant("only", names, candidates, only)
    if except_ is not None:
        chosen -= _meant("except_", names, candidates, except_)
    return chosen


def _meant(argument: str, names: Mapping[nn.Module, str], candidates: Sequence[nn.Module], wishes: Wishes) -> set[nn.Module]:
    found = set()
    several: Collection[Any] = wishes if isinstance(wishes, (list, tuple, set, frozenset)) else [wishes]
    for wish in several:
        if isinstance(wish, str):
            of = {module for module in candidates if _is_named(names[module], wish)}
            if not of:
                raise ValueError(
                    f"accelerate: {argument}={wish!r} is the name of no convolution or pooling; {_near(wish, names, candidates)}"
                )
        elif isinstance(wish, type):
            within: set[Any] = {part for module in names if isinstance(module, wish) for part in cast(Any, module).modules()}
            of = {module for module in candidates if module in within}
            if not of:
                kinds = ", ".join(sorted({type(module).__name__ for module in names}))
                raise ValueError(
                    f"accelerate: {argument}={wish.__name__} is the class of no convolution or pooling, nor has one within; "
                    f"the model has {kinds}"
                )
        elif callable(wish):
            of = {module for module in candidates if wish(names[module], module)}
        else:
            raise TypeError(
                f"accelerate: {argument} has a {type(wish).__name__}; give names, classes or a function (name, module)"
            )
        found |= of
    return found


def _is_named(name: str, pattern: str) -> bool:
    """Whether a module, or one that it lies in, has a name of this pattern."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _near(pattern: str, names: Mapping[nn.Module, str], candidates: Sequence[nn.Module]) -> str:
    near = get_close_matches(pattern, [name for name in names.values() if name], n=3, cutoff=0.4)
    if near:
        return f"the nearest names are {', '.join(map(repr, near))}"
    some = [repr(names[module]) for module in candidates]
    return f"there are {', '.join(some[:5])}{', ...' if len(some) > 5 else ''}" if some else "the model has none"
