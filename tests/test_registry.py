"""The registry: order of kernels, refusals, asking by name, contexts and threads, and plug-ins found by entry point."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.registry import REFERENCE, current_backend, default_backend, dispatch, kernels_for
from pullback.settings import blocks_in_force, current_precision, under

X = np.arange(8.0).reshape(1, 8, 1)
PLUGIN = Path(__file__).parent / "plugin_package"


def constant(answer: float) -> Any:
    return lambda problem, x: np.full(problem.output_shape, answer, problem.dtype)


def answered() -> float:
    """What a kernel of constants answers with."""
    (value,) = set(pb.avg_pool(X, 2).ravel().tolist())
    return float(value)


class Registrar:
    """Registers kernels that answer with a constant, and takes them off again."""

    def __init__(self) -> None:
        self.clean = ExitStack()

    def __call__(
        self, name: str, backend: str, *, answer: float = 0.0, reason: str | None = None, loses: str | None = None, **order: Any
    ) -> None:
        if loses is not None:
            order["pays"] = lambda _: loses
        pb.register_kernel("avg_pool", backend, name, lambda _: reason, constant(answer), **order)
        self.clean.callback(pb.unregister_kernel, "avg_pool", backend, name)


@pytest.fixture
def register() -> Iterator[Registrar]:
    before = {b: kernels_for("avg_pool", b) for b in pb.backends()}
    registrar = Registrar()
    with registrar.clean:
        yield registrar
    assert {b: kernels_for("avg_pool", b) for b in before} == before


def names(backend: str) -> list[str]:
    return [k.name for k in kernels_for("avg_pool", backend)]


def test_kernels_are_tried_in_order_of_registration(register: Registrar) -> None:
    register("one", "made_up", answer=1)
    register("two", "made_up", answer=2)
    register("zero", "made_up", answer=0, before="one")
    register("middle", "made_up", answer=1.5, before="two")
    assert names("made_up") == ["zero", "one", "middle", "two", *names(REFERENCE)]
    with pb.backend("made_up"):
        assert answered() == 0


def test_the_first_kernel_that_accepts_runs(register: Registrar) -> None:
    register("picky", "made_up", answer=1, reason="it is Tuesday")
    register("easy", "made_up", answer=2)
    with pb.backend("made_up"):
        assert answered() == 2
        explanation = pb.explain("avg_pool", X, 2)
    assert [(v.kernel.name, v.reason) for v in explanation.verdicts][:2] == [("picky", "it is Tuesday"), ("easy", None)]
    assert explanation.chosen is not None
    assert explanation.chosen.name == "easy"
    assert "refused   made_up/picky: it is Tuesday" in str(explanation)


def test_a_kernel_that_does_not_pay_runs_only_when_asked_for(register: Registrar) -> None:
    register("cannot", "made_up", answer=1, reason="it is Tuesday", loses="never said of what it cannot do")
    register("slow", "made_up", answer=2, loses="three times the work")
    register("quick", "made_up", answer=3)
    with pb.backend("made_up"):
        assert answered() == 3
        explanation = pb.explain("avg_pool", X, 2)
        assert [(v.cannot, v.loses, v.reason) for v in explanation.verdicts[:3]] == [
            ("it is Tuesday", None, "it is Tuesday"),
            (None, "three times the work", "three times the work"),
            (None, None, None),
        ]
        assert str(explanation).splitlines()[1:4] == [
            "  refused   made_up/cannot: it is Tuesday",
            "  slower    made_up/slow: three times the work",
            "  runs      made_up/quick",
        ]
        with pb.kernel("slow"):
            assert answered() == 2
            named = pb.explain("avg_pool", X, 2)
            assert named.chosen is not None
            assert named.chosen.name == "slow"
            assert str(named).splitlines()[1:] == ["  runs      made_up/slow, asked for by name; slower: three times the work"]
        with pb.kernel("cannot"), pytest.raises(pb.KernelError, match="made_up/cannot: it is Tuesday"):
            pb.avg_pool(X, 2)


def test_a_kernel_by_name_may_have_others_do_its_work(register: Registrar) -> None:
    """The name speaks of the op that was called, not of what its kernel calls in turn, by an op or by dispatch."""
    by_op, by_dispatch = (
        lambda problem, x: pb.max_pool(x, 2) + pb.explain("max_pool", x, 2).by_name,
        lambda problem, x: dispatch(pb.explain("max_pool", x, 2).problem, x),
    )
    for name, run in (("by op", by_op), ("by dispatch", by_dispatch)):
        pb.register_kernel("avg_pool", "made_up", name, lambda _: None, run)
        register.clean.callback(pb.unregister_kernel, "avg_pool", "made_up", name)
        with pb.backend("made_up"), pb.kernel(name):
            assert pb.avg_pool(X, 2).ravel().tolist() == [1, 3, 5, 7]
            assert pb.explain("avg_pool", X, 2).by_name


def test_the_reference_stands_last_in_a_new_backend(register: Registrar) -> None:
    register("picky", "made_up", reason="not today")
    with pb.backend("made_up"):
        assert pb.avg_pool(X, 2).ravel().tolist() == [0.5, 2.5, 4.5, 6.5]
        assert pb.max_pool(X, 2).ravel().tolist() == [1, 3, 5, 7]  # an op the backend has no kernel for
    assert kernels_for("avg_pool", "made_up")[1:] == kernels_for("avg_pool", REFERENCE)


def test_a_name_is_taken_once(register: Registrar) -> None:
    register("one", "made_up")
    with pytest.raises(ValueError, match="avg_pool already has a kernel 'one' on backend 'made_up'"):
        register("one", "made_up")
    register("one", "made_up_too")
    assert names("made_up").count("one") == 1


def test_before_must_exist(register: Registrar) -> None:
    with pytest.raises(ValueError, match="no kernel 'nobody' for avg_pool on backend 'made_up'"):
        register("one", "made_up", before="nobody")
    assert "one" not in names("made_up")


def test_a_failed_registration_makes_no_backend() -> None:
    with pytest.raises(ValueError, match="no kernel 'nobody'"):
        pb.register_kernel("avg_pool", "never_made", "one", lambda _: None, lambda *_: None, before="nobody")
    assert "never_made" not in pb.backends()


def test_unregister() -> None:
    pb.register_kernel("avg_pool", "short_lived", "one", lambda _: None, lambda *_: None)
    assert "short_lived" in pb.backends()
    pb.unregister_kernel("avg_pool", "short_lived", "one")
    assert names("short_lived") == names(REFERENCE)
    assert "short_lived" not in pb.backends()
    with pytest.raises(KeyError, match="no kernel 'one' for avg_pool on backend 'short_lived'"):
        pb.unregister_kernel("avg_pool", "short_lived", "one")


def test_a_kernel_asked_for_by_name_never_falls_back(register: Registrar) -> None:
    register("picky", "made_up", reason="too early")
    with pb.backend("made_up"), pb.kernel("picky"):
        with pytest.raises(pb.KernelError, match="made_up/picky: too early"):
            pb.avg_pool(X, 2)
        assert pb.explain("avg_pool", X, 2).chosen is None
        assert "no kernel accepts this problem" in str(pb.explain("avg_pool", X, 2))
        with pytest.raises(pb.KernelError, match="max_pool: no kernel 'picky' on backend 'made_up'; there are"):
            pb.max_pool(X, 2)
    with pb.kernel("no_such_kernel"), pytest.raises(pb.KernelError, match="no_such_kernel"):
        pb.avg_pool(X, 2)


def test_a_kernel_by_name_passes_those_before_it(register: Registrar) -> None:
    register("one", "made_up", answer=1)
    register("two", "made_up", answer=2)
    with pb.backend("made_up"), pb.kernel("two"):
        assert answered() == 2
        assert [v.kernel.name for v in pb.explain("avg_pool", X, 2).verdicts] == ["two"]


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match=r"backend: unknown backend 'abacus'; there are .*reference"), pb.backend("abacus"):
        pass
    assert current_backend() == default_backend()


def test_contexts_nest_and_end(register: Registrar) -> None:
    register("one", "made_up", answer=1)
    outside = current_backend()
    with pb.backend("made_up"):
        with pb.backend(REFERENCE):
            assert current_backend() == REFERENCE
            assert pb.avg_pool(X, 2).size == 4
        assert current_backend() == "made_up"
        with pb.kernel("taps"), pb.kernel("one"):
            assert answered() == 1
        with pytest.raises(RuntimeError, match="on purpose"), pb.backend(REFERENCE):
            raise RuntimeError("on purpose")
        assert current_backend() == "made_up"
    assert current_backend() == outside


def test_threads_do_not_share_contexts(register: Registrar) -> None:
    register("one", "made_up", answer=1)
    inside, seen = threading.Barrier(2, timeout=30), {}

    def work(backend: str) -> None:
        with pb.backend(backend):
            inside.wait()
            seen[backend] = (current_backend(), pb.avg_pool(X, 2).ravel().tolist())
            inside.wait()

    workers = [threading.Thread(target=work, args=(backend,)) for backend in ("made_up", REFERENCE)]
    with pb.backend("made_up"):
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert seen == {"made_up": ("made_up", [1] * 4), REFERENCE: (REFERENCE, [0.5, 2.5, 4.5, 6.5])}


def run_python(code: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    inherited = [entry for entry in [os.environ.get("PYTHONPATH")] if entry]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), *inherited])}
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_blocks_can_be_taken_to_another_thread() -> None:
    with pb.backend(REFERENCE), pb.threads(3), pb.precision("exact"):
        blocks = blocks_in_force()
    seen: list[Any] = []

    def work() -> None:
        for taken in (blocks, ()):
            with under(taken):
                seen.append((current_backend(), pb.get_num_threads(), current_precision()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(REFERENCE, 3, "exact"), (default_backend(), pb.get_num_threads(), current_precision())]
    assert blocks_in_force() == ()


def test_a_kernel_may_be_registered_before_the_first_call(tmp_path: Path) -> None:
    """The built-in kernels must be on their lists already, whether or not an op has run before."""
    code = """
