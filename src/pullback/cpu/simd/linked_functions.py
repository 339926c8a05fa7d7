"""Large functions of kernels (register tiles, transposes) that are kept apart from Numba and joined to its code at the end.

Numba optimises and compiles everything a function calls again in each of its callers, which would take these functions many times
the time they need. To Numba a part is an external function; `join` adds the bodies to the finished module.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir

from pullback.cpu.simd.vectors import I64

# Numba loads its intermediate code, never runs it, but wants an address for every name.
SOME_ADDRESS = 64

_bodies: dict[str, str] = {}


def call_part(builder: Any, name: str, arguments: Any, emit_body: Any) -> Any:
    """Call a function of int64 arguments whose body emit_body(builder, arguments) writes, once for each name."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(arguments))
    if name not in _bodies:
        module = ir.Module(name)
        module.triple, module.data_layout = builder.module.triple, builder.module.data_layout
        function = ir.Function(module, kind, name)
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        body = ir.IRBuilder(function.append_basic_block("entry"))
        emit_body(body, function.args)
        body.ret_void()
        binding.add_symbol(name, SOME_ADDRESS)
        _bodies[name] = str(module)  # last: who is interrupted before has to begin again
    function = builder.module.globals.get(name)
    return builder.call(ir.Function(builder.module, kind, name) if function is None else function, arguments)


def join(module: Any) -> None:
    """Add the bodies of the parts that a module calls, and of those which they call."""
    while missing := [f.name for f in module.functions if f.is_declaration and f.name in _bodies]:
        for name in missing:
            module.link_in(binding.parse_assembly(_bodies[name]))
