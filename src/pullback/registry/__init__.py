"""The kernel registry: one ordered list per (op, backend), fastest first, each refusal with its reason.

A kernel is `can(problem)`, None or why it cannot run it, `pays(problem)`, None or why another would be quicker, and
`run(problem, *arrays)`. Dispatch takes the first kernel that can and pays; the reference kernels stand last in every backend's
list. A kernel asked for by name runs whatever it can, whether or not it pays, and no other takes its place.

kernels (what they are, verdicts, explanations) · lists (registration, loading, plug-ins) · promises (what plug-ins give back) ·
in_force (backend and kernel of the `with` blocks) · choose (dispatch, and the reference where code is missing).
"""

from pullback.registry.choose import MOST_CHOSEN, chosen_kernel, chosen_run, dispatch, explain_problem, forget_choices
from pullback.registry.in_force import BACKEND_VARIABLE, backend, current_backend, default_backend, kernel, selection
from pullback.registry.kernels import Accepts, Explanation, Kernel, KernelError, MissingCode, Run, Verdict
from pullback.registry.lists import (
    BUILTIN_BACKENDS,
    CPU,
    CUDA,
    ENTRY_POINT_GROUP,
    REFERENCE,
    add_kernel,
    backends,
    kernels_for,
    register_kernel,
    unregister_kernel,
    why_unavailable,
)

__all__ = [
    "BACKEND_VARIABLE",
    "BUILTIN_BACKENDS",
    "CPU",
    "CUDA",
    "ENTRY_POINT_GROUP",
    "MOST_CHOSEN",
    "REFERENCE",
    "Accepts",
    "Explanation",
    "Kernel",
    "KernelError",
    "MissingCode",
    "Run",
    "Verdict",
    "add_kernel",
    "backend",
    "backends",
    "chosen_kernel",
    "chosen_run",
    "current_backend",
    "default_backend",
    "dispatch",
    "explain_problem",
    "forget_choices",
    "kernel",
    "kernels_for",
    "register_kernel",
    "selection",
    "unregister_kernel",
    "why_unavailable",
]
