"""From kernel source to callable machine code: compile with Numba once, keep the object code on disk, load it without Numba.

A kernel is a Python function (args, piece, scratch), built by its module's `build(lanes, ...)`: `args` is the record of its
arguments, `piece` the number of the piece of work, `scratch` the address of this thread's working memory.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pullback import __version__
from pullback.cpu.engine import kept_code
from pullback.cpu.engine.machine import loading, machine
from pullback.cpu.engine.records import Record

CACHE_VARIABLE = "PULLBACK_CACHE_DIR"


@dataclass(frozen=True)
class Variant:
    """One kernel specialised on what its machine code depends on; never on a shape."""

    module: str
    kernel: str
    dtype: str = "float32"
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.module, self.kernel, self.dtype, *(f"{name}={value}" for name, value in self.options)])


@dataclass(frozen=True)
class Code:
    """Loaded machine code: its address and the fields of the record that it takes."""

    address: int
    fields: tuple[str, ...]


compilations = 0  # how many kernels this process has compiled; tests hold it against the number of variants
_loaded: dict[Variant, Code] = {}
_engines: list[Any] = []  # keeps the machine code alive


def cache_directory() -> Path:
    """Where object code is kept: $PULLBACK_CACHE_DIR, or the user's cache folder."""
    if asked := os.environ.get(CACHE_VARIABLE):
        return Path(asked)
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home keeps nothing: below a file that is no folder
        home = Path(os.devnull)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home) / "pullback" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "pullback"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "pullback"


CPU_FOLDER = Path(__file__).parents[1]
USED_BY_ALL = ("simd.lanes", "simd.record_types", "simd.linked_functions")  # by this file, with every kernel
_IMPORTED = re.compile(rb"^\s*from (pullback\.cpu\.[\w.]+) import", re.MULTILINE)


@cache
def _fingerprint() -> str:
    """Hash of what all machine code depends on: this file, versions, the CPU without its caches."""
    from importlib.metadata import version

    facts = {**asdict(machine()), "pullback": __version__, "numba": version("numba"), "llvmlite": version("llvmlite")}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:20]


@cache
def _sources(module: str) -> frozenset[Path]:
    """The files that a module of this package is compiled from: its own and those of the modules it imports from here."""
    found: set[Path] = set()
    wanted = [module]
    while wanted:
        path = CPU_FOLDER.joinpath(*wanted.pop().split(".")[2:]).with_suffix(".py")
        if path not in found:
            found.add(path)  # a file: kernels import names from modules, not modules from packages
            wanted += [name.decode() for name in _IMPORTED.findall(path.read_bytes())]
    return frozenset(found)


@cache
def _source_hash(module: str) -> str:
    """Hash of the sources of a kernel, so that a change asks for those kernels alone that it concerns."""
    digest = hashlib.sha256()
    modules = (f"{module}_kernel", *USED_BY_ALL)
    for path in sorted({path for name in modules for path in _sources(f"pullback.cpu.{name}")}):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(CPU_FOLDER).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:12]


def cache_folder() -> Path:
    """Where the object code for this machine is kept; other versions and machines have folders of their own."""
    return cache_directory() / _fingerprint()


def is_kept() -> bool:
    """Whether object code compiled now could be kept for other processes; makes the folder where it can."""
    return kept_code.make_folder(cache_folder())


def _cache_file(variant: Variant) -> Path:
    return cache_folder() / f"{variant}.{_source_hash(variant.module)}.o"


def _record_of(kernel: Callable[..., None]) -> type[Record]:
    """The record that a kernel takes: the annotation of its first parameter."""
    names = list(inspect.signature(kernel).parameters)
    record = kernel.__globals__.get(kernel.__annotations__.get(names[0], ""))
    if names != ["args", "piece", "scratch"] or not (isinstance(record, type) and issubclass(record, Record)):
        raise TypeError(f"kernel {kernel.__name__} must have the parameters (args: a record, piece, scratch)")
    return record


@contextmanager
def _numba_as_shipped() -> Iterator[tuple[Any, Any]]:
    """Numba's typing and target contexts while none of its settings is in force.

    NUMBA_OPT, NUMBA_CPU_NAME and the rest, by variable, file or assignment, are for other code: what is kept on disk must be the
    same whoever compiled it.
    """
    from numba.core import config
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    with global_compiler_lock:
        config.reload_config()  # now: else Numba does it when it begins to compile
        before = {name: value for name, value in vars(config).items() if name.isupper()}
        target = cpu_target.target_context  # made under their own settings
        theirs = target._internal_codegen
        plain = {"NUMBA_NUM_THREADS": str(config.NUMBA_NUM_THREADS), "NUMBA_ENABLE_PROFILING": "0", "NUMBA_DEBUGINFO": "0"}
        try:
            config._env_reloader.process_environ(plain)
            target._internal_codegen = _own_codegen()
            yield cpu_target.typing_context, target
        finally:
            target._internal_codegen = theirs
            vars(config).update(before)


