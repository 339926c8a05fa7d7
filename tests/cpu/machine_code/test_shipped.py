"""The libraries of a wheel: used where they are what was built, from where nobody else can have put them, and for nothing else."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_calls import run_python

import pullback as pb
from pullback.cpu.engine.plan_cache import release_plans
from pullback.cpu.machine_code import compiler, find, keys, shipped
from pullback.cpu.machine_code.levels import level
from pullback.cpu.machine_code.variants import Variant
from pullback.registry import MissingCode

VARIANT = Variant("engine.threads", "lead")
TOOL = Path(__file__).parents[3] / "tools" / "build_kernels.py"
with_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner and no mode bits there")


def build_tool() -> Any:
    spec = spec_from_file_location("build_kernels", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or build_tool().linker(level().machine) is None, reason="needs a linker: pip install ziglang"
)

BUILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from build_kernels import link_kernels
from pullback.cpu.machine_code import find, warmup
from pullback.cpu.machine_code.levels import level
[task] = [task for task in warmup.tasks(["float32"]) if task.op == "avg_pool"]
variants = [*warmup.ENGINE[:3], *warmup.variants_of(task)]
for variant in warmup.missing(variants):
    find.compile_and_keep(variant)
link_kernels(variants, ["float32"], Path(sys.argv[2]) / level().name)
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like pullback/cpu/shipped, with the kernels of one op and of the thread pool."""
    folder = tmp_path_factory.mktemp("built") / "pullback" / "cpu" / "shipped"
    said = run_python(BUILD, str(TOOL.parent), str(folder), timeout=300, PULLBACK_LINKABLE="1")
    assert "kernels in" in said
    return folder


def forget() -> None:
    """As a process that has loaded nothing."""
    find._loaded.clear()
    shipped._index.cache_clear()
    shipped._library.cache_clear()
    shipped._warned.clear()
    release_plans()


