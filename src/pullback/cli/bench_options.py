"""The options that the bench commands share, and what they ask of them before a long run begins: a ValueError names the option."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pullback.cli.output_files import check_written
from pullback.rules import FLOAT_NAMES

LAYOUTS = ("channels_last", "channels_first")
THEMES = ("light", "dark", "both")


def add_run_options(parser: argparse.ArgumentParser, inherited: bool = False) -> None:
    """How to time, and what to write. `inherited`: the command above has these options too, and their defaults."""

    def default(value: Any) -> Any:
        return argparse.SUPPRESS if inherited else value

    how = parser.add_argument_group("how to time it")
    how.add_argument(
        "--peer", action="append", metavar="PEER", default=default(None),
        help="+ only this peer; 'all' adds the slow ones, 'none' takes none",
    )  # fmt: skip
    how.add_argument("--threads", type=int, default=default(2), metavar="N", help="threads of every participant (default 2)")
    how.add_argument(
        "--seconds", type=float, default=default(0.5), metavar="S", help="timed seconds a case and participant (default 0.5)"
    )
    how.add_argument(
        "--backend", default=default(None), metavar="NAME", help="our backend (default: the one the library takes by itself)"
    )
    files = parser.add_argument_group("what to write")
    files.add_argument(
        "--json", type=Path, default=default(None), metavar="FILE",
        help="machine, versions and all samples; after Ctrl-C what was measured so far",
    )  # fmt: skip
    files.add_argument(
        "--plot", type=Path, default=default(None), metavar="FILE", help="draw the ratios (.png or .svg, needs matplotlib)"
    )
    add_theme(files, default("light"))


def add_theme(parser: Any, default: Any = "light") -> None:
    parser.add_argument(
        "--theme", choices=THEMES, default=default, help="of pictures: light (default), dark, or both (FILE and FILE-dark)"
    )


def themed_files(picture: Path, theme: str) -> dict[str, Path]:
    """The files to draw, by theme."""
    if theme != "both":
        return {theme: picture}
    return {"light": picture, "dark": picture.with_name(f"{picture.stem}-dark{picture.suffix}")}


def check_settings(threads: int, seconds: float, backend: str | None) -> None:
    from pullback import registry

    if threads < 1 or not seconds >= 0:
        raise ValueError(f"--threads {threads} --seconds {seconds}: at least 1 thread and 0 seconds")
    if backend is not None and backend not in registry.backends():
        raise ValueError(f"--backend {backend!r}: there are {', '.join(registry.backends())}")


def check_dtypes(wanted: Sequence[str] | None) -> tuple[str, ...]:
    if "bfloat16" in (wanted or ()) and find_spec("ml_dtypes") is None:
        raise ValueError("--dtype bfloat16 needs ml_dtypes: pip install 'pullback[bfloat16]'")
    return tuple(dict.fromkeys(wanted or FLOAT_NAMES[:1]))


def narrow(option: str, wanted: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The wanted names in the order of the known ones; all of them without a wish."""
    unknown = [name for name in wanted or () if name not in known]
    if unknown:
        raise ValueError(f"{option} {unknown[0]!r}: there are {', '.join(known)}")
    return [name for name in known if not wanted or name in wanted]


def narrow_to_kernel(kernel: str | None, ops: Sequence[str], asked: bool, backend: str | None) -> list[str]:
    """The ops that have a kernel of that name; ValueError where none has, or where one that was asked for has not."""
    from pullback import registry
    from pullback.bench.ours import FUNCTIONS

    if kernel is None:
        return list(ops)
    backend = backend or registry.default_backend()
    lists = {op: [registry.kernels_for(function, backend) for function in FUNCTIONS.get(op, (op,))] for op in ops}
    having = [op for op, each in lists.items() if all(any(k.is_named(kernel) for k in kernels) for kernels in each)]
    if not having or (asked and len(having) < len(ops)):
        op = next(op for op in ops if op not in having)
        names = dict.fromkeys(k.name for kernels in lists[op] for k in kernels)
        raise ValueError(f"--kernel {kernel!r}: {op} has {', '.join(names)} on backend {backend!r}")
    return having


def check_files(json: Path | None, plot: Path | None) -> None:
    """The folders must be there, and the picture one that can be drawn."""
    check_written((json, plot))
    if plot is not None:
        check_plot(plot)


def check_plot(path: Path) -> None:
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"a plot is a .png or .svg file, not {path.name!r}")
    if find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib: pip install 'pullback[bench]'")
