"""Which kernels a section of a page of defects is about: those that its executed examples call."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]


def anchor(heading: str) -> str:
    """The anchor that MkDocs gives a heading; a wrong one would fail the build as a broken link."""
    plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def sections(page: str) -> dict[str, str]:
    """The text below each second-level heading of a page."""
    parts = re.split(r"^## (.+)$", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def links_by_kernel(page: str, called: Callable[[str, str], set[str]], up: str = "../") -> dict[str, list[str]]:
    """For each kernel links to the sections whose examples run it; `called(heading, text)` finds the kernels."""
    links: dict[str, list[str]] = {}
    for heading, text in sections(page).items():
        for kernel in called(heading, text):
            links.setdefault(kernel, []).append(f"[{heading}]({up}{page}#{anchor(heading)})")
    return links
