"""What a kernel reads of the attributes that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Watched(Mapping[str, Any]):
    """A mapping that remembers which of its names a kernel asks for, which is by `get`: all else reads the whole of it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values_by_name, self.asked = values, dict[str, None]()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked[name] = None
        return self.values_by_name.get(name, default)

    def __getitem__(self, name: str) -> Any:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)
