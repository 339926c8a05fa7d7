"""The registry: order of kernels, refusals, asking by name, contexts and threads. Plug-ins: test_plugins.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from cpu_calls import run_python

import pullback as pb
from pullback.registry import REFERENCE, current_backend, default_backend, dispatch, kernels_for
from pullback.settings import blocks_in_force, current_precision, under

X = np.arange(8.0).reshape(1, 8, 1)


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


def test_names_with_their_backend_as_explanations_print_them(register: Registrar) -> None:
    register("one", "made_up", answer=1)
    register("two", "made_up", answer=2)
    with pb.backend("made_up"):
        with pb.kernel("made_up/two"):
            assert answered() == 2
            assert str(pb.explain("avg_pool", X, 2)).splitlines()[1:] == ["  runs      made_up/two"]
        with pb.kernel("reference/taps"):  # which stands last in every backend's list
            assert pb.avg_pool(X, 2).ravel().tolist() == [0.5, 2.5, 4.5, 6.5]
        with (
            pb.kernel("made_up/three"),
            pytest.raises(pb.KernelError, match=r"no kernel 'made_up/three' .*; there are \['one'"),
        ):
            pb.avg_pool(X, 2)
    here = "'made_up/two' is not on backend 'reference', which is in force; use pullback.backend\\('made_up'\\) too"
    for call in (pb.avg_pool, lambda *args: pb.explain("avg_pool", *args)):
        with pb.backend(REFERENCE), pb.kernel("made_up/two"), pytest.raises(pb.KernelError, match=here):
            call(X, 2)


def test_an_older_name_with_its_backend() -> None:
    x, w = np.ones((1, 8, 4, 4), np.float32), np.ones((8, 1, 3, 3), np.float32)
    with pb.backend("cpu"), pb.kernel("cpu/depthwise"):
        verdicts = pb.explain("conv", x, w, groups=8, layout="channels_first").verdicts
    names = ["slide", "flat", "slide_cells", "group_transposed", "group_planes", "group_cells"]
    assert [v.kernel.label for v in verdicts] == [f"cpu/{name}" for name in names]


def test_one_thread_may_import_the_kernels_while_another_asks_for_them() -> None:
    """Neither waits for what the other holds."""
    source = """
import threading
from pullback.registry import kernels_for
workers = [
    threading.Thread(target=lambda: __import__("pullback.cpu.kernel_list"), daemon=True),
    threading.Thread(target=lambda: kernels_for("conv", "cpu"), daemon=True),
]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join(20)
print([worker.is_alive() for worker in workers])
"""
    assert run_python(source).strip() == "[False, False]"
