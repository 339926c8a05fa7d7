"""The levels that code is made for: which of them a CPU has, and what they tell the kernels."""

from __future__ import annotations

import pytest
from cpu_calls import run_python

from pullback.cpu.engine import machine as machines
from pullback.cpu.machine_code import levels
from pullback.cpu.machine_code.levels import LEVELS, host_levels

V2 = {"SSE42", "POPCNT"}
V4 = {*V2, "AVX2", "FMA3", "F16C", "AVX512F", "AVX512_SKX"}


@pytest.mark.parametrize(
    ("machine", "features", "names"),
    [
        ("x86_64", V4, ["x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64"]),
        ("AMD64", V4, ["x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64"]),  # as Windows says it
        ("x86_64", V4 - {"AVX512_SKX"}, ["x86-64-v3", "x86-64-v2", "x86-64"]),  # AVX-512 without masks of bytes
        ("x86_64", V4 - {"FMA3"}, ["x86-64-v2", "x86-64"]),
        ("x86_64", {"SSE", "SSE2"}, ["x86-64"]),
        ("aarch64", {"NEON", "ASIMD", "SVE"}, ["aarch64"]),
        ("arm64", set(), ["aarch64"]),  # as macOS says it
        ("riscv64", set(), ["riscv64"]),
    ],
)
def test_which_levels_a_cpu_has(machine: str, features: set[str], names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels.platform, "machine", lambda: machine)
    monkeypatch.setattr(levels, "cpu_features", lambda: features)
    assert [level.name for level in host_levels()] == names


def test_numpy_tells_what_this_cpu_can_do() -> None:
    """Else an ordinary CPU of today would get the least level."""
    assert levels.cpu_features() & {"SSE", "SSE3", "SSE42", "X86_V2", "NEON", "ASIMD"}


def test_levels_fit_their_registers() -> None:
    assert len({level.name for level in LEVELS}) == len(LEVELS)
    for level in LEVELS:
        assert level.vector_bytes in (16, 32, 64)
        assert level.registers in (16, 32)


@pytest.mark.parametrize("name", ["x86-64-v9", "64", "AARCH64"])
def test_a_bad_level_is_named(name: str) -> None:
    code = """
from pullback.cpu.engine.machine import machine
try:
    machine()
except ValueError as error:
    print(error)
"""
    said = run_python(code, PULLBACK_LEVEL=name)
    assert said.startswith(f"PULLBACK_LEVEL is {name!r}; it must be one of x86-64-v4, x86-64-v3, x86-64-v2, x86-64, aarch64")


FOREIGN = """
import numpy as np
import pullback as pb
try:
    pb.max_pool(np.zeros((1, 4, 4, 1)), 2)
except pb.KernelError as error:
    print(error)
"""


def test_a_level_of_another_cpu_does_not_run() -> None:
    foreign = next(level.name for level in LEVELS if level not in host_levels())
    assert run_python(FOREIGN, PULLBACK_LEVEL=foreign) == f"this CPU cannot run kernels of the level {foreign}"


def test_cache_sizes_are_told_or_usual(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (kind, level, size) in enumerate((("Data", 1, "48K"), ("Instruction", 1, "32K"), ("Unified", 2, "2M"))):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("type", kind), ("level", str(level)), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(machines.sys, "platform", "linux")
    monkeypatch.setattr(machines, "LINUX_CACHES", tmp_path)
    assert [machines.cache_bytes(level) for level in (1, 2, 3)] == [48 << 10, 2 << 20, machines.USUAL_BYTES[3]]
    monkeypatch.setattr(machines.sys, "platform", "win32")
    assert [machines.cache_bytes(level) for level in (1, 2, 3)] == list(machines.USUAL_BYTES.values())


def test_cache_sizes_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its system call, which is asked by the right name and with room for one number."""
    known = {b"hw.perflevel0.l1dcachesize": 128 << 10, b"hw.perflevel0.l2cachesize": 16 << 20}

    class System:
        @staticmethod
        def sysctlbyname(name, value, room, new, size) -> int:
            assert room._obj.value == 8
            if name not in known:
                return -1
            value._obj.value = known[name]
            return 0

    monkeypatch.setattr(machines.sys, "platform", "darwin")
    monkeypatch.setattr(machines.ctypes, "CDLL", lambda name: System)
    assert [machines.cache_bytes(level) for level in (1, 2, 3)] == [128 << 10, 16 << 20, machines.USUAL_BYTES[3]]
    known.clear()
    assert [machines.cache_bytes(level) for level in (1, 2, 3)] == list(machines.USUAL_BYTES.values())
