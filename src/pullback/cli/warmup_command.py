"""`pullback warmup`: compile the cpu kernels ahead, behind a progress bar, so that no later call has to."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pullback import registry, settings
from pullback.cli.console import progress, size_text
from pullback.cli.processes import in_processes
from pullback.rules import FLOAT_NAMES

if TYPE_CHECKING:
    from pullback.cpu.machine_code.variants import Variant

EXAMPLES = """examples:
  pullback warmup                       all kernels, dtypes and winner rules (minutes, once for a version and a machine)
  pullback warmup --dtype float32       only what float32 arrays need
  pullback warmup --all                 also windows of more than 255 taps
  pullback warmup --prune               compile nothing; remove kernels of other versions, unused for 30 days
  pullback warmup --prune 0             the same, however recently they were used
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "warmup",
        help="compile the kernels ahead and keep them on disk",
        description="Compiles the cpu kernels into the cache folder (pullback info names it), several at a time; a wheel "
        "that ships kernels needs none. Exit status 1 if they cannot be kept there.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dtype", action="append", choices=FLOAT_NAMES, help="only this dtype (may be repeated)")
    parser.add_argument("--all", action="store_true", help="also the kernels for windows of more than 255 taps")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="compile in N processes (default: the number of threads in force)"
    )
    parser.add_argument(
        "--prune", type=float, nargs="?", const=settings.UNUSED_DAYS, metavar="DAYS",
        help=f"instead of compiling, remove kernels of other versions and machines, unused for DAYS ({settings.UNUSED_DAYS})",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    why = registry.why_unavailable(registry.CPU)
    if why is not None:
        print(f"pullback warmup: {why}", file=sys.stderr)
        return 2
    if options.prune is not None:
        return _prune(options.prune)
    jobs = settings.get_num_threads() if options.jobs is None else options.jobs
    if jobs < 1:
        print(f"pullback warmup: --jobs is {jobs}; it must be at least 1", file=sys.stderr)
        return 2
    from pullback.cpu.machine_code import disk_cache, find, warmup

    if not find.has_compiler():
        print(f"pullback warmup: the kernels of this wheel are ready; to compile others: {find.INSTALL}")
        return 0
    folder = disk_cache.cache_folder()
    if not disk_cache.is_kept():
        print(f"pullback warmup: nothing can be kept in {folder}; set ${disk_cache.CACHE_VARIABLE}", file=sys.stderr)
        return 1
    dtypes = options.dtype or FLOAT_NAMES
    missing = [name for name in dtypes if warmup.dtype_of(name) is None]
    if missing:
        print(f"{', '.join(missing)} left out: ml_dtypes is not installed", file=sys.stderr)
    before = len(list(folder.glob("*.o")))
    compile_ahead(dtypes, options.all, jobs)
    after = len(list(folder.glob("*.o")))
    print(f"{after - before} kernels compiled; {after} are in {folder}")
    return 0


def compile_ahead(dtypes: Sequence[str], wide: bool, jobs: int) -> list[Variant]:
    """Compile what is missing of all that plans can ask for, behind two progress bars; all of it."""
    from pullback.cpu.machine_code import warmup

    tasks, wanted = warmup.tasks(dtypes, wide=wide), dict.fromkeys(warmup.beside_ops(dtypes))
    with progress("planning", len(tasks)) as tick, closing(in_processes(warmup.variants_of, tasks, jobs)) as planned:
        for variants in planned:
            wanted.update(dict.fromkeys(variants))
            tick("what plans ask for")
    compile_missing(list(wanted), jobs)
    return list(wanted)


def compile_missing(variants: Sequence[Variant], jobs: int) -> None:
    """Compile what is neither shipped nor kept, several at a time, behind a progress bar."""
    from pullback.cpu.machine_code import warmup

    missing = warmup.missing(variants)
    if not missing:
        return
    groups = warmup.groups(missing)
    with progress("compiling", len(missing)) as tick, closing(in_processes(warmup.compile_group, groups, jobs)) as compiled:
        for labels in compiled:
            for label in labels:
                tick(label)


def _prune(days: float) -> int:
    from pullback.cpu.machine_code import cache_folders, disk_cache

    if not days >= 0:
        print(f"pullback warmup: --prune is {days:g}; it must be a number of days, 0 or more", file=sys.stderr)
        return 2
    removed = list(cache_folders.prune(days))
    room = size_text(sum(folder.size_bytes for folder in removed))
    print(f"{len(removed)} folders of other versions and machines ({room}) removed from {disk_cache.cache_directory()}")
    return 0
