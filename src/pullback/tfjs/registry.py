"""TF.js's kernel registry and backends, with its names, messages and side effects; run_kernel looks kernels up here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pullback.forking import FRONT_END, lock_free_in_children
from pullback.registry import KernelError
from pullback.shown import shown
from pullback.tfjs import kernels_conv, kernels_dilation, kernels_pool, kernels_relu  # noqa: F401  (importing them fills KERNELS)
from pullback.tfjs.call import CPU, KERNELS, REFERENCE, BuiltinBackend, KernelFunc, check_mappings
from pullback.tfjs.configs import as_config
from pullback.tfjs.quirks import in_quirks
from pullback.tracing import any_traced

BackendHook = Callable[[Any], None]


@dataclass(frozen=True)
class KernelConfig:
    """A kernel of one backend. `setup_func(backend)` runs at every set_backend, `dispose_func(backend)` at remove_backend."""

    kernel_name: str
    backend_name: str
    kernel_func: KernelFunc
    setup_func: BackendHook | None = None
    dispose_func: BackendHook | None = None


@dataclass(frozen=True)
class _Factory:
    make: Callable[[], Any]
    priority: int


_lock = lock_free_in_children(FRONT_END)
_kernels: dict[tuple[str, str], KernelConfig] = {}  # by (backend, kernel)
_factories: dict[str, _Factory] = {}
_instances: dict[str, Any] = {}
_active: str | None = None


def register_kernel(config: KernelConfig | Mapping[str, Any]) -> None:
    """Add a kernel; one already registered under this name and backend is replaced, with a warning.

    As in TF.js the config may be a dict: {"kernelName": ..., "backendName": ..., "kernelFunc": ...}. The function is called
    with the keywords inputs, attrs and backend.
    """
    config = as_config("register_kernel", KernelConfig, config)
    key = (config.backend_name, config.kernel_name)
    with _lock:
        known = key in _kernels
        _kernels[key] = config
    if known:
        warnings.warn(
            f"The kernel '{config.kernel_name}' for backend '{config.backend_name}' is already registered", stacklevel=2
        )


def unregister_kernel(kernel_name: str, backend_name: str) -> None:
    """Remove a kernel; one that is not registered is an error."""
    with _lock:
        if _kernels.pop((backend_name, kernel_name), None) is None:
            raise KernelError(f"The kernel '{kernel_name}' for backend '{backend_name}' is not registered")


def get_kernel(kernel_name: str, backend_name: str) -> KernelConfig | None:
    """The kernel's config, or None."""
    with _lock:
        return _kernels.get((backend_name, kernel_name))


def get_kernels_for_backend(backend_name: str) -> list[KernelConfig]:
    """All kernels of a backend, in order of registration.

    Upstream takes the text before the first underscore of "<backend>_<kernel>" for the backend's name: so do quirks.
    """
    with _lock:
        configs = list(_kernels.values())
    if in_quirks():
        return [c for c in configs if f"{c.backend_name}_{c.kernel_name}".split("_", 1)[0] == backend_name]
    return [c for c in configs if c.backend_name == backend_name]


def copy_registered_kernels(registered_backend_name: str, new_backend_name: str) -> None:
    """Register all kernels of one backend for another as well; a source without kernels copies nothing."""
    for config in get_kernels_for_backend(registered_backend_name):
        register_kernel(replace(config, backend_name=new_backend_name))


def register_backend(name: str, factory: Callable[[], Any], priority: int = 1) -> bool:
    """Make a backend known. A name already taken keeps its factory: a warning, and False."""
    with _lock:
        if name not in _factories:
            _factories[name] = _Factory(factory, priority)
            return True
    warnings.warn(f"{name} backend was already registered. Reusing existing backend factory.", stacklevel=2)
    return False


def find_backend(name: str) -> Any:
    """The backend's object, made at first use by its factory; None for an unknown name."""
    with _lock:
        if name not in _instances:
            if name not in _factories:
                return None
            _instances[name] = _factories[name].make()
        return _instances[name]


def set_backend(name: str) -> bool:
    """Run kernels on this backend from now on, after the setup_func of each of its kernels; False if its factory fails."""
    global _active
    with _lock:
        if name not in _factories:
            raise ValueError(f"Backend name '{name}' not found in registry")
        try:
            instance = find_backend(name)
        except Exception as error:  # upstream falls through to the next backend, whatever went wrong
            warnings.warn(f"Initialization of backend {name} failed: {error!r}", stacklevel=2)
            return False
        _active = name
    for config in get_kernels_for_backend(name):
        if config.setup_func is not None:
            config.setup_func(instance)
    return True


def get_backend() -> str:
    """The name of the backend in use; at first the one of highest priority whose factory works."""
    with _lock:
        if _active is not None:
            return _active
        for name in sorted(_factories, key=lambda known: -_factories[known].priority):
            if set_backend(name):
                return name
    raise KernelError("Could not initialize any backends, all backend initializations failed.")


def remove_backend(name: str) -> None:
    """Forget a backend: the dispose_func of its kernels, then its own dispose(); its kernels stay registered."""
    global _active
    with _lock:
        if name not in _factories:
            raise ValueError(f"{name} backend not found in registry")
        del _factories[name]
        made = name in _instances
        instance = _instances.pop(name, None)
        if _active == name:
            _active = None
    if not made:
        return
    for config in get_kernels_for_backend(name):
        if config.dispose_func is not None:
            config.dispose_func(instance)
    dispose = getattr(instance, "dispose", None)
    if callable(dispose):
        dispose()


def run_kernel(
    kernel_name: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, backend: str | None = None
) -> Any:
    """Run a kernel of a backend (the one in use unless named): one array, or a tuple from a kernel with several outputs.

    Inside `grads` and its relatives the call is recorded.
    """
    if not isinstance(kernel_name, str):
        raise TypeError(f"run_kernel: kernel_name must be a string, not {shown(kernel_name)}")
    given = {} if attrs is None else attrs
    if type(inputs) is not dict or type(given) is not dict:
        check_mappings(kernel_name, inputs, given)
    if any_traced(inputs.values()):
        from pullback.tfjs.recorded import run_recorded

        return run_recorded(kernel_name, inputs, given, backend)
    name = get_backend() if backend is None else backend
    if not isinstance(name, str):
        raise TypeError(f"run_kernel: backend must be the name of one, not {shown(name)}")
    instance = find_backend(name)
    if instance is None and name not in _factories:
        raise ValueError(f"Backend name '{name}' not found in registry")
    config = get_kernel(kernel_name, name)
    if config is None:
        raise KernelError(f"Kernel '{kernel_name}' not registered for backend '{name}'")
    return config.kernel_func(inputs=inputs, attrs=given, backend=instance)


def _register_builtins() -> None:
    for backend_name, priority in ((CPU, 1), (REFERENCE, 0)):
        backend = BuiltinBackend(backend_name)
        register_backend(backend_name, lambda made=backend: made, priority)  # type: ignore[misc]
        for kernel_name, func in KERNELS.items():
            register_kernel(KernelConfig(kernel_name, backend_name, func))


_register_builtins()
