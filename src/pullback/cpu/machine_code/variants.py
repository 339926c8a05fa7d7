"""What machine code is asked for by, and what is found."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One kernel specialised on what its machine code depends on beside the level; never on a shape."""

    module: str
    kernel: str
    dtype: str = "float32"
    options: tuple[tuple[str, Any], ...] = ()
    pairs: bool = False  # it uses the level's extension for products of bfloat16 (levels.py), which not all its CPUs have

    def __str__(self) -> str:
        more = [*(f"{name}={value}" for name, value in self.options), *(["pairs"] if self.pairs else [])]
        return "-".join([self.module, self.kernel, self.dtype, *more])

    def symbol(self, function: str = "") -> str:
        """The name of its function in object code (of one of its functions, where it has several), as profilers show it."""
        return re.sub(r"\W", "_", "-".join(["pullback", str(self), *([function] if function else [])]))

    def symbols(self, functions: tuple[str, ...]) -> tuple[str, ...]:
        """The names of all its functions."""
        return tuple(map(self.symbol, functions or ("",)))


@dataclass(frozen=True)
class Code:
    """Loaded machine code: its address and the fields of the record that it takes; of code with several functions, each address."""

    address: int
    fields: tuple[str, ...]
    functions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ObjectCode:
    """Machine code as an object file. `functions`: their names, where there are several and no record is taken."""

    variant: str
    fields: tuple[str, ...]
    functions: tuple[str, ...]
    contents: bytes
