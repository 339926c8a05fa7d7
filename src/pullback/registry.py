"""The kernel registry: one ordered list per (op, backend), fastest first, each refusal with its reason.

A kernel is `can(problem)`, None or why it cannot run it, `pays(problem)`, None or why another would be quicker, and
`run(problem, *arrays)`. Dispatch takes the first kernel that can and pays; the reference kernels stand last in every backend's
list. A kernel asked for by name runs whatever it can, whether or not it pays, and no other takes its place.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pullback.forking import REGISTRY, lock_free_in_children
from pullback.problem import AnyProblem
from pullback.settings import block_setting, current_precision, during, environment

Accepts = Callable[[Any], str | None]
Run = Callable[..., Any]

REFERENCE = "reference"
ENTRY_POINT_GROUP = "pullback.kernels"

CPU = "cpu"

# Backends shipped with the package: importing the module registers its kernels.
BUILTIN_BACKENDS = {REFERENCE: "pullback.reference", CPU: "pullback.cpu.kernel_list"}
BACKEND_VARIABLE = "PULLBACK_BACKEND"


class KernelError(RuntimeError):
    """No kernel can run the problem under the backend or the kernel name that was asked for."""


class MissingCode(KernelError):  # noqa: N818 (what it says)
    """There is no machine code for this kernel on this CPU, and nothing to compile it with."""


@dataclass(frozen=True)
class Kernel:
    """A registered kernel.

    `error`: what its results err by beyond a plain sum's rounding, by norm, in units of that rounding. `note`: what it does
    otherwise for some data, which cannot be seen from a problem. `aliases`: older names, or names of several kernels together.
    """

    op: str
    backend: str
    name: str
    can: Accepts
    run: Run
    pays: Accepts | None = None
    error: float = 0.0
    note: str = ""
    aliases: tuple[str, ...] = ()

    def is_named(self, name: str) -> bool:
        return name == self.name or name in self.aliases

    def verdict(self, problem: AnyProblem) -> Verdict:
        cannot = self.can(problem)
        loses = None if cannot is not None or self.pays is None else self.pays(problem)
        return Verdict(self, cannot, loses)

    def relative_error(self, dtype: Any) -> float:
        """`error` as a number, for results of this type; half-precision results are summed in float32."""
        return self.error * (2.0**-52 if dtype.name == "float64" else 2.0**-23)


@dataclass(frozen=True)
class Verdict:
    """What a kernel said of a problem: why it cannot run it, or if it can, why another would be quicker."""

    kernel: Kernel
    cannot: str | None
    loses: str | None

    @property
    def reason(self) -> str | None:
        """Why dispatch passes the kernel over; None where it does not."""
        return self.loses if self.cannot is None else self.cannot


@dataclass(frozen=True)
class Explanation:
    """Which kernel would run a problem and why each one before it would not; printable. `by_name`: a kernel was asked for."""

    problem: AnyProblem
    backend: str
    verdicts: tuple[Verdict, ...]
    by_name: bool = False

    @property
    def chosen(self) -> Kernel | None:
        return next((v.kernel for v in _by_preference(self.verdicts, self.by_name)), None)

    def __str__(self) -> str:
        p, chosen = self.problem, self.chosen
        lines = [f"{p.op} {p.input_shape} -> {p.output_shape} {p.dtype.name} {p.layout}, backend {self.backend!r}"]
        for verdict in self.verdicts:
            label = f"{verdict.kernel.backend}/{verdict.kernel.name}"
            error = verdict.kernel.relative_error(p.dtype)
            if error:
                label += f' (relative error up to about {error:.0e}; not under precision "exact")'
            if verdict.cannot is not None:
                lines.append(f"  refused   {label}: {verdict.cannot}")
            elif verdict.kernel is chosen:
                slower = f", asked for by name; slower: {verdict.loses}" if verdict.loses is not None else ""
                lines.append(f"  runs      {label}{slower}")
                if verdict.kernel.note:
                    lines.append(f"            {verdict.kernel.note}")
            elif verdict.loses is not None:
                lines.append(f"  slower    {label}: {verdict.loses}")
            else:
                lines.append(f"  available {label}")
        if chosen is None:
            lines.append("  no kernel accepts this problem")
        return "\n".join(lines)


def _by_preference(verdicts: Iterable[Verdict], by_name: bool) -> Iterator[Verdict]:
    """Those that may run, as they are preferred: in order those that pay; asked for by name, then those that merely can."""
    able: list[Verdict] = []
    for verdict in verdicts:
        if verdict.reason is None:
            yield verdict
        elif by_name and verdict.cannot is None:
            able.append(verdict)
    yield from able


_kernels: dict[tuple[str, str], list[Kernel]] = {}
_loading = lock_free_in_children(REGISTRY)  # held while backends and plug-ins are imported, which ask for the other
_lock = lock_free_in_children(REGISTRY)  # held for moments only: whoever imports a backend needs it
_loaded = False
_changes = 0  # grows with every change of the lists
_backend: ContextVar[str | None] = block_setting("pullback_backend")
_kernel_name: ContextVar[str | None] = block_setting("pullback_kernel")


def register_kernel(
    op: str,
    backend: str,
    name: str,
    accepts: Accepts,
    run: Run,
    *,
    before: str | None = None,
    error: float = 0.0,
    pays: Accepts | None = None,
) -> Kernel:
    """Add a kernel to the end of the list of (op, backend), or in front of the kernel named `before`.

    `accepts(problem)` returns None or the reason why the kernel cannot run a problem; `pays(problem)`, asked of problems that it
    can run, None or the reason why another kernel would be quicker. `run(problem, *arrays)` gets validated arrays (any strides,
    possibly read-only) and returns new ones. A kernel with an `error` (see Kernel) must refuse under precision "exact". A name
    already taken for this op and backend is a ValueError.
    """
    _load()
    return add_kernel(op, backend, name, accepts, run, before=before, error=error, pays=pays)


def add_kernel(
    op: str,
    backend: str,
    name: str,
    can: Accepts,
    run: Run,
    *,
    before: str | None = None,
    error: float = 0.0,
    pays: Accepts | None = None,
    note: str = "",
    aliases: tuple[str, ...] = (),
) -> Kernel:
    """`register_kernel` for the backends of this package, whoever imports them first.

    It loads nothing: a plug-in may want to stand before a kernel of a backend that is only half imported.
    """
    global _changes
    kernel = Kernel(op, backend, name, can, run, pays, error, note, aliases)
    with _lock:
        kernels = _kernels.get((op, backend), [])
        names = [k.name for k in kernels]
        if name in names:
            raise ValueError(f"register_kernel: {op} already has a kernel {name!r} on backend {backend!r}")
        if before is not None and before not in names:
            raise ValueError(f"register_kernel: no kernel {before!r} for {op} on backend {backend!r}; there are {names}")
        kernels.insert(names.index(before) if before is not None else len(kernels), kernel)
        _kernels[op, backend] = kernels
        _changes += 1
    return kernel


def unregister_kernel(op: str, backend: str, name: str) -> None:
    """Take a kernel off its list; KeyError if it is not there."""
    global _changes
    _load()
    with _lock:
        kernels = _kernels.get((op, backend), [])
        for kernel in kernels:
            if kernel.name == name:
                kernels.remove(kernel)
                _changes += 1
                return
    raise KeyError(f"no kernel {name!r} for {op} on backend {backend!r}")


def _load() -> None:
    """Register the built-in backends and the installed plug-ins, once, at first use."""
    global _loaded
    with _loading:
        if _loaded:
            return
        before, imported = {key: list(kernels) for key, kernels in _kernels.items()}, set(sys.modules)
        _loaded = True  # before the imports: plug-ins register kernels, and so come back here
        try:
            for name, module in BUILTIN_BACKENDS.items():
                if why_unavailable(name) is None:
                    import_module(module)
            for point in entry_points(group=ENTRY_POINT_GROUP):
                _load_plugin(point)
        except Warning:  # turned into an error by the caller
            raise
        except BaseException:  # Ctrl-C: the next call begins again
            _kernels.clear()
            _kernels.update(before)
            for module in set(BUILTIN_BACKENDS.values()) - imported:
                sys.modules.pop(module, None)
            _loaded = False
            raise


def _load_plugin(point: EntryPoint) -> None:
    try:
        point.load()()
    except Exception as error:  # a broken plug-in must not take the library down with it
        warnings.warn(
            f"the kernel plug-in {point.name!r} ({point.value}) could not be loaded: {error!r}", RuntimeWarning, stacklevel=5
        )


def backends() -> tuple[str, ...]:
    """Names of all backends that have kernels."""
    _load()
    with _lock:
        return tuple(sorted({backend for (_, backend), kernels in _kernels.items() if kernels}))


def kernels_for(op: str, backend: str) -> tuple[Kernel, ...]:
    """The kernels tried for an op on a backend, in order: its own, then the reference."""
    _load()
    with _lock:
        own = _kernels.get((op, backend), [])
        rest = [] if backend == REFERENCE else _kernels.get((op, REFERENCE), [])
        return (*own, *rest)


def current_backend() -> str:
    """The backend in force: that of the innermost `with backend(...)`, else the default."""
    return _backend.get() or default_backend()


@cache
def why_unavailable(name: str) -> str | None:
    """Why a built-in backend cannot run here, in one sentence; None if it can. Imports nothing heavy."""
    if name != CPU:
        return None
    from pullback.cpu.machine_code.find import why_unavailable

    why = why_unavailable()
    return None if why is None else f"backend {name!r}: {why}"


_told: set[str] = set()


def _warn_of_slowness() -> None:
    """Say once that the fast kernels are not there; who has chosen a backend knows."""
    why = why_unavailable(CPU)
    if why is not None and why not in _told:
        _told.add(why)
        warnings.warn(f"all ops run on the slow {REFERENCE} backend ({why})", RuntimeWarning, stacklevel=6)


@cache
def _may_lack_code() -> bool:
    """Whether kernels may find no machine code: where nothing compiles what is not shipped."""
    from pullback.cpu.machine_code.find import has_compiler

    return not has_compiler()


def _or_reference(run: Run) -> Run:
    """A kernel whose place the reference takes, with a warning, where it has no machine code."""

    @wraps(run)
    def with_reference(problem: AnyProblem, *arrays: Any) -> Any:
        try:
            return run(problem, *arrays)
        except MissingCode as error:
            warnings.warn(f"{problem.op} runs on the slow {REFERENCE} backend: {error}", RuntimeWarning, stacklevel=4)
            with during(_backend, REFERENCE):
                return dispatch(problem, *arrays)

    return with_reference


def default_backend() -> str:
    """The backend named by $PULLBACK_BACKEND, else cpu where its kernels are shipped or can be compiled, else the reference."""
    asked = environment(BACKEND_VARIABLE)
    if asked:
        _check_backend(BACKEND_VARIABLE, asked)
        return asked
    return CPU if why_unavailable(CPU) is None else REFERENCE


def _check_backend(who: str, name: str) -> None:
    known = backends()
    if name not in known:
        why = why_unavailable(name) if name in BUILTIN_BACKENDS else None
        raise ValueError(f"{who}: unknown backend {name!r}; there are {', '.join(known)}" + (f" ({why})" if why else ""))


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Run the ops inside the block on this backend."""
    _check_backend("backend", name)
    with during(_backend, name):
        yield


