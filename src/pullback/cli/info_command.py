"""`pullback info`: the machine, threads, the kernel cache, versions, backends and their kernels; what is missing and why."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from pullback import __version__, registry, settings
from pullback.cli.console import size_text
from pullback.cores import found_cores
from pullback.ops.explain import PREPARE

if TYPE_CHECKING:
    from pullback.cpu.engine.profile import Profile
    from pullback.cpu.machine_code.cache_folders import CacheFolder

PACKAGES = ("numpy", "numba", "llvmlite", "ml_dtypes", "rich", "onnx", "safetensors")


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "info",
        help="CPU, threads, cache, backends, kernels and versions on this machine",
        description="Prints what pullback found: the CPU and its vector width, threads, the kernel cache, versions, backends, "
        "and each op's kernels in the order they are tried.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    print(f"pullback {__version__}, Python {platform.python_version()}, {platform.machine()}")
    for title, text in lines():
        print(f"{title:<13} {text}")
    for backend in registry.backends():
        for op in PREPARE:
            names = [k.label for k in registry.kernels_for(op, backend)]
            print(f"  {backend:<11} {op:<28} {', '.join(names)}")
    return 0


def lines() -> list[tuple[str, str]]:
    """What there is to say about this installation, as (title, text)."""
    found = [("packages", ", ".join(f"{package} {_version(package) or 'not installed'}" for package in PACKAGES))]
    why = registry.why_unavailable(registry.CPU)
    if why is None:
        found += _cpu_lines()
    found += [
        ("threads", f"{settings.get_num_threads()} (this process has {found_cores()})"),
        ("backends", f"{', '.join(registry.backends())} (default {registry.default_backend()})"),
    ]
    if why is not None:
        found.append(("unavailable", f"{why}: ops run on the {registry.REFERENCE} backend unless told otherwise"))
    if _version("ml_dtypes") is None:
        found.append(("unavailable", "bfloat16 arrays need ml_dtypes, which is not installed"))
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_lines() -> list[tuple[str, str]]:
    from pullback.cpu.engine.machine import cpu_model, machine
    from pullback.cpu.engine.profile import known
    from pullback.cpu.machine_code import find, shipped
    from pullback.cpu.machine_code.levels import host_levels, level

    here, made_for = machine(), level()
    able = ", ".join(known.name for known in host_levels())
    sizes = enumerate((here.l1_bytes, here.l2_bytes, here.l3_bytes), 1)
    caches = ", ".join(f"L{number} {size_text(size)}" for number, size in sizes)
    vectors = f"{here.vector_bytes} bytes: {here.vector_bytes // 4} float32, {here.vector_bytes // 8} float64"
    ready = (
        f"{shipped.count()} shipped with this wheel" if shipped.is_there() else "none shipped: compiled when they are needed"
    )
    return [
        ("cpu", cpu_model()),
        ("figures", _figures_text(known())),
        ("level", f"{made_for.name}, {vectors} (this CPU has {able})"),
        ("caches", caches),
        ("kernels", ready),
        *(_cache_lines() if find.has_compiler() else [("compiler", f"not installed: {find.INSTALL}")]),
    ]


def _figures_text(found: Profile | None) -> str:
    """The figures that kernels are chosen by."""
    from pullback.cpu.engine.profile import unmeasured

    figures = found or unmeasured()
    rates = (
        f"{figures.fma / 1e9:.0f} GFLOP/s a core, {figures.fma_all / 1e9:.0f} all, memory {figures.memory_all / 1e9:.0f} GB/s"
    )
    hint = "" if found else "; `pullback tune` measures those of this CPU"
    return f"{figures.source}: {rates}, {figures.dispatch * 1e6:.1f} us to hand out a job (of {figures.cpu}{hint})"


def _cache_lines() -> list[tuple[str, str]]:
    from pullback.cpu.machine_code import cache_folders, disk_cache

    folders = cache_folders.cache_folders()
    current, others = ([f for f in folders if f.is_current is wanted] for wanted in (True, False))
    kept = f"{disk_cache.cache_directory()}: {_folder_text(current)} for this version and level"
    return [
        ("kernel cache", kept if disk_cache.is_kept() else f"{kept}; nothing new can be kept there"),
        *([("", _others_text(others))] if others else []),
    ]


def _folder_text(folders: Sequence[CacheFolder]) -> str:
    return f"{sum(f.kernels for f in folders)} kernels in {size_text(sum(f.size_bytes for f in folders))}"


def _others_text(folders: Sequence[CacheFolder]) -> str:
    days = sorted(int(folder.unused_days()) for folder in folders)
    used = f"{days[0]} days ago" if days[0] == days[-1] else f"{days[0]} to {days[-1]} days ago"
    return f"{_folder_text(folders)} in {len(folders)} folders for others, last used {used} (pullback warmup --prune)"