import numpy as np, pullback as pb
pb.register_kernel("avg_pool", "reference", "last", lambda problem: None, lambda problem, x: None)
pb.register_kernel("avg_pool", "reference", "first", lambda problem: "no", lambda problem, x: None, before="taps")
print([k.name for k in pb.registry.kernels_for("avg_pool", "reference")])
"""
    result = run_python(code, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "['first', 'taps', 'last']"


USE_THE_PLUGIN = """
import numpy as np, pullback as pb
with pb.backend("cpu"):
    names = [k.name for k in pb.registry.kernels_for("avg_pool", "cpu")]
    assert names[names.index("whole_mean") + 1] == "whole"
x = np.arange(12.0).reshape(1, 4, 3)
with pb.backend("reference"):
    explanation = pb.explain("avg_pool", x, 4)
    print(explanation)
    assert explanation.chosen.name == "whole_mean", explanation
    assert pb.avg_pool(x, 4).tolist() == [[[4.5, 5.5, 6.5]]]
    refused = pb.explain("avg_pool", x, 2)
    assert refused.chosen.name == "taps" and "window (2,) is not the whole input (4,)" in str(refused)
    assert pb.avg_pool(x, 2).shape == (1, 2, 3)
    with pb.kernel("whole_mean"):
        assert pb.avg_pool(x, 4).tolist() == [[[4.5, 5.5, 6.5]]]
        try:
            pb.avg_pool(x, 2)
        except pb.KernelError as error:
            print(error)
        else:
            raise SystemExit("a refused kernel ran")
