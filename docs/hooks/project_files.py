"""Files of the repository beside docs/ as pages of the site: examples, changes, security."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("SECURITY.md", "CHANGELOG.md")


def examples() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.py"))


def about(example: Path) -> str:
    """The first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def example_page(example: Path) -> str:
    code = example.read_text(encoding="utf-8")
    return f"# {example.name}\n\n`examples/{example.name}` in the repository.\n\n```python\n{code}```\n"


def examples_list() -> str:
    rows = [f"| [{each.name}]({each.stem}.md) | {about(each)} |" for each in examples()]
    return "\n".join(
        ["# Examples", "", "Programs in the repository's folder `examples`.", "", "| file | |", "|---|---|", *rows]
    )


def pages() -> dict[str, str]:
    """The pages by their place in the site."""
    made = {f"examples/{each.stem}.md": example_page(each) for each in examples()}
    texts = {f"project/{name}": (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](../") for name in TEXTS}
    return {"examples/all.md": examples_list(), **made, **texts}


def inside_the_site(markdown: str, depth: int) -> str:
    """Links to the repository's files, as a page in docs/ has them, turned to their pages here."""
    up = "../" * depth
    markdown = re.sub(rf"\]\({re.escape(up)}\.\./examples/(\w+)\.py\)", rf"]({up}examples/\1.md)", markdown)
    return re.sub(rf"\]\({re.escape(up)}\.\./({'|'.join(map(re.escape, TEXTS))})\)", rf"]({up}project/\1)", markdown)
