"""What is public, read from the source without importing it, and tables of the ops that follow others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
MODULES = ("pullback", "pullback.autograd", "pullback.torch", "pullback.jax", "pullback.tfjs", "pullback.ort", "pullback.onnx")
FUNCTIONAL = "pullback.torch.functional"


def parsed(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def exported(module: str) -> list[str]:
    """The names in `__all__` of a module."""
    for statement in parsed(module).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(statement.value)
            return names
    raise ValueError(f"{module} has no __all__")


def functional_signatures() -> dict[str, str]:
    """The functions of pullback.torch.functional, made for a number of axes by a function `_make_...`, and their arguments."""
    module = parsed(FUNCTIONAL)
    makers = {each.name: each for each in module.body if isinstance(each, ast.FunctionDef) and each.name.startswith("_make_")}
    found: dict[str, str] = {}
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call(func=ast.Name("map"), args=[ast.Name(maker), *_])):
                inner = next(each for each in makers[maker].body if isinstance(each, ast.FunctionDef))
                for argument in inner.args.args:
                    argument.annotation = None
                found |= {ast.unparse(name): ast.unparse(inner.args) for name in names}
    if not found:
        raise ValueError(f"no function of {FUNCTIONAL} was found; it is written in another way than this expects")
    return found


def public_names() -> list[str]:
    """Every public name in full; modules within modules have pages of their own."""
    names = [f"{module}.{name}" for module in MODULES for name in exported(module)]
    submodules = {FUNCTIONAL, "pullback.torch.modules"}
    return [name for name in names if name not in submodules] + [f"{FUNCTIONAL}.{name}" for name in functional_signatures()]


def missing_names(pages: Iterable[str]) -> list[str]:
    """The public names that are a heading or a row of no page, given as HTML."""
    there = {name for page in pages for name in re.findall(r'\bid="(pullback[\w.]*)"', page)}
    return [name for name in public_names() if name not in there]


def anchored(name: str) -> str:
    return f'<span id="{name}" class="doc"></span>`{name.rpartition(".")[2]}`'


def same_ops(module: str) -> str:
    """A table of the ops that a module has with the arguments of those of `pullback`."""
    core = set(exported("pullback"))
    rows = [f"| {anchored(f'{module}.{name}')} | [`pullback.{name}`][] |" for name in exported(module) if name in core]
    return "\n".join(["| op | arguments and rules |", "|---|---|", *rows])


def camel_case() -> str:
    """A section on the functions of pullback.tfjs that go under TF.js's own spelling too; nothing where none does."""
    spelt = {name: re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name) for name in exported("pullback.tfjs")}
    rows = [
        f"| {anchored(f'pullback.tfjs.{name}')} | [`pullback.tfjs.{snake}`][] |"
        for name, snake in spelt.items()
        if name[0].islower() and name != snake
    ]
    return "\n".join(["## In TF.js's spelling", "", "| name | the same as |", "|---|---|", *rows]) if rows else ""


def functional_table() -> str:
    """The functions that differ in the number of axes alone, side by side."""
    by_arguments: dict[str, list[str]] = {}
    for name, arguments in functional_signatures().items():
        by_arguments.setdefault(arguments, []).append(anchored(f"{FUNCTIONAL}.{name}"))
    rows = [f"| {'<br>'.join(names)} | `{arguments}` |" for arguments, names in by_arguments.items()]
    return "\n".join(["| function | arguments |", "|---|---|", *rows])
