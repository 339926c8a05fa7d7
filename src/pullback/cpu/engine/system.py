"""What the native half of the thread pool asks of the operating system: addresses of functions and numbers of calls."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache
from typing import Any

from pullback.cpu.engine.kernel_records import System
from pullback.cpu.engine.records import Words

_NUMBERS = {"x86_64": (202, 204, 203), "aarch64": (98, 123, 122)}  # of Linux's calls futex, get_mask and set_mask


def _address(library: Any, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


@cache
def system_words() -> Words:
    """The record `System`. Workers sleep in native code and stay off the caller's CPU where all of it is there: on Linux."""
    found = dict.fromkeys((name for name, _ in System.FIELDS), 0)
    if sys.platform == "win32":
        found["let_others_run"] = _address(ctypes.WinDLL("kernel32"), "SwitchToThread")
    else:
        library = ctypes.CDLL(None)
        found["let_others_run"] = _address(library, "sched_yield")
        if sys.platform == "linux" and sys.byteorder == "little" and platform.machine() in _NUMBERS:
            found["syscall"] = _address(library, "syscall")
            found["futex"], get_mask, set_mask = _NUMBERS[platform.machine()]
            if hasattr(os, "sched_setaffinity") and hasattr(library, "sched_getcpu") and hasattr(library, "clock_gettime"):
                found |= {"get_mask": get_mask, "set_mask": set_mask}
                found |= {"find_cpu": _address(library, "sched_getcpu"), "clock": _address(library, "clock_gettime")}
    return System.pack(found)