@pytest.fixture
def wheel(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The level's folder in a package of this test's own."""
    folder = tmp_path / "pullback" / "cpu" / "shipped"
    shutil.copytree(built, folder)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)
    monkeypatch.setattr(shipped, "FOLDER", folder)
    monkeypatch.setattr(find, "_loaded", {})
    forget()
    yield folder / level().name
    monkeypatch.undo()
    forget()


def is_used() -> bool:
    forget()
    return shipped.find(VARIANT) is not None


def test_a_shipped_kernel_is_found_before_the_cache(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_from_disk", lambda variant: pytest.fail("the cache was asked"))
    before = compiler.compilations
    code = find.code(VARIANT)
    assert code.address != 0
    assert code.fields[0] == "job"
    functions = find.code(Variant("engine.recycling", "shelf")).functions
    assert len(set(functions.values())) == len(functions) == 6
    assert compiler.compilations == before
    assert shipped.count() > 5


def test_shipped_and_compiled_code_give_the_same_bits(wheel: Path) -> None:
    rng = np.random.default_rng(0)
    calls = [
        (rng.standard_normal((2, 9, 11, channels)).astype(np.float32), options)
        for channels in (1, 3, 40, 67)
        for options in ({"stride": 1}, {"stride": 2, "padding": "same"}, {"dilation": 2, "stride": 1})
    ]

    def answers() -> list[bytes]:
        forget()
        with pb.backend("cpu"):
            return [pb.avg_pool(x, 2, **options).tobytes() for x, options in calls]

    from_wheel = answers()
    assert {variant.module for variant in find._loaded} >= {"pool.channels", "pool.rows"}
    shutil.rmtree(wheel)
    before = dict(find._loaded)
    assert answers() == from_wheel
    assert not {code.address for code in before.values()} & {code.address for code in find._loaded.values()}


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "one bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "text": lambda data: b"no library",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_library_is_not_loaded(damage: Callable[[bytes], bytes], wheel: Path) -> None:
    library = wheel / "float32.so"
    library.write_bytes(damage(library.read_bytes()))
    with pytest.warns(RuntimeWarning, match=r"float32\.so is not the file that was built; install it again"):
        assert not is_used()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert find.code(VARIANT).address != 0, "it is compiled"


INDEXES: dict[str, Callable[[Any], Any]] = {
    "of another version": lambda index: index | {"recipe": "0" * 20},
    "without kernels": lambda index: index | {"kernels": None},
    "with numbers of no record": lambda index: index | {"kernels": dict.fromkeys(index["kernels"], 10**6)},
    "of other sources": lambda index: index | {"kernels": {f"{key}x": value for key, value in index["kernels"].items()}},
    "a list": lambda index: [index],
}


@pytest.mark.parametrize("name", INDEXES)
def test_another_index(name: str, wheel: Path) -> None:
    """What is of another version or other sources is no damage."""
    change = INDEXES[name]
    path = wheel / shipped.INDEX
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert not is_used()
        assert not is_used()
    damaged = [f"{path} is damaged" in str(warning.message) for warning in said]
    assert damaged == ([] if "other" in name else [True, True]), "is_used forgets that it has been said"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_no_index(text: str, wheel: Path) -> None:
    (wheel / shipped.INDEX).write_text(text)
    with pytest.warns(RuntimeWarning, match=r"index\.json is damaged; install it again"):
        assert not is_used()
    assert not shipped.is_there()


def test_what_is_said_once_is_said_once_even_as_an_error(wheel: Path) -> None:
    library = wheel / "float32.so"
    library.write_bytes(b"")
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="is not the file that was built"):
            shipped.find(VARIANT)
        assert shipped.find(VARIANT) is None
        assert find.code(VARIANT).address != 0


def test_an_edited_kernel_is_compiled(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_used()
    monkeypatch.setattr(keys, "source_hash", lambda module: "edited")
    assert not is_used()


@with_owners
@pytest.mark.parametrize("part", ["library", "index", "level", "folder"])
@pytest.mark.parametrize("how", ["everybody", "somebody else"])
def test_what_others_can_write_is_not_loaded(part: str, how: str, wheel: Path) -> None:
    path = {"library": wheel / "float32.so", "index": wheel / shipped.INDEX, "level": wheel, "folder": wheel.parent}[part]
    if how == "everybody":
        path.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        pytest.skip("only root can give files away")
    why = "can be written by everybody" if how == "everybody" else "belongs to user 54321"
    with pytest.warns(RuntimeWarning, match=f"{path} {why}; install it again"):
        assert not is_used()


@with_owners
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_of_the_package_may_own_its_libraries(wheel: Path) -> None:
    """Whoever installed it for all can change its Python files as well."""
    package = wheel.parents[2]
    for path in (package, *package.rglob("*")):
        os.chown(path, 54321, -1)
    assert is_used()


@with_owners
@pytest.mark.parametrize("to", ["a folder of ours", "a folder of all"])
def test_links_of_an_installer(to: str, wheel: Path, tmp_path: Path) -> None:
    """Into a store of its own: what counts is who can write there."""
    library, store = wheel / "float32.so", tmp_path / "store"
    store.mkdir(mode=0o755)
    shutil.move(library, store / "abc.so")
    library.symlink_to(store / "abc.so")
    if to == "a folder of ours":
        assert is_used()
        return
    store.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="can be written by everybody"):
        assert not is_used()


def test_a_library_that_is_exchanged_while_it_is_loaded(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an update of the package does: what was hashed is not what would be called."""
    library, load = wheel / "float32.so", ctypes.CDLL

    def exchanged(path: str) -> Any:
        copy = library.with_suffix(".new")
        copy.write_bytes(library.read_bytes())
        os.replace(copy, library)
        return load(path)

    monkeypatch.setattr(shipped.ctypes, "CDLL", exchanged)
    with pytest.warns(RuntimeWarning, match="was exchanged while it was loaded"):
        assert not is_used()


def test_without_a_compiler_what_is_not_shipped_runs_on_the_reference(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "has_compiler", lambda: False)
    pb.registry.forget_choices()
    x = np.arange(16.0, dtype=np.float32).reshape(1, 4, 4, 1)
    try:
        with pb.backend("cpu"):
            assert pb.avg_pool(x, 2).ravel().tolist() == [2.5, 4.5, 10.5, 12.5]
            with pytest.warns(RuntimeWarning, match=r"max_pool runs on the slow reference backend: .*pullback\[compiler\]"):
                assert pb.max_pool(x, 2).ravel().tolist() == [5, 7, 13, 15]
            with pb.kernel("rows"), pytest.raises(MissingCode, match="is not among those shipped"):
                pb.max_pool(x.reshape(1, 1, 4, 4), 2, layout="channels_first")
    finally:
        pb.registry.forget_choices()
