"""Tables of kernels in Markdown, whose cells know their column so that a phone can show each row as a card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def breakable(name: str) -> str:
    """A long name as code that may break between its words."""
    return f"<code>{re.sub(r'(?<=[a-zA-Z0-9])(?=[A-Z][a-z])', '<wbr>', name)}</code>"


def kernel_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        labels = [f' {{: data-column="{column}" }}' if number else "" for number, column in enumerate(columns)]
        lines.append("| " + " | ".join(cell + label for cell, label in zip(row, labels, strict=True)) + " |")
    return "\n".join(['<div class="kernels" markdown>', "", *lines, "", "</div>"])
