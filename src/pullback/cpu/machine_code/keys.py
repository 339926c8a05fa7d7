"""What machine code depends on, as hashes: its sources, how it is compiled, the level, the versions."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pullback import __version__
from pullback.cpu.machine_code.levels import level, runs_here
from pullback.cpu.machine_code.variants import Variant
from pullback.settings import environment

LINKABLE_VARIABLE = "PULLBACK_LINKABLE"
CPU_FOLDER = Path(__file__).parents[1]
USED_BY_ALL = ("simd.lanes", "simd.record_types", "simd.linked_functions")  # by the compiler, with every kernel
NO_SOURCE = "pullback.cpu.machine_code.levels"  # what a kernel takes from there is in the recipe
_IMPORTED = re.compile(rb"^\s*from (pullback\.cpu\.[\w.]+) import", re.MULTILINE)


@cache
def recipe() -> str:
    """Hash of how all code is made: the version of the package, what the level in force is, the compiler."""
    digest = hashlib.sha256(f"{__version__} {level()!r}".encode())
    digest.update(Path(__file__).with_name("compiler.py").read_bytes())
    return digest.hexdigest()[:20]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # nothing is compiled, or not by pip's rules
        return None


def is_linkable() -> bool:
    """Whether code is compiled for a library (tools/build_kernels.py), or to be loaded as it is."""
    return bool(environment(LINKABLE_VARIABLE)) or not runs_here()


@cache
def fingerprint() -> str:
    """Hash of what all code that is compiled here depends on beside its sources."""
    made_with = [recipe(), level().name, is_linkable(), _version("numba"), _version("llvmlite")]
    return hashlib.sha256(json.dumps(made_with).encode()).hexdigest()[:20]


@cache
def _sources(module: str) -> frozenset[Path]:
    """The files that a module of this package is compiled from: its own and those of the modules it imports from here."""
    found: set[Path] = set()
    wanted = [module]
    while wanted:
        path = CPU_FOLDER.joinpath(*wanted.pop().split(".")[2:]).with_suffix(".py")
        if path not in found:
            found.add(path)  # a file: kernels import names from modules, not modules from packages
            imported = [name.decode() for name in _IMPORTED.findall(path.read_bytes())]
            wanted += [name for name in imported if name != NO_SOURCE]
    return frozenset(found)


@cache
def source_hash(module: str) -> str:
    """Hash of the sources of a kernel, so that a change asks for those kernels alone that it concerns."""
    digest = hashlib.sha256()
    modules = (f"{module}_kernel", *USED_BY_ALL)
    for path in sorted({path for name in modules for path in _sources(f"pullback.cpu.{name}")}):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(CPU_FOLDER).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:12]


def key_of(variant: Variant) -> str:
    """The name that the code of a variant is kept under, within a level and a recipe."""
    return f"{variant}.{source_hash(variant.module)}"
