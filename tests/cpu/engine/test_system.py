"""What each operating system offers the thread pool: on Linux futexes and affinity, elsewhere only a word to let others run."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from pullback.cpu.engine import system
from pullback.cpu.engine.kernel_records import System

SOME = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)  # a function that has an address
ALL = SimpleNamespace(sched_yield=SOME, syscall=SOME, sched_getcpu=SOME, clock_gettime=SOME, SwitchToThread=SOME)


def words(monkeypatch: pytest.MonkeyPatch, platform: str, machine: str, library: Any = ALL) -> set[str]:
    """The names of what is offered."""
    monkeypatch.setattr(system.sys, "platform", platform)
    monkeypatch.setattr(system.platform, "machine", lambda: machine)
    monkeypatch.setattr(system.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(system.ctypes, "WinDLL", lambda name: library, raising=False)
    values = system.system_words.__wrapped__()
    return {name for (name, _), value in zip(System.FIELDS, values.tolist(), strict=True) if value}


EVERYTHING = {name for name, _ in System.FIELDS}


@pytest.mark.parametrize(
    ("platform", "machine", "offered"),
    [
        ("linux", "x86_64", EVERYTHING),
        ("linux", "aarch64", EVERYTHING),
        ("linux", "riscv64", {"let_others_run"}),
        ("darwin", "arm64", {"let_others_run"}),
        ("win32", "AMD64", {"let_others_run"}),
    ],
)
def test_what_is_offered(platform: str, machine: str, offered: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert words(monkeypatch, platform, machine) == offered


def test_a_c_library_without_the_callers_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers sleep by futex all the same."""
    less = SimpleNamespace(sched_yield=SOME, syscall=SOME)
    assert words(monkeypatch, "linux", "x86_64", less) == {"let_others_run", "syscall", "futex"}
