"""The kinds of CPUs that machine code is made for. Code of one level is the same on every machine that has it, shipped or compiled.

Nothing here imports LLVM: NumPy knows what the CPU can do.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from pullback.settings import environment

LEVEL_VARIABLE = "PULLBACK_LEVEL"


@dataclass(frozen=True)
class Level:
    """What the code of a level may rely on. `needs`: the features by which NumPy tells a CPU that has it."""

    name: str
    machine: str  # platform.machine(), in lower case
    vector_bytes: int
    registers: int  # vector registers
    masks_memory: bool = False  # loads and stores of some lanes of a vector are single instructions
    cpu: str = "generic"  # LLVM's name of the least such CPU
    needs: tuple[str, ...] = ()
    pairs: str = ""  # LLVM's name of an extension some of its CPUs have: products of bfloat16, two summed at once


# From the best of an architecture to the least.
LEVELS = (
    Level("x86-64-v4", "x86_64", 64, 32, True, "x86-64-v4", ("AVX2", "FMA3", "F16C", "AVX512_SKX"), "avx512bf16"),
    Level("x86-64-v3", "x86_64", 32, 16, True, "x86-64-v3", ("AVX2", "FMA3", "F16C")),
    Level("x86-64-v2", "x86_64", 16, 16, False, "x86-64-v2", ("SSE42", "POPCNT")),  # multiply-adds are calls of the C library
    Level("x86-64", "x86_64", 16, 16, False, "x86-64"),
    Level("aarch64", "aarch64", 16, 32),  # NEON; wider SVE registers are left unused
)
_OTHER_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}  # of the same architectures, on Windows and macOS


def host_machine() -> str:
    """The architecture of this process, by the name that the levels use."""
    name = platform.machine().lower()
    return _OTHER_NAMES.get(name, name)


def numpy_core() -> Any:
    """NumPy's own extension module, which had another place before version 2."""
    return import_module(f"numpy.{'core' if np.__version__[0] == '1' else '_core'}._multiarray_umath")


def cpu_features() -> set[str]:
    """What NumPy has found that this CPU and its operating system can do."""
    found = getattr(numpy_core(), "__cpu_features__", {})
    return {name for name, is_there in found.items() if is_there}


def host_levels() -> tuple[Level, ...]:
    """The levels that this CPU has, the best first; of an architecture without levels, one of vectors that LLVM can split."""
    machine, features = host_machine(), cpu_features()
    same = [level for level in LEVELS if level.machine == machine]
    if not same:
        return (Level(machine, machine, 16, 16),)
    return tuple(level for level in same if features.issuperset(level.needs))


@cache
def level() -> Level:
    """The level in force: $PULLBACK_LEVEL, else the best of this CPU. Any can be compiled for, only those of this CPU run."""
    asked = environment(LEVEL_VARIABLE)
    if not asked:
        return host_levels()[0]
    known = {level.name: level for level in (*LEVELS, *host_levels())}
    if asked not in known:
        raise ValueError(f"{LEVEL_VARIABLE} is {asked!r}; it must be one of {', '.join(known)}")
    return known[asked]


@cache
def has_pairs() -> bool:
    """Whether this CPU has the extension for products of bfloat16 that the level in force knows."""
    return bool(level().pairs) and level().pairs.upper() in cpu_features()


def runs_here() -> bool:
    """Whether this CPU can run the code of the level in force."""
    return level() in host_levels()
