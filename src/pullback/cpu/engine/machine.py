"""What plans need to know of this machine: the level its kernels are compiled for, and the sizes of its caches."""

from __future__ import annotations

import ctypes
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pullback.cpu.machine_code.levels import level


@dataclass(frozen=True)
class Machine:
    """The facts kernels are planned for. No machine code depends on the caches: plans pass on what follows from them."""

    vector_bytes: int
    registers: int
    masks_memory: bool
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int


USUAL_BYTES = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}  # of caches, where the system does not tell
CPU_INFO = Path("/proc/cpuinfo")
LINUX_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
MACOS_CACHES = {1: "hw.perflevel0.l1dcachesize", 2: "hw.perflevel0.l2cachesize"}


def _linux_cache(cache_level: int) -> int | None:
    for folder in LINUX_CACHES.glob("index*"):
        try:
            kind, found = (folder / "type").read_text().strip(), int((folder / "level").read_text())
            text = (folder / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if found == cache_level and kind in ("Data", "Unified") and text[:-1].isdigit():
            return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)
    return None


def _macos_cache(cache_level: int) -> int | None:
    """Of a fast core; Apple's CPUs have no third level of their own."""
    size, room = ctypes.c_int64(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int64))
    with suppress(AttributeError, OSError):
        ask = ctypes.CDLL(None).sysctlbyname
        name = MACOS_CACHES.get(cache_level, "").encode()
        if name and ask(name, ctypes.byref(size), ctypes.byref(room), None, ctypes.c_size_t(0)) == 0:
            return size.value
    return None


def cache_bytes(cache_level: int) -> int:
    """Size of a data cache as the system tells it, else a common size."""
    tell = {"linux": _linux_cache, "darwin": _macos_cache}.get(sys.platform)
    return (tell(cache_level) if tell is not None else None) or USUAL_BYTES[cache_level]


@cache
def machine() -> Machine:
    """This machine, read once."""
    made_for = level()
    caches = (cache_bytes(number) for number in (1, 2, 3))
    return Machine(made_for.vector_bytes, made_for.registers, made_for.masks_memory, *caches)


def _cpu_info() -> dict[str, str]:
    """What Linux tells of the first processor."""
    lines = CPU_INFO.read_text(errors="replace").splitlines() if CPU_INFO.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}


@cache
def cpu_kind() -> tuple[str, str]:
    """The processor's maker and family, where a virtual machine hides its name; empty where the system does not tell."""
    told = _cpu_info()
    return told.get("vendor_id", ""), told.get("cpu family", "")


@cache
def cpu_model() -> str:
    """The processor's name as the system gives it; of Arm's, which Linux gives no name, the numbers of maker and part."""
    told = _cpu_info()
    if "model name" in told:
        return told["model name"]
    numbers = [told[key] for key in ("CPU implementer", "CPU part") if key in told]
    return " ".join([platform.processor() or platform.machine(), *numbers])
