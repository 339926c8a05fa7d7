"""Whose object code is loaded, and what becomes of a file that is whole but no kernel: no crash, no hang, no code of strangers."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import stat
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cpu_calls import run_python

from pullback.cpu.engine.kernel_records import Lead
from pullback.cpu.machine_code import compiler, disk_cache, find, trust
from pullback.cpu.machine_code.object_files import is_loadable
from pullback.cpu.machine_code.variants import Variant

VARIANT = Variant("engine.threads", "lead")  # the quickest to compile

with_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner and no mode bits there")
elf_only = pytest.mark.skipif(sys.platform != "linux", reason="other formats are known by their first bytes alone")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What is kept of a kernel."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(disk_cache.CACHE_VARIABLE, str(folder))
        patch.setattr(find, "_loaded", {})
        find.code(VARIANT)
    [file] = folder.rglob("*.o")
    return file.read_bytes()


@pytest.fixture
def file(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """That kernel's file, in a cache folder of this test's own; warnings come again."""
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(find, "_loaded", {})
    monkeypatch.setattr(disk_cache, "_warned", set())
    path = disk_cache.file_of(VARIANT)
    assert disk_cache.make_folder(path.parent)
    path.write_bytes(whole)
    path.chmod(0o600)
    yield path
    assert [left.name for left in tmp_path.rglob("*.part")] == []


def compiled() -> int:
    """How many kernels a process that has loaded none compiles."""
    find._loaded.clear()
    before = compiler.compilations
    address = find.code(VARIANT).address
    assert address != 0
    return compiler.compilations - before


def parts(kept: bytes) -> tuple[dict[str, Any], bytes]:
    header, code = kept.split(b"\n", 2)[1:]
    return json.loads(header), code


def sealed(header: Any, code: bytes) -> bytes:
    """A file with the right hash, whatever is in it."""
    rest = (header if isinstance(header, bytes) else json.dumps(header).encode()) + b"\n" + code
    return hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def test_a_whole_file_is_loaded(file: Path, whole: bytes) -> None:
    assert sealed(*parts(whole)) == whole
    assert compiled() == 0


HEADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no JSON": lambda header: b"{",
    "deep JSON": lambda header: b"[" * 100_000,
    "a list": lambda header: [1],
    "nothing": lambda header: None,
    "no functions": lambda header: {**header, "functions": None},
    "a number for a function": lambda header: {**header, "functions": [7]},
    "another function": lambda header: {**header, "functions": ["x"]},
    "no fields": lambda header: {**header, "fields": None},
    "fields in a word": lambda header: {**header, "fields": "job"},
    "a field in a list": lambda header: {**header, "fields": [["job"]]},
    "a number for a field": lambda header: {**header, "fields": [1]},
    "another variant": lambda header: {**header, "variant": "engine.threads-follow-float32"},
    "no variant": lambda header: {key: value for key, value in header.items() if key != "variant"},
}


@pytest.mark.parametrize("change", HEADERS.values(), ids=HEADERS.keys())
def test_a_whole_file_with_another_header(change: Callable[[Any], Any], file: Path, whole: bytes) -> None:
    header, code = parts(whole)
    file.write_bytes(sealed(change(header), code))
    assert compiled() == 1
    assert compiled() == 0, "it was not replaced"


def with_word(code: bytes, place: int, layout: str, value: int) -> bytes:
    return code[:place] + struct.pack(layout, value) + code[place + struct.calcsize(layout) :]


CODE: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda code: b"",
    "noise": lambda code: random.Random(0).randbytes(len(code)),
    "noise behind the first bytes": lambda code: code[:16] + random.Random(0).randbytes(len(code) - 16),
    "half": lambda code: code[: len(code) // 2],
    "the header alone": lambda code: code[:64],
    "of another machine": lambda code: with_word(code, 18, "<H", 40),
    "of 32 bits": lambda code: code[:4] + b"\x01" + code[5:],
    "a program": lambda code: with_word(code, 16, "<H", 2),
    "sections outside": lambda code: with_word(code, 40, "<Q", 1 << 40),
    "too many sections": lambda code: with_word(code, 60, "<H", 60_000),
    "text": lambda code: b"int main() { return 0; }\n",
}


@elf_only
@pytest.mark.parametrize("change", CODE.values(), ids=CODE.keys())
def test_a_whole_file_with_other_code(change: Callable[[bytes], bytes], file: Path, whole: bytes) -> None:
    header, code = parts(whole)
    file.write_bytes(sealed(header, change(code)))
    assert compiled() == 1
    assert compiled() == 0, "it was not replaced"


# Every byte that LLVM reads in order to find its way is changed in turn. What is still taken for loadable must not end the process.
DAMAGE = """
import pathlib, random, sys
from pullback.cpu.engine.kernel_records import Lead
from pullback.cpu.machine_code.find import _link
import json
from pullback.cpu.machine_code.object_files import is_loadable
from pullback.cpu.machine_code.variants import ObjectCode, Variant
header, code = pathlib.Path(sys.argv[1]).read_bytes().split(b"\\n", 2)[1:]
header, chance = json.loads(header), random.Random(0)
variant = Variant("engine.threads", "lead")
symbols = variant.symbols(())
assert is_loadable(code, symbols)
taken = 0
tables = range(int.from_bytes(code[40:48], "little"), len(code))
for place in (*range(64), *tables, *chance.sample(range(len(code)), 300)):
    for bit in (1, 128) if place in tables else (1, 4, 32, 128):
        damaged = code[:place] + bytes([code[place] ^ bit]) + code[place + 1 :]
        if is_loadable(damaged, symbols):
            taken += 1
            if taken % 4 == 0:  # the rest would take a minute
                try:
                    _link(variant, ObjectCode(str(variant), (), (), damaged))
                except (RuntimeError, ValueError):
                    pass
