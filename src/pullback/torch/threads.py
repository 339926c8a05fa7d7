"""One set of threads for PyTorch and us: our jobs run on PyTorch's OpenMP threads, as many as torch.set_num_threads says.

With two pools, the idle threads of each spin on the cores that the other wants: a network whose layers alternate between them
took half as long again.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from pullback.registry import CPU, MissingCode, why_unavailable

_MAPS = Path("/proc/self/maps")
_NAMES = ("libgomp", "libiomp5", "libomp")


def openmp_library() -> str | None:
    """The OpenMP library that this process has loaded, if it can be called as ours has to; None elsewhere than on Linux."""
    try:
        paths = {line.split(maxsplit=5)[5] for line in _MAPS.read_text().splitlines() if line.count("/")}
    except (OSError, IndexError):
        return None
    found = sorted(path for path in paths if Path(path).name.startswith(_NAMES))
    if len(found) != 1:  # none, or nobody knows whose threads are PyTorch's
        return None
    try:
        return found[0] if hasattr(ctypes.CDLL(found[0]), "GOMP_parallel") else None
    except OSError:
        return None


def share_threads(on: bool = True) -> bool:
    """Run our jobs on PyTorch's threads, or (on=False) on our own again; whether they are shared now."""
    if why_unavailable(CPU) is not None:
        return False
    from pullback.cpu.engine import team, threads

    library = openmp_library() if on else None
    try:
        threads.use_team(None if library is None else team.Team(library, torch.get_num_threads))
    except MissingCode:
        return False
    return library is not None
