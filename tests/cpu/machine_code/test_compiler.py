"""The disk cache of compiled kernels: shared by processes, proof against damage, and keyed by sources, version and CPU."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cpu_calls import finish, reals, run_python, start_python

import pullback as pb
from pullback.cpu.machine_code import compiler, disk_cache, find, object_files
from pullback.cpu.machine_code.levels import LEVELS
from pullback.cpu.machine_code.variants import Variant

VARIANT = Variant("engine.threads", "lead")  # the quickest to compile

# What a user does, with what it cost: a digest of the answer and the number of kernels compiled.
USE = """
import hashlib, sys
import numpy as np
import pullback as pb
from pullback.cpu.machine_code import compiler
x = np.random.default_rng(0).standard_normal((2, 9, 11, 40)).astype(np.float32)
with pb.backend("cpu"):
    y = pb.avg_pool(x, 2)
print(hashlib.sha256(y).hexdigest(), compiler.compilations, "numba" in sys.modules)
"""


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of this test's own, and nothing loaded from elsewhere."""
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(find, "_loaded", {})
    yield tmp_path / "cache"
    leftover = [path.name for path in tmp_path.rglob("*.part")]
    assert leftover == []


def compiled(variant: Variant) -> int:
    """How many kernels a process that has loaded none compiles for a variant."""
    find._loaded.clear()
    before = compiler.compilations
    assert find.code(variant).address != 0
    return compiler.compilations - before


def test_a_kernel_is_compiled_once(empty_cache: Path) -> None:
    assert compiled(VARIANT) == 1
    [file] = empty_cache.rglob("*.o")
    assert file.parent == disk_cache.cache_folder()
    assert compiled(VARIANT) == 0


def test_two_processes_on_an_empty_cache(empty_cache: Path) -> None:
    processes = [start_python(USE, PULLBACK_CACHE_DIR=str(empty_cache)) for _ in range(2)]
    first, second = (finish(process, 300).split() for process in processes)
    assert first[0] == second[0]
    assert {first[1], second[1]} <= {"0", "1", "2"}
    digest, count, numba = run_python(USE, PULLBACK_CACHE_DIR=str(empty_cache)).split()
    assert (digest, count, numba) == (first[0], "0", "False")


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGE = {
    "empty": lambda data: b"",
    "first line only": lambda data: data.split(b"\n")[0],
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "hash": lambda data: flip(data, 3),
    "fields": lambda data: flip(data, data.index(b'"fields": ["') + 14),
    "code": lambda data: flip(data, len(data) - 100),
    "other file": lambda data: b"\x7fELF" + data,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_files_are_compiled_again(damage, empty_cache: Path) -> None:
    compiled(VARIANT)
    [file] = empty_cache.rglob("*.o")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert compiled(VARIANT) == 1
    assert compiled(VARIANT) == 0, "the damaged file was not replaced"


def test_a_folder_in_the_place_of_a_file(empty_cache: Path) -> None:
    path = disk_cache.file_of(VARIANT)
    path.mkdir(parents=True)
    assert compiled(VARIANT) == 1
    assert compiled(VARIANT) == 1
    assert list(path.iterdir()) == []


def test_nowhere_to_keep_kernels(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a file"
    file.write_text("not a folder")
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(file / "below"))
    assert not disk_cache.is_kept()
    assert compiled(VARIANT) == 1
    assert compiled(VARIANT) == 1
    assert file.read_text() == "not a folder"


# Settings of Numba that change the code it makes, or how it is made.
SETTINGS = {
    "NUMBA_OPT": "0",
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_ENABLE_AVX": "0",
    "NUMBA_LOOP_VECTORIZE": "0",
    "NUMBA_BOUNDSCHECK": "1",
    "NUMBA_DEBUGINFO": "1",
    "NUMBA_LLVM_REFPRUNE_PASS": "0",
}
COMPILE = """
import sys
from pullback.cpu.machine_code.variants import Variant
from pullback.cpu.machine_code.disk_cache import cache_folder
from pullback.cpu.machine_code.find import code
if "assigned" in sys.argv:
    import numba
    config = numba.core.config
    config.OPT, config.CPU_NAME, config.LOOP_VECTORIZE, config.BOUNDSCHECK = config._OptLevel(0), "generic", 0, 1
    before = {name: value for name, value in vars(config).items() if name.isupper()}
    theirs = numba.core.registry.cpu_target.target_context._internal_codegen
    assert numba.njit(lambda x: x + 1)(2) == 3
for variant in (Variant("engine.threads", "lead"), Variant("conv.transpose", "transpose"), Variant("engine.roofs", "fill")):
    assert code(variant).address
if "assigned" in sys.argv:
    assert before == {name: value for name, value in vars(config).items() if name.isupper()}
    assert numba.core.registry.cpu_target.target_context._internal_codegen is theirs
    assert numba.njit(lambda x: x + 2)(2) == 4
print(cache_folder())
"""


def machine_code(file: Path) -> list[bytes]:
    """The code in a kept ELF file, where names are numbered by what else was compiled before; elsewhere all of it."""
    data = file.read_bytes().split(b"\n", 2)[2]
    if sys.platform != "linux":
        return [data]
    sections = object_files._sections(data, platform.machine())
    code = [data[part.offset : part.offset + part.size] for part in sections if part.flags & object_files._CODE]
    assert sum(map(len, code)) > 100
    return code


def test_settings_of_numba_change_no_code(tmp_path: Path) -> None:
    """They are for others: what one process keeps, all later ones load."""
    cases: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "plain": ((), {}),
        "variables": ((), SETTINGS),
        "without Numba's compiler": ((), {"NUMBA_DISABLE_JIT": "1"}),
        "assigned": (("assigned",), {}),
    }
    made = {}
    for name, (arguments, variables) in cases.items():
        folder = Path(run_python(COMPILE, *arguments, PULLBACK_CACHE_DIR=str(tmp_path / name), **variables))
        made[name] = {file.name: machine_code(file) for file in folder.iterdir()}
    assert len(made["plain"]) == 3
    assert [name for name, files in made.items() if files != made["plain"]] == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(empty_cache: Path) -> None:
    folder = disk_cache.cache_folder()
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    assert not disk_cache.is_kept()
    assert compiled(VARIANT) == 1
    assert list(folder.iterdir()) == []
    folder.chmod(0o700)