for length in range(0, len(code), 7):
    assert not is_loadable(code[:length], symbols) or length > len(code) - 64
print(taken)
"""


@elf_only
def test_damage_of_all_kinds_ends_no_process(file: Path) -> None:
    assert int(run_python(DAMAGE, str(file), timeout=300)) > 100


def test_names_that_are_nowhere() -> None:
    """The loader would end the process over a function that it cannot find."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple().create_target_machine()
    text = "declare void @{0}()\ndefine void @f() {{\n  call void @{0}()\n  ret void\n}}"
    made = {name: target.emit_object(binding.parse_assembly(text.format(name))) for name in ("memcpy", "no_such_function")}
    assert is_loadable(made["memcpy"], ("f",))
    if sys.platform == "linux":
        assert not is_loadable(made["no_such_function"], ("f",))
        assert not is_loadable(made["memcpy"], ("memcpy",))


@with_owners
@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "device", "huge"])
def test_no_plain_file(kind: str, file: Path, tmp_path: Path, whole: bytes) -> None:
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file, 0o600)
    elif kind == "folder":
        file.mkdir()
    elif kind == "link":
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(whole)
        file.symlink_to(elsewhere)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with file.open("wb") as big:
            big.truncate(1 << 40)
    assert compiled() == 1
    assert compiled() == (1 if kind == "folder" else 0)


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file or folder belong to somebody else: really where we may, else everything does, by our being somebody else."""
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        stranger = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: stranger)


@with_owners
@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_a_folder_that_others_can_write(mode: int, file: Path) -> None:
    file.parent.chmod(mode)
    before = file.read_bytes()
    with pytest.warns(
        RuntimeWarning, match=rf"{file.parent} can be written by everybody; take that right .* PULLBACK_CACHE_DIR"
    ):
        assert compiled() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert compiled() == 1
        assert not disk_cache.is_kept()
    assert sorted(file.parent.iterdir()) == [file], "something was kept there"
    assert file.read_bytes() == before
    file.parent.chmod(0o700)
    assert compiled() == 0


@with_owners
def test_a_parent_that_others_can_write(file: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match=f"{tmp_path} can be written by everybody"):
        assert compiled() == 1
    tmp_path.chmod(0o1777)  # as /tmp is: others can add to it, not exchange what is ours
    assert compiled() == 0
    assert disk_cache.is_kept()
    tmp_path.chmod(0o700)


@with_owners
@pytest.mark.parametrize("whose", ["cache", "fingerprint"])
def test_a_folder_of_somebody_else(whose: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(file.parent if whose == "fingerprint" else file.parent.parent, monkeypatch)
    with pytest.warns(RuntimeWarning, match=r"belongs to user \d+; take that right"):
        assert compiled() == 1
    assert not disk_cache.is_kept()


@with_owners
def test_a_group_that_others_are_in(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.parent.chmod(0o770)
    monkeypatch.setattr(trust, "_is_own_group", lambda number: False)
    with pytest.warns(RuntimeWarning, match=r"can be written by group \d+"):
        assert compiled() == 1
    monkeypatch.setattr(trust, "_is_own_group", lambda number: True)
    assert compiled() == 0


@with_owners
def test_which_group_is_that_of_one_user_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    me = pwd.struct_passwd(("ann", "x", 1000, 1000, "", "/home/ann", "/bin/sh"))
    groups = {1000: ("ann", "x", 1000, []), 100: ("users", "x", 100, [])}
    monkeypatch.setattr(pwd, "getpwuid", lambda number: me)
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group(groups[number]))
    assert trust._is_own_group(1000)
    assert not trust._is_own_group(100)
    assert not trust._is_own_group(7)
    groups[1000] = ("ann", "x", 1000, ["ann", "bob"])
    assert not trust._is_own_group(1000)


@with_owners
@pytest.mark.parametrize("change", ["mode", "owner"])
def test_a_file_that_others_can_have_written(change: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of ours: it is replaced."""
    if change == "mode":
        file.chmod(0o606)
    elif os.geteuid() == 0:
        give_away(file, monkeypatch)
    else:
        seen = trust.who_else
        plain = lambda found, besides=None: "belongs to user 7" if stat.S_ISREG(found.st_mode) else seen(found)  # noqa: E731
        monkeypatch.setattr(trust, "who_else", plain)
    assert compiled() == 1
    monkeypatch.undo()
    found = file.stat()
    assert found.st_uid == os.geteuid()
    assert stat.S_IMODE(found.st_mode) == 0o600