@cache
def _own_codegen() -> Any:
    """Numba's generator of code for this CPU, without what it does to make each function callable from Python.

    A kernel is dozens of small functions that end up within one. Numba would optimise each with all that it calls, again on every
    level, and make machine code of each. Here those that call nothing are optimised, then the whole kernel.
    """
    from numba.core.codegen import JITCodeLibrary, JITCPUCodegen

    from pullback.cpu.simd.vectors import OPTIMISED_FIRST

    class Library(JITCodeLibrary):  # type: ignore[misc]
        optimise = JITCodeLibrary._optimize_final_module

        def _optimize_final_module(self) -> None:
            if not self._linking_libraries or self.name in OPTIMISED_FIRST:
                self.optimise()

        def _finalize_specific(self) -> None: ...

        def get_pointer_to_function(self, name: str) -> int:
            self._ensure_finalized()
            return 0

    class Codegen(JITCPUCodegen):  # type: ignore[misc]
        _library_class = Library

        def _add_module(self, module: Any) -> None: ...

        def set_env(self, env_name: str, env: Any) -> None: ...

    return Codegen("pullback")


def _compile(variant: Variant) -> tuple[dict[str, Any], bytes]:
    """Machine code of a variant, by Numba."""
    global compilations
    from llvmlite import binding
    from numba import types
    from numba.core.compiler import Flags, compile_extra

    with _numba_as_shipped() as (typing, target):
        from pullback.cpu.simd import linked_functions
        from pullback.cpu.simd.lanes import lanes_of
        from pullback.cpu.simd.record_types import RecordType

        options = dict(variant.options)
        lanes = lanes_of(variant.dtype, machine().vector_bytes, options.pop("winner", "uint8"))
        module = import_module(f"pullback.cpu.{variant.module}_kernel")
        kernel = module.build(lanes, **options)[variant.kernel]
        record = _record_of(kernel)
        flags = Flags()
        flags.no_cpython_wrapper = True
        flags.no_cfunc_wrapper = True
        flags.error_model = "numpy"
        typing.refresh()
        target.refresh()
        result = compile_extra(
            typing, target, kernel, (RecordType(record, record.changes), types.int64, types.int64), types.void, flags, {}
        )
        # LLVM's last passes before machine code change the module in place. Loops come out better of a second round: a depthwise
        # convolution of stride 2 by 1.15 times.
        machine_code = target.codegen()._tm.emit_object
        result.library.optimise()
        machine_code(result.library._final_module)
        code = binding.parse_assembly(str(result.library._final_module))
        linked_functions.join(code)
        object_code = machine_code(code)
    compilations += 1
    header = {
        "variant": str(variant),
        "symbol": result.fndesc.llvm_func_name,
        "fields": [name for name, _ in record.FIELDS],
    }
    return header, object_code


def _link(header: dict[str, Any], object_code: bytes) -> Code:
    """Load object code into this process; its address is 0 where the function is not in it."""
    from llvmlite import binding

    if not _engines:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target)
    engine.add_object_file(binding.object_file.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    _engines.append(engine)
    return Code(engine.get_function_address(header["symbol"]), tuple(header["fields"]))


def code(variant: Variant) -> Code:
    """The machine code of a variant: from memory, from disk, or compiled now."""
    found = _loaded.get(variant)
    if found is not None:
        return found
    with loading:  # a fork waits: the child gets whole tables, and Numba's own lock free
        if variant not in _loaded:
            _loaded[variant] = _from_disk(variant) or _compiled_now(variant)
        return _loaded[variant]


def _from_disk(variant: Variant) -> Code | None:
    kept = kept_code.read(_cache_file(variant), str(variant))
    with suppress(RuntimeError, ValueError):  # no object file, in a format that is not looked through beforehand
        if kept is not None and (linked := _link(*kept)).address:
            return linked
    return None


def _compiled_now(variant: Variant) -> Code:
    made = _compile(variant)
    kept_code.write(_cache_file(variant), *made)
    return _link(*made)
