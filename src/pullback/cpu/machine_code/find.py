"""The machine code of a variant: from memory, from the libraries of the wheel, from the user's cache, or compiled now."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from importlib.util import find_spec

from pullback.cpu.machine_code import disk_cache, dry_run, notice, shipped
from pullback.cpu.machine_code.levels import level, runs_here
from pullback.cpu.machine_code.variants import Code, ObjectCode, Variant
from pullback.forking import LOADING, lock_free_in_children
from pullback.registry import MissingCode

# Held while packages are imported and kernels compiled or loaded: a module half imported in another thread at the moment of a fork
# would stay so in the child.
loading = lock_free_in_children(LOADING)

COMPILER = ("numba", "llvmlite")
INSTALL = "pip install 'pullback[compiler]'"
_PLANNED = Code(0, ())  # of a dry run

_loaded: dict[Variant, Code] = {}


def code(variant: Variant) -> Code:
    """The machine code of a variant."""
    dry = dry_run.current
    if dry is not None:
        dry.wanted[variant] = None
        return _PLANNED
    found = _loaded.get(variant)
    if found is not None:
        return found
    with loading:  # a fork waits: the child gets whole tables, and Numba's own lock free
        if variant not in _loaded:
            _loaded[variant] = _find(variant)
        return _loaded[variant]


def _find(variant: Variant) -> Code:
    if not runs_here():
        raise MissingCode(f"this CPU cannot run kernels of the level {level().name}")
    found = shipped.find(variant)
    if found is not None:
        return found
    if not has_compiler():
        raise MissingCode(f"the kernel {variant} is not among those shipped for {level().name}: {INSTALL}")
    return _from_disk(variant) or _compiled_now(variant)


def has_compiler() -> bool:
    """Whether kernels can be compiled here."""
    with suppress(ImportError, ValueError):  # a module set to None, or half imported
        return all(find_spec(name) is not None for name in COMPILER)
    return False


def why_unavailable() -> str | None:
    """Why there is no code for the level in force, in one sentence; None where there is, or where it can be made."""
    if has_compiler() or shipped.is_there():
        return None
    return f"no kernels are shipped for {level().name} here, and what compiles them is not installed: {INSTALL}"


def _link(variant: Variant, made: ObjectCode) -> Code | None:
    """Load object code into this process; None where not all of its functions are in it."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target)
    engine.add_object_file(binding.object_file.ObjectFileRef.from_data(made.contents))
    engine.finalize_object()
    addresses = [engine.get_function_address(symbol) for symbol in variant.symbols(made.functions)]
    if not all(addresses):
        return None
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))  # for ever: NumPy frees arrays when all modules are gone
    return Code(addresses[0], made.fields, dict(zip(made.functions, addresses, strict=False)))


def _from_disk(variant: Variant) -> Code | None:
    kept = disk_cache.read(variant)
    with suppress(RuntimeError, ValueError):  # no object file, in a format that is not looked through beforehand
        return None if kept is None else _link(variant, kept)
    return None


def compile_and_keep(variant: Variant) -> ObjectCode:
    """Compile a variant and keep it on disk, where that is possible."""
    from pullback.cpu.machine_code.compiler import compile_variant

    made = compile_variant(variant)
    disk_cache.write(variant, made)
    return made


def _compiled_now(variant: Variant) -> Code:
    with notice.compiling(variant):
        made = compile_and_keep(variant)
    linked = _link(variant, made)
    assert linked is not None
    return linked
