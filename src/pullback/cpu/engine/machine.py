"""What this machine is: CPU name and features, register width, cache sizes. Imports llvmlite when first asked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pullback.forking import LOADING, lock_free_in_children

VECTOR_BYTES_VARIABLE = "PULLBACK_VECTOR_BYTES"

# Held while packages are imported and kernels compiled or loaded: a module half imported in another thread at the moment of a fork
# would stay so in the child.
loading = lock_free_in_children(LOADING)


MASKED_BYTES = 32  # of a vector, from which on x86 processors load and store under masks


@dataclass(frozen=True)
class Machine:
    """The facts kernels are compiled and planned for."""

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int

    @property
    def masks_memory(self) -> bool:
        """Whether loads and stores of some lanes of a vector are single instructions."""
        return self.triple.startswith("x86_64") and self.vector_bytes >= MASKED_BYTES


def _cache_bytes(level: int, default: int) -> int:
    """Size of a data cache as Linux tells it, else a common size."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, found = (folder / "type").read_text().strip(), int((folder / "level").read_text())
            text = (folder / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if found == level and kind in ("Data", "Unified") and text[:-1].isdigit():
            return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)
    return default


def _vector_bytes(features: dict[str, bool]) -> int:
    """Register width: AVX-512 where masks work on bytes too, else AVX2, else 128 bits (SSE, NEON)."""
    asked = os.environ.get(VECTOR_BYTES_VARIABLE, "")
    if asked:
        if asked not in ("16", "32", "64"):
            raise ValueError(f"{VECTOR_BYTES_VARIABLE} is {asked!r}; it must be 16, 32 or 64")
        return int(asked)
    if all(features.get(name) for name in ("avx512f", "avx512bw", "avx512vl", "avx512dq")):
        return 64
    return 32 if features.get("avx2") else 16


@cache
def machine() -> Machine:
    """This machine, read once."""
    with loading:
        from llvmlite import binding

        try:
            features = binding.get_host_cpu_features()
        except RuntimeError:  # LLVM cannot tell on every system
            features = binding.FeatureMap()
        return Machine(
            triple=binding.get_default_triple(),
            cpu=binding.get_host_cpu_name(),
            features=features.flatten(),
            vector_bytes=_vector_bytes(dict(features)),
            l1_bytes=_cache_bytes(1, 32 << 10),
            l2_bytes=_cache_bytes(2, 512 << 10),
            l3_bytes=_cache_bytes(3, 8 << 20),
        )
