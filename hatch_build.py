"""Build hook of wheels: with $PULLBACK_SHIP naming an architecture, its kernels go in and the wheel is for Linux on it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DTYPES = ("float32", "float64", "float16", "bfloat16")
LEVELS = {"x86_64": ("x86-64-v4", "x86-64-v3"), "aarch64": ("aarch64",)}


def _check(folder: Path) -> None:
    """All dtypes, whole, and of this version; that their sources are those of this tree, the tool that builds them sees to."""
    again = f"python tools/build_kernels.py --level {folder.name} --into build/shipped"
    try:
        libraries = json.loads((folder / "index.json").read_text())["libraries"]
    except (OSError, ValueError, KeyError) as error:
        raise FileNotFoundError(f"no kernels in {folder} ({error}): {again}") from None
    damaged = [name for name in DTYPES if libraries.get(name) != _digest(folder / f"{name}.so")]
    if damaged:
        raise FileNotFoundError(f"no whole libraries of {', '.join(damaged)} in {folder}: {again}")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "missing"


class Hook(BuildHookInterface[Any]):
    """Without the variable, a wheel of Python alone, which runs everywhere and compiles its kernels when they are needed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        machine = os.environ.get("PULLBACK_SHIP")
        if not machine:
            return
        built = Path(self.root, "build", "shipped")
        for level in LEVELS[machine]:
            _check(built / level)
            build_data["force_include"][str(built / level)] = f"pullback/cpu/shipped/{level}"
        build_data["pure_python"] = False
        # The libraries want nothing of a C library but memcpy and the like, and no version of one.
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"
