"""What the bench commands ask of their options, before a long run begins: each check is a ValueError that names the option."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path


def check_settings(threads: int, seconds: float, backend: str | None) -> None:
    from pullback import registry

    if threads < 1 or not seconds >= 0:
        raise ValueError(f"--threads {threads} --seconds {seconds}: at least 1 thread and 0 seconds")
    if backend is not None and backend not in registry.backends():
        raise ValueError(f"--backend {backend!r}: there are {', '.join(registry.backends())}")


def narrow(option: str, wanted: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The wanted names in the order of the known ones; all of them without a wish."""
    unknown = [name for name in wanted or () if name not in known]
    if unknown:
        raise ValueError(f"{option} {unknown[0]!r}: there are {', '.join(known)}")
    return [name for name in known if not wanted or name in wanted]


def check_files(json: Path | None, plot: Path | None) -> None:
    """The folders must be there, and the picture one that can be drawn."""
    for path in (json, plot):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"there is no folder {str(path.parent)!r} for {path.name!r}")
    if plot is not None:
        check_plot(plot)


def check_plot(path: Path) -> None:
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"a plot is a .png or .svg file, not {path.name!r}")
    if find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib: pip install 'pullback[bench]'")
