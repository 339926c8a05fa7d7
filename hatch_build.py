"""Build hook of wheels: with $PULLBACK_SHIP naming an architecture, its kernels go in and the wheel is for Linux on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LEVELS = {"x86_64": ("x86-64-v4", "x86-64-v3"), "aarch64": ("aarch64",)}


class Hook(BuildHookInterface[Any]):
    """Without the variable, a wheel of Python alone, which runs everywhere and compiles its kernels when they are needed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        machine = os.environ.get("PULLBACK_SHIP")
        if not machine:
            return
        built = Path(self.root, "build", "shipped")
        for level in LEVELS[machine]:
            if not (built / level / "index.json").exists():
                raise FileNotFoundError(f"no kernels in {built / level}: python tools/build_kernels.py --level {level}")
            build_data["force_include"][str(built / level)] = f"pullback/cpu/shipped/{level}"
        build_data["pure_python"] = False
        # The libraries want nothing of a C library but memcpy and the like, and no version of one.
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"
