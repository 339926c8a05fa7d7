"""The lists of kernels by op and backend, and what fills them: first the built-in backends, then the plug-ins.

Importing a module of the package registers nothing. The first question to the lists loads everything, in that order, so that a
plug-in may stand before any built-in kernel whatever was imported first.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from pullback.forking import REGISTRY, lock_free_in_children
from pullback.registry.kernels import Accepts, Kernel, Run, Steps
from pullback.registry.promises import checked_reason, checked_run

REFERENCE = "reference"
CPU = "cpu"
CUDA = "cuda"
ENTRY_POINT_GROUP = "pullback.kernels"

# Backends shipped with the package: the module's `register()` puts its kernels on the lists.
BUILTIN_BACKENDS = {REFERENCE: "pullback.reference", CPU: "pullback.cpu.kernel_list", CUDA: "pullback.cuda.kernel_list"}

_kernels: dict[tuple[str, str], list[Kernel]] = {}
_lock = lock_free_in_children(REGISTRY)  # re-entrant: plug-ins register kernels while they are loaded
_loaded = False
_changes = 0


def changes() -> int:
    """Grows with every change of the lists."""
    return _changes


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
    possibly read-only) and returns new ones. What all three return is checked. A kernel with an `error` (see Kernel) must refuse
    under precision "exact". A name already taken for this op and backend is a ValueError.
    """
    _load()
    who = f"{op}: the kernel {backend}/{name}"
    return add_kernel(
        op, backend, name, checked_reason(f"{who}: accepts(problem)", "to accept", accepts), checked_run(who, run), before=before,
        error=error, pays=None if pays is None else checked_reason(f"{who}: pays(problem)", "where it pays", pays),
    )  # fmt: skip


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
    steps: Steps | None = None,
) -> Kernel:
    """`register_kernel` for the backends of this package, while they are loaded: no check stands around their functions."""
    global _changes
    kernel = Kernel(op, backend, name, can, run, pays, error, note, aliases, steps)
    with _lock:
        kernels = _kernels.get((op, backend), [])
        names = [k.name for k in kernels]
        if name in names:
            raise ValueError(f"register_kernel: {op} already has a kernel {name!r} on backend {backend!r}")
        if before is not None and before not in names:
            why = why_unavailable(backend)
            raise ValueError(
                f"register_kernel: no kernel {before!r} for {op} on backend {backend!r}; there are {names}"
                + (f" ({why})" if why else "")
            )
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
    with _lock:
        if _loaded:
            return
        _loaded = True  # before anything is registered: plug-ins come back here
        try:
            for name, module in BUILTIN_BACKENDS.items():
                if why_unavailable(name) is None:
                    import_module(module).register()
            for point in entry_points(group=ENTRY_POINT_GROUP):
                _load_plugin(point)
        except Warning:  # turned into an error by the caller
            raise
        except BaseException:  # Ctrl-C: the next call begins again
            _kernels.clear()
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
    """Names of all backends that have kernels for arrays in the CPU's memory. (Those of a GPU run on `CUDA`, unasked.)"""
    _load()
    with _lock:
        return tuple(sorted({backend for (_, backend), kernels in _kernels.items() if kernels} - {CUDA}))


def kernels_for(op: str, backend: str) -> tuple[Kernel, ...]:
    """The kernels tried for an op on a backend, in order: its own, then (where arrays are NumPy's) the reference."""
    _load()
    with _lock:
        own = _kernels.get((op, backend), [])
        rest = [] if backend in (REFERENCE, CUDA) else _kernels.get((op, REFERENCE), [])
        return (*own, *rest)


@cache
def why_unavailable(name: str) -> str | None:
    """Why a built-in backend cannot run here, in one sentence; None if it can. Imports nothing heavy."""
    if name == CUDA:
        return _why_no_cuda()
    if name != CPU:
        return None
    from pullback.cpu.machine_code.find import why_unavailable

    why = why_unavailable()
    return None if why is None else f"backend {name!r}: {why}"


def _why_no_cuda() -> str | None:
    """Why there are no kernels for a GPU. (Whether one is there is asked of nobody: only its own arrays come to them.)"""
    missing = [package for package in ("torch", "triton") if find_spec(package) is None]
    if missing:
        return f"backend {CUDA!r}: arrays of a GPU need {' and '.join(missing)}: pip install 'pullback[cuda]'"
    return None