def test_a_full_disk_leaves_nothing_behind(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert compiled(VARIANT) == 1
    assert list(disk_cache.cache_folder().iterdir()) == []


def test_no_home_no_cache(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in (disk_cache.CACHE_VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert not disk_cache.is_kept()
    assert compiled(VARIANT) == 1


KEYS = """
from pullback.cpu.machine_code import keys
assert keys.__file__.startswith({folder!r})
print(keys.fingerprint(), keys.source_hash("pool.rows"), keys.source_hash("conv.direct"))
"""


def test_the_keys_follow_sources_version_and_width(tmp_path: Path) -> None:
    """A folder for versions and machine; in it, each kernel by the sources that it is compiled from."""
    copy = tmp_path / "pullback"
    shutil.copytree(Path(pb.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))

    def keys(**environment: str) -> tuple[str, str, str]:
        folder, rows, direct = run_python(KEYS.format(folder=str(tmp_path)), PYTHONPATH=str(tmp_path), **environment).split()
        return folder, rows, direct

    untouched = keys()
    assert keys() == untouched
    changed = {
        "cpu/pool/rules_kernel.py": (False, True, False),
        "cpu/pool/records.py": (False, True, False),
        "cpu/conv/direct_kernel.py": (False, False, True),
        "cpu/simd/vectors.py": (False, True, True),
        "cpu/simd/lanes.py": (False, True, True),
        "cpu/simd/linked_functions.py": (False, True, True),
        "cpu/engine/records.py": (False, True, True),
        "cpu/machine_code/compiler.py": (True, False, False),
        "cpu/machine_code/levels.py": (False, False, False),  # but what a level is
        "__init__.py": (True, False, False),
        "cpu/pool/rows.py": (False, False, False),  # a plan
        "ops/max_pool.py": (False, False, False),
    }
    for edited, expected in changed.items():
        source = copy / edited
        text = source.read_text()
        is_version = edited == "__init__.py"
        source.write_text(text.replace('__version__ = "', '__version__ = "7.') if is_version else text + "# edited\n")
        assert tuple(a != b for a, b in zip(keys(), untouched, strict=True)) == expected, edited
        source.write_text(text)
    assert keys() == untouched
    assert len({keys(PULLBACK_LEVEL=level.name)[0] for level in LEVELS}) == len(LEVELS)


def test_a_new_shape_never_compiles() -> None:
    def use(batch: int, channels: int, height: int, width: int, window: tuple[int, int], **options) -> None:
        x = reals((batch, height, width, channels))
        y = pb.max_pool(x, window, **options)
        pb.max_pool_grad(y, x, window, **options)
        pb.avg_pool_grad(pb.avg_pool(x, window, **options), x.shape, window, **options)

    with pb.backend("cpu"):
        for channels, stride, dilation in product((1, 3, 39), (1, 2, 3), (1, 2)):  # each kernel, each stride once
            use(1, channels, 9, 11, (2, 3), stride=stride, dilation=dilation, padding="same")
        use(1, 1, 2, 2, (2, 2))
        find.code(Variant("engine.threads", "follow"))  # for the first shape that is worth two threads
        before = compiler.compilations
        rng = np.random.default_rng(0)
        for _ in range(25):
            sizes = [int(size) for size in rng.integers(1, 40, 4)]
            window = (int(rng.integers(1, 5)), int(rng.integers(1, 5)))
            stride, dilation = int(rng.integers(1, 4)), int(rng.integers(1, 3))
            use(*sizes, window, stride=stride, dilation=dilation, padding="same")
    assert compiler.compilations == before


ELSEWHERE = """
import sys
from pullback.cpu.machine_code import compiler, object_files
from pullback.cpu.machine_code.variants import Variant
compiler.triple = lambda: sys.argv[1]
for variant in (Variant("conv.pack", "pack"), Variant("engine.recycling", "shelf")):
    made = compiler.compile_variant(variant)
    assert made.contents.startswith(object_files._FIRST_BYTES[sys.argv[2]]), made.contents[:4]
    for symbol in variant.symbols(made.functions):
        names = [name for name in made.contents.split(b"\\0") if name.endswith(symbol.encode())]
        print(names[0].decode().removesuffix(symbol) + "+" if names else "missing")
"""


@pytest.mark.parametrize(
    ("level", "triple", "system", "before"),
    [
        ("aarch64", "arm64-apple-darwin22.0.0", "darwin", "_"),  # Mach-O puts an underline before every name of C
        ("x86-64-v3", "x86_64-apple-darwin22.0.0", "darwin", "_"),
        ("x86-64-v3", "x86_64-pc-windows-msvc", "win32", ""),  # COFF on 64 bits does not
    ],
)
def test_kernels_compile_for_other_systems(level: str, triple: str, system: str, before: str) -> None:
    """Names as their loaders look for them: dlsym and LLVM's own add what stands before."""
    found = run_python(ELSEWHERE, triple, system, PULLBACK_LEVEL=level, PULLBACK_LINKABLE="1").split()
    assert found == [f"{before}+"] * 7
