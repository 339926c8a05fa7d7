"""The command as a whole: what its surroundings may do to it. Each sub-command has tests of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pullback.cli import main
from pullback.cli.surroundings import run_guarded

COMMAND = [sys.executable, "-m", "pullback"]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="pipes, signals and devices are others there")


def run(*arguments: str, stdout: Any = subprocess.PIPE, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        env=os.environ | variables,
    )  # fmt: skip


@POSIX
@pytest.mark.parametrize("arguments", [("bench", "--list"), ("info",)])
def test_a_reader_that_has_seen_enough_is_no_error(arguments: tuple[str, ...]) -> None:
    """As `pullback bench --list | head -1`: no traceback, and the status that a shell gives to SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = run(*arguments, stdout=writing)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        ended = run("info", stdout=full)
    assert (ended.returncode, ended.stderr) == (1, "pullback: No space left on device\n")


@POSIX
def test_closed_output_is_one_sentence() -> None:
    ended = subprocess.run(
        ["sh", "-c", f"{' '.join(COMMAND)} info >&-"], stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, "pullback: the standard output is closed\n")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PULLBACK_LEVEL", "x86-64-v9"),
        ("PULLBACK_NUM_THREADS", "x"),
        ("PULLBACK_NUM_THREADS", "0"),
        ("PULLBACK_BACKEND", "foo"),
        ("PULLBACK_PRECISION", "vague"),
    ],
)
def test_a_variable_that_means_nothing_is_one_sentence(name: str, value: str) -> None:
    for arguments in (("info",), ("bench", "--list"), ("check",), ("warmup",)):
        ended = run(*arguments, **{name: value})
        assert ended.returncode == 2
        assert ended.stdout == ""
        [sentence] = ended.stderr.splitlines()
        assert sentence.startswith(f"pullback: {name}")
        assert value in sentence


@POSIX
@pytest.mark.parametrize("name", ["a file", "a file/below", os.fsdecode(b"\xff\xfe")])
def test_a_cache_folder_that_is_none(tmp_path: Path, name: str) -> None:
    """The library does without; the command that is there to fill it says so."""
    (tmp_path / "a file").touch()
    folder = str(tmp_path / name)
    ended = run("info", PULLBACK_CACHE_DIR=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    if "file" in name:
        assert "nothing new can be kept there" in ended.stdout
        ended = run("warmup", PULLBACK_CACHE_DIR=folder)
        assert ended.returncode == 1
        assert ended.stderr.startswith("pullback warmup: nothing can be kept in ")
        assert ended.stderr.count("\n") == 1


def test_an_interrupt_and_a_failing_file_are_one_sentence_each(capsys: pytest.CaptureFixture[str]) -> None:
    def raising(error: BaseException) -> Callable[[], int]:
        def command() -> int:
            raise error

        return command

    assert run_guarded(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "pullback: interrupted\n"
    assert run_guarded(raising(PermissionError(13, "Permission denied", "a.json"))) == 1
    assert capsys.readouterr().err == "pullback: Permission denied: a.json\n"
    assert run_guarded(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):  # a defect of ours is shown whole
        run_guarded(raising(ZeroDivisionError()))
    with pytest.raises(SystemExit) as ended:
        main(["--no-such-option"])
    assert ended.value.code == 2


@POSIX
def test_an_interrupt_that_is_swallowed_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Exceptions in a callback out of LLVM are ignored: this command ignores one as well."""
    heard = []

    def command() -> int:
        for _ in range(2):
            try:
                if not heard:
                    os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)
            except KeyboardInterrupt:
                heard.append(True)
                if len(heard) == 2:
                    raise
        return 0

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM), sys.unraisablehook
    assert run_guarded(command) == 130
    assert len(heard) == 2
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM), sys.unraisablehook)
    assert capsys.readouterr().err == "pullback: interrupted\n"


def group_members(group: int) -> list[int]:
    """The processes of a group that still run; one that only waits to be reaped does not."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(") ")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


@pytest.mark.skipif(sys.platform != "linux", reason="the processes of a group are read from Linux's /proc")
@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["the group, as a terminal does", "the command alone"])
def test_ctrl_c_ends_a_warmup_in_several_processes(tmp_path: Path, send: Callable[[int, int], None]) -> None:
    process = subprocess.Popen(
        [*COMMAND, "warmup", "--jobs", "2", "--dtype", "float32"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | {"PULLBACK_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    try:
        assert wait_until(lambda: any(tmp_path.rglob("*.o"))), "nothing was compiled"
        assert len(group_members(process.pid)) >= 3
        send(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert wait_until(lambda: not group_members(process.pid)), "a child goes on"
    finally:
        for member in group_members(process.pid):
            os.kill(member, signal.SIGKILL)
    assert process.returncode == 130
    assert out == ""
    assert err.strip() == "pullback: interrupted"
