"""The backend and the kernel in force: those of the innermost `with` blocks, else the environment's, else the default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pullback.registry.lists import BUILTIN_BACKENDS, CPU, REFERENCE, backends, changes, why_unavailable
from pullback.settings import block_setting, current_precision, during, environment

BACKEND_VARIABLE = "PULLBACK_BACKEND"

asked_backend: ContextVar[str | None] = block_setting("pullback_backend")
asked_kernel: ContextVar[str | None] = block_setting("pullback_kernel")


def current_backend() -> str:
    """The backend in force: that of the innermost `with backend(...)`, else the default."""
    return asked_backend.get() or default_backend()


def default_backend() -> str:
    """The backend named by $PULLBACK_BACKEND, else cpu where its kernels are shipped or can be compiled, else the reference."""
    asked = environment(BACKEND_VARIABLE)
    if asked:
        _check_backend(BACKEND_VARIABLE, asked)
        return asked
    return CPU if why_unavailable(CPU) is None else REFERENCE


def is_default() -> bool:
    """Whether nobody has chosen a backend."""
    return asked_backend.get() is None and not environment(BACKEND_VARIABLE)


def _check_backend(who: str, name: str) -> None:
    known = backends()
    if name not in known:
        why = why_unavailable(name) if name in BUILTIN_BACKENDS else None
        raise ValueError(f"{who}: unknown backend {name!r}; there are {', '.join(known)}" + (f" ({why})" if why else ""))


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Run the ops inside the block on this backend."""
    _check_backend("backend", name)
    with during(asked_backend, name):
        yield


@contextmanager
def kernel(name: str) -> Iterator[None]:
    """Run the ops inside the block on the kernel of this name and no other: KernelError where it cannot.

    "direct", or "cpu/direct" as explanations print it, which runs only where that backend is the one in force.
    """
    with during(asked_kernel, name):
        yield


def selection() -> tuple[str, str | None, str, int]:
    """What the choice of a kernel depends on beside the problem: backend, kernel asked for, precision, state of the lists."""
    return current_backend(), asked_kernel.get(), current_precision(), changes()