"""


@pytest.fixture(scope="session")
def installed_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(PLUGIN, folder / "source")  # setuptools builds inside the tree it is given
    target = folder / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    pip = subprocess.run([*install, "--target", target, source], capture_output=True, text=True, timeout=300, check=False)
    assert pip.returncode == 0, pip.stderr
    return target


@pytest.mark.parametrize(
    "first", ["pullback", "pullback.cpu", "pullback.cpu.machine_code.warmup", "pullback.reference", "pullback.tfjs"]
)
def test_an_installed_plugin_is_found_and_used(installed_plugin: Path, first: str) -> None:
    """Whichever module of the package is imported first."""
    result = run_python(f"import {first}\n{USE_THE_PLUGIN}", installed_plugin, "-W", "error")
    assert result.returncode == 0, result.stderr
    assert "runs      reference/whole_mean" in result.stdout
    assert "reference/whole_mean: window (2,) is not the whole input (4,)" in result.stdout


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        ("def register(): raise ZeroDivisionError('broken on purpose')", "broken on purpose"),
        ("import a_module_that_is_not_there", "a_module_that_is_not_there"),
        ("register = 3", "not callable"),
    ],
)
def test_a_broken_plugin_is_named_and_passed_over(tmp_path: Path, module: str, complaint: str) -> None:
    info = tmp_path / "broken_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pullback.kernels]\nbad_apple = broken_plugin:register\n")
    (tmp_path / "broken_plugin.py").write_text(module + "\n")
    code = """
import warnings, numpy as np, pullback as pb
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    y = pb.max_pool(np.arange(4.0).reshape(1, 4, 1), 2)
assert y.ravel().tolist() == [1, 3]
[warning] = [w for w in caught if w.category is RuntimeWarning]
print(warning.message)
"""
    result = run_python(code, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "'bad_apple' (broken_plugin:register)" in result.stdout
    assert complaint in result.stdout