@with_owners
def test_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert disk_cache.make_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3


def test_a_link_on_the_way_is_followed(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Homes and caches are often links; what counts is where they lead."""
    shutil.move(tmp_path / "cache", tmp_path / "real")
    (tmp_path / "cache").symlink_to(tmp_path / "real")
    assert compiled() == 0


def test_an_interrupted_write_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: str, target: Path) -> None:
        raise KeyboardInterrupt

    file.unlink()
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiled()
    assert list(file.parent.iterdir()) == []


def test_fields_are_as_they_were_kept(whole: bytes, file: Path) -> None:
    compiled()
    assert list(find.code(VARIANT).fields) == parts(whole)[0]["fields"] == [name for name, _ in Lead.FIELDS]


@pytest.mark.parametrize(
    ("platform", "variables", "place"),
    [
        ("linux", {}, "home/.cache/pullback"),
        ("linux", {"XDG_CACHE_HOME": "elsewhere"}, "elsewhere/pullback"),
        ("darwin", {"XDG_CACHE_HOME": "elsewhere"}, "home/Library/Caches/pullback"),
        ("win32", {"LOCALAPPDATA": "profile"}, "profile/pullback/cache"),
        ("win32", {}, "home/pullback/cache"),
        ("win32", {"PULLBACK_CACHE_DIR": "asked"}, "asked"),
    ],
)
def test_where_each_system_keeps_its_caches(
    platform: str, variables: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (disk_cache.CACHE_VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    monkeypatch.setattr(disk_cache.sys, "platform", platform)
    assert disk_cache.cache_directory() == Path(place)


def test_without_owners_and_mode_bits_files_are_read_all_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, whose rights are others."""
    file.parent.chmod(0o777)
    monkeypatch.delattr(os, "geteuid", raising=False)
    monkeypatch.delattr(os, "O_NOFOLLOW", raising=False)
    monkeypatch.delattr(os, "O_NONBLOCK", raising=False)
    assert compiled() == 0
    monkeypatch.undo()
    file.parent.chmod(0o700)
