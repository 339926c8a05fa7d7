"""From kernel source to object code, with Numba, for the level in force: this machine's or another's.

A kernel is a Python function (args, piece, scratch), built by its module's `build(lanes, ...)`: `args` is the record of its
arguments, `piece` the number of the piece of work, `scratch` the address of this thread's working memory. A module that has
`assembly()` instead gives LLVM's own language and the names of the functions in it.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from pullback.cpu.engine.records import Record
from pullback.cpu.machine_code.keys import is_linkable
from pullback.cpu.machine_code.levels import host_machine, level
from pullback.cpu.machine_code.variants import ObjectCode, Variant

compilations = 0  # how many kernels this process has compiled; tests hold it against the number of variants


def compile_variant(variant: Variant) -> ObjectCode:
    """The object code of a variant."""
    global compilations
    with _no_collections(), _numba_as_shipped() as (typing, target):
        module = import_module(f"pullback.cpu.{variant.module}_kernel")
        if hasattr(module, "assembly"):
            made = _compile_assembly(variant, module)
        else:
            made = _compile_kernel(variant, module, typing, target)
    compilations += 1
    return made


@contextmanager
def _no_collections() -> Iterator[None]:
    """Without the garbage collector, which would take a fifth of the time: it looks at all that Numba keeps, again and again."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


def triple() -> str:
    """LLVM's name of what is compiled for: this system, or Linux on another architecture."""
    from llvmlite import binding

    machine = level().machine
    native: str = binding.get_process_triple()
    return native if machine == host_machine() else f"{machine}-unknown-linux-gnu"


def _target_machine(opt: int, pairs: bool = False) -> Any:
    """Code for any CPU of the level, or for those with its extension for `pairs`.

    Both kinds are the same instructions but for the way constants and functions are addressed.
    """
    from llvmlite import binding

    native = level().machine == host_machine()
    (binding.initialize_native_target if native else binding.initialize_all_targets)()
    (binding.initialize_native_asmprinter if native else binding.initialize_all_asmprinters)()
    create = binding.Target.from_triple(triple()).create_target_machine
    features = f"+{level().pairs}" if pairs else ""
    if is_linkable():
        return create(cpu=level().cpu, features=features, opt=opt, reloc="pic", codemodel="default")
    # As LLVM's loader wants it: the parts of what it loads may lie anywhere.
    jit = {"jit": True} if "jit" in inspect.signature(create).parameters else {}
    reloc = "static" if level().machine == "x86_64" else "default"
    return create(cpu=level().cpu, features=features, opt=opt, reloc=reloc, codemodel="jitdefault", **jit)


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
    """Numba's generator of code, for the level, and without what it does to make each function callable from Python.

    A kernel is dozens of small functions that end up within one. Numba would optimise each with all that it calls, again on every
    level, and make machine code of each. Here those that call nothing are optimised, then the whole kernel.
    """
    from numba.core import config
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

        def _init(self, llvm_module: Any) -> None:
            """No engine that runs code: it may be for another machine."""
            self._tm = _target_machine(int(config.OPT))
            self._tm_features = ""
            self._target_data = self._tm.target_data
            self._data_layout = str(self._target_data)
            self._loopvect, self._opt_level = False, 0  # of Numba's first passes, as it sets them by default
            cheap = {"loop_vectorize": False, "slp_vectorize": False, "opt": 0, "cost": "cheap"}
            self._mpm_cheap, self._mpm_full = self._module_pass_manager(**cheap), self._module_pass_manager()  # for older Numba

        def _create_empty_module(self, name: str) -> Any:
            module = super()._create_empty_module(name)
            module.triple = triple()
            return module

        def _add_module(self, module: Any) -> None: ...

        def set_env(self, env_name: str, env: Any) -> None: ...

    return Codegen("pullback")


def _compile_kernel(variant: Variant, module: Any, typing: Any, target: Any) -> ObjectCode:
    """Of a function in Python, by Numba."""
    from llvmlite import binding
    from numba import types
    from numba.core import config
    from numba.core.compiler import Flags, compile_extra

    from pullback.cpu.simd import linked_functions
    from pullback.cpu.simd.lanes import lanes_of
    from pullback.cpu.simd.record_types import RecordType

    options = dict(variant.options)
    lanes = lanes_of(variant.dtype, level().vector_bytes, options.pop("winner", "uint8"), variant.pairs)
    kernel = module.build(lanes, **options)[variant.kernel]
    record = _record_of(kernel)
    flags = Flags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    typing.refresh()
    target.refresh()
    arguments = (RecordType(record, record.changes), types.int64, types.int64)
    result = compile_extra(typing, target, kernel, arguments, types.void, flags, {})
    # LLVM's last passes before machine code change the module in place. Loops come out better of a second round: a depthwise
    # convolution of stride 2 by 1.15 times.
    made_for = _target_machine(int(config.OPT), pairs=True) if variant.pairs else target.codegen()._tm
    machine_code = made_for.emit_object
    result.library.optimise()
    machine_code(result.library._final_module)
    code = binding.parse_assembly(str(result.library._final_module))
    linked_functions.join(code)
    _rename(code, {result.fndesc.llvm_func_name: variant.symbol()})
    contents = machine_code(code)
    return ObjectCode(str(variant), tuple(name for name, _ in record.FIELDS), (), contents)


def _compile_assembly(variant: Variant, module: Any) -> ObjectCode:
    """Of functions in LLVM's own language."""
    from llvmlite import binding

    text, functions = module.assembly()
    target = _target_machine(2)
    code = binding.parse_assembly(text)
    code.triple, code.data_layout = triple(), str(target.target_data)
    _rename(code, {function: variant.symbol(function) for function in functions})
    return ObjectCode(str(variant), (), tuple(functions), target.emit_object(code))


def _rename(code: Any, names: dict[str, str]) -> None:
    """Give functions names that no other kernel has; nothing else can be seen from outside, since its names are not."""
    for thing in (*code.functions, *code.global_variables):
        if thing.name in names:
            thing.name = names[thing.name]
        elif not thing.is_declaration:
            thing.linkage = "internal"