@contextmanager
def kernel(name: str) -> Iterator[None]:
    """Run the ops inside the block on the kernel of this name and no other: KernelError where it cannot."""
    with during(_kernel_name, name):
        yield


def explain_problem(problem: AnyProblem) -> Explanation:
    """Ask the kernels that may run a problem, in order."""
    return Explanation(problem, current_backend(), tuple(_verdicts(problem)), _kernel_name.get() is not None)


def _verdicts(problem: AnyProblem) -> Iterator[Verdict]:
    candidates = kernels_for(problem.op, current_backend())
    wanted = _kernel_name.get()
    if wanted is not None:
        named = tuple(k for k in candidates if k.is_named(wanted))
        if not named:
            raise KernelError(
                f"{problem.op}: no kernel {wanted!r} on backend {current_backend()!r}; there are {[k.name for k in candidates]}"
            )
        candidates = named
    for candidate in candidates:
        yield candidate.verdict(problem)


def chosen_kernel(problem: AnyProblem) -> Kernel:
    """The kernel that runs a problem; KernelError with all refusals if there is none."""
    named = _kernel_name.get() is not None
    refusals = []

    def heard() -> Iterator[Verdict]:
        for verdict in _verdicts(problem):
            refusals.append(f"{verdict.kernel.backend}/{verdict.kernel.name}: {verdict.reason}")
            yield verdict

    if not named and _backend.get() is None and not environment(BACKEND_VARIABLE):
        _warn_of_slowness()
    for verdict in _by_preference(heard(), named):
        kernel = verdict.kernel
        if named:
            return replace(kernel, run=_nameless(kernel.run))
        return replace(kernel, run=_or_reference(kernel.run)) if kernel.backend == CPU and _may_lack_code() else kernel
    raise KernelError(f"{problem.op}: no kernel accepts this problem ({'; '.join(refusals) or 'none is registered'})")


def _nameless(run: Run) -> Run:
    """The name asks for one kernel: where that has others do part of its work, it does not speak of these."""

    @wraps(run)
    def without_name(*arguments: Any) -> Any:
        with during(_kernel_name, None):
            return run(*arguments)

    return without_name


_chosen: dict[Any, Run] = {}  # by problem and selection: asking the kernels again takes longer than a small kernel runs
MOST_CHOSEN = 1024


def chosen_run(problem: AnyProblem) -> Run:
    """What runs a problem: the function of the kernel chosen for it."""
    key = (problem, selection())
    run = _chosen.get(key)
    if run is None:
        run = chosen_kernel(problem).run
        if len(_chosen) >= MOST_CHOSEN:
            _chosen.clear()
        _chosen[key] = run
    return run


def dispatch(problem: AnyProblem, *arrays: Any) -> Any:
    """Run a problem on the kernel chosen for it."""
    return chosen_run(problem)(problem, *arrays)


def selection() -> tuple[str, str | None, str, int]:
    """What the choice of a kernel depends on beside the problem: backend, kernel asked for, precision, state of the lists."""
    return current_backend(), _kernel_name.get(), current_precision(), _changes
