"""How many cores this process has: its affinity mask, without second hyper-threads, and a container's share of CPU time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Cores:
    """cpus: that the system may run this process on; cores: that these belong to; quota: CPUs' worth of time, None: all of it."""

    cpus: int
    cores: int
    quota: float | None

    @property
    def threads(self) -> int:
        """One for each core: a second hyper-thread has no multiply-add unit of its own. No more than the quota lets run at once.

        A fraction is left over: a thread too many would use up the quota, and then all would stand still.
        """
        return max(1, self.cores if self.quota is None else min(self.cores, int(self.quota)))

    def __str__(self) -> str:
        quota = "" if self.quota is None else f", a quota of {self.quota:.3g} CPUs"
        return f"{self.cores} cores with {self.cpus} hardware threads{quota}"


def physical_cores(cpus: set[int], folder: Path = CPUS) -> int:
    """The cores of these CPUs, as Linux tells them; as many as there are CPUs where it does not."""
    found = set()
    for cpu in cpus:
        try:
            found.add((folder / f"cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            return len(cpus)
    return len(found)


def _cgroup_folders(folder: Path, own: Path) -> list[Path]:
    """Of this process, and those around them: of version 2, and of version 1 with the controller for CPU time."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for number, controllers, path in (line for line in lines if len(line) == 3):
        if number == "0" or "cpu" in controllers.split(","):
            at = folder / controllers / path.strip("/")
            found += [at, *(around for around in at.parents if around == folder or folder in around.parents)]
    return found


def cpu_quota(folder: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float | None:
    """CPUs' worth of time that a container gives this process; None where it sets no limit."""
    quotas = []
    for at in _cgroup_folders(folder, own):
        try:
            if (at / "cpu.max").exists():
                quota, period = (at / "cpu.max").read_text().split()
            else:
                quota, period = ((at / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0 and int(period) > 0:
                quotas.append(int(quota) / int(period))
        except (OSError, ValueError):
            continue
    return min(quotas, default=None)


@cache
def found_cores() -> Cores:
    """Of this process when it was first asked: asking costs as much as many small ops."""
    if not hasattr(os, "sched_getaffinity"):
        count = os.cpu_count() or 1
        return Cores(count, count, None)
    cpus = os.sched_getaffinity(0)
    return Cores(len(cpus), physical_cores(cpus), cpu_quota())
