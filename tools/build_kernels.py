"""Compile the kernels of a level and link them into the libraries of a wheel: one for each dtype, and an index.

    python tools/build_kernels.py --level aarch64 --into build/shipped

Any level can be built on any machine that runs Linux. Object code is kept below build/objects, so that what has not changed is not
compiled again. The linker is that of the package ziglang, which knows every system.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pullback.cpu.machine_code.variants import Variant

ROOT = Path(__file__).parents[1]
OBJECTS = ROOT / "build" / "objects"
ONLY_OURS = "{ global: pullback_*; local: *; };"  # seen from outside; the rest has names that other libraries may have too


def linker(machine: str) -> list[str] | None:
    """The command that links for Linux on an architecture: ziglang's, or for this one the system's; None where there is none."""
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu"]
    return ["cc"] if machine == platform.machine() and shutil.which("cc") else None


def link(command: list[str], objects: list[Path], library: Path) -> None:
    """One shared library. It names no C library: memcpy and the like are found in that of the process, whichever it is."""
    with tempfile.TemporaryDirectory() as folder:
        script, names = Path(folder) / "symbols", Path(folder) / "objects"
        script.write_text(ONLY_OURS)
        names.write_text("\n".join(map(str, objects)))
        options = ["-shared", "-nostdlib", "-Wl,--gc-sections", "-Wl,-s", f"-Wl,--version-script={script}"]
        subprocess.run([*command, *options, "-o", str(library), f"@{names}"], check=True)


def link_kernels(variants: list[Variant], dtypes: list[str], folder: Path) -> None:
    """The libraries and the index of the level in force, from object code in the cache."""
    from pullback.cpu.machine_code import disk_cache, shipped
    from pullback.cpu.machine_code.keys import key_of
    from pullback.cpu.machine_code.levels import level

    command = linker(level().machine)
    if command is None:
        sys.exit("there is no linker: pip install ziglang")
    aside = folder.with_suffix(".part")  # until all of it is there
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    libraries: dict[str, str] = {}
    kernels = {}
    for dtype in dtypes:
        with tempfile.TemporaryDirectory() as objects:
            paths = []
            for variant in variants:
                if variant.dtype == dtype:
                    made = disk_cache.read(variant)
                    assert made is not None, f"{variant} has not been kept"
                    kernels[key_of(variant)] = (made.fields, made.functions)
                    paths.append(Path(objects) / f"{variant.symbol()}.o")
                    paths[-1].write_bytes(made.contents)
            library = aside / shipped.library_name(dtype)
            link(command, paths, library)
        libraries[dtype] = hashlib.sha256(library.read_bytes()).hexdigest()
        print(f"{level().name} {dtype}: {len(paths)} kernels in {library.stat().st_size / 1e6:.1f} MB")
    shipped.write_index(aside, libraries, kernels)
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", required=True, help="x86-64-v4, x86-64-v3, aarch64")
    parser.add_argument("--into", type=Path, required=True, help="the folder that gets a folder of the level's name")
    parser.add_argument("--dtype", action="append", help="only this dtype (may be repeated)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    # Before the package is imported: a process has one level.
    os.environ |= {"PULLBACK_LEVEL": options.level, "PULLBACK_LINKABLE": "1", "PULLBACK_CACHE_DIR": str(OBJECTS)}
    from pullback.cli.warmup_command import compile_ahead
    from pullback.rules import FLOAT_NAMES

    dtypes = options.dtype or list(FLOAT_NAMES)
    link_kernels(compile_ahead(dtypes, True, options.jobs), dtypes, options.into / options.level)


if __name__ == "__main__":
    main()
