"""`pullback info`: versions, backends, and the kernels of each op in the order they are tried."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pullback import __version__, registry
from pullback.ops.explain import PREPARE

PACKAGES = ("numpy", "numba", "ml_dtypes", "rich")


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "info",
        help="backends, kernels and versions on this machine",
        description="Prints what pullback found: versions, backends, and each op's kernels in the order they are tried.",
    )
    parser.set_defaults(run=run)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def run(options: argparse.Namespace) -> int:
    print(f"pullback {__version__}, Python {platform.python_version()}, {platform.machine()}")
    print("packages   " + ", ".join(f"{package} {_version(package)}" for package in PACKAGES))
    print(f"backends   {', '.join(registry.backends())} (default {registry.default_backend()})")
    for backend in registry.backends():
        for op in PREPARE:
            names = [f"{k.backend}/{k.name}" for k in registry.kernels_for(op, backend)]
            print(f"  {backend:<10} {op:<28} {', '.join(names)}")
    return 0
