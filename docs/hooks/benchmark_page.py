"""The page of published benchmark results, made of docs/data/benchmark.json as `pullback bench page` would."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "data" / "benchmark.json"
NONE_YET = """# Benchmark results

No results are published yet. `make bench` measures your machine; [what is measured, and how](benchmark.md).
"""


def results() -> str:
    """The page, with tables that can be sorted and searched, or a sentence where nothing is published."""
    if not RESULTS.exists():
        return NONE_YET
    from pullback.bench import page, results

    text: str = page.written(results.load(RESULTS))
    return text
