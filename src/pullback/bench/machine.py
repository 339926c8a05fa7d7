"""Where a run was made: processor, cores in reach, load, system, date."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any

from pullback.cpu.engine.machine import cpu_model


def describe_machine() -> dict[str, Any]:
    reach = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu_model(),
        "cores": reach,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
