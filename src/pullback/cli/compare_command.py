"""`pullback compare`: a PyTorch model's training step on PyTorch's kernels and on ours, layer by layer; table, JSON, picture."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from pullback.cli.bench_options import check_files
from pullback.cli.console import print_table, progress

EXAMPLES = """MODULE:FUNCTION names a function without arguments that returns the model and its inputs:

  # train.py
  def example():
      return MyNet(), torch.randn(8, 3, 64, 64)      # or: model, (a, b); a dict at the end holds keyword arguments

examples:
  pullback compare train:example                      a module that Python finds, this folder included
  pullback compare models/train.py:example            a file
  pullback compare train:example --loss train:loss    loss(output) to go back from, instead of the mean square
  pullback compare train:example --tune --json step.json --plot step.png
  pullback compare train:example --only 'layer1.*' --except layer1.downsample
"""


class _TargetError(ValueError):
    """What stands on the command line is no function that can be called."""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="time the training step of a PyTorch model on PyTorch's kernels and on ours",
        description="Takes forward and backward steps of a model, on PyTorch's kernels and on ours in turns: milliseconds of each "
        "layer and op, of the whole step, memory, and which layers are left to PyTorch and why.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="MODULE:FUNCTION", help="a function that returns (model, inputs)")
    parser.add_argument(
        "--loss", metavar="MODULE:FUNCTION", help="a function of the model's output that returns a scalar tensor"
    )
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps of each side (default 10)")
    parser.add_argument("--threads", type=int, metavar="N", help="torch.set_num_threads (default: PyTorch's own)")
    parser.add_argument("--tune", action="store_true", help="let each layer keep the kernels that it measures as faster")
    parser.add_argument(
        "--functional", action="store_true", help="also take calls of torch.nn.functional in the model's forward"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="only these layers ('layer1.*'; may be repeated)")
    parser.add_argument("--except", action="append", dest="except_", metavar="NAME", help="all layers but these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples and settings")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw bars of each layer (.png or .svg, needs matplotlib)")
    parser.add_argument("--theme", choices=("light", "dark"), default="light", help="of the picture")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        if options.steps < 1 or (options.threads is not None and options.threads < 1):
            raise ValueError(f"--steps {options.steps} --threads {options.threads}: at least 1 of each")
        check_files(options.json, options.plot)
        pt = importlib.import_module("pullback.torch")
    except (ValueError, ImportError) as error:
        return _complain(error)
    if options.threads is not None:
        importlib.import_module("torch").set_num_threads(options.threads)
    try:
        loss = None if options.loss is None else _function(options.loss)
        model, inputs, named = _taken_apart(options.target, _function(options.target)())
        # A bar that redraws itself from a thread of its own would disturb what is timed.
        with progress("timing", options.steps, in_background=False) as tick:
            found = pt.compare(
                model, *inputs, loss=loss, steps=options.steps, tune=options.tune, functional=options.functional,
                only=options.only, except_=options.except_, tick=tick, **named,
            )  # fmt: skip
    except _TargetError as error:
        return _complain(error)
    except (ValueError, TypeError) as error:
        if not str(error).startswith(("accelerate: ", "compare: ")):
            raise  # out of the user's own code: its traceback says where
        return _complain(str(error).partition(": ")[2])
    print_table("milliseconds in a step; op by op PyTorch / ours", found.HEADER, found.rows())
    for title, text in found.lines():
        print(f"{title:<7} {text}")
    if options.json is not None:
        found.save(options.json)
    if options.plot is not None:
        found.plot(options.plot, theme=options.theme)
    return 0


def _complain(error: object) -> int:
    print(f"pullback compare: {error}", file=sys.stderr)
    return 2


def _function(target: str) -> Any:
    """The function that MODULE:FUNCTION names; MODULE may be a file."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise _TargetError(f"{target!r} is no MODULE:FUNCTION, such as train:example")
    module = _module_of_file(Path(place)) if place.endswith(".py") else _module(place)
    function = getattr(module, name, None)
    if not callable(function):
        own = [known for known, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise _TargetError(f"{place} has no function {name!r}; it has {', '.join(own) or 'none'}")
    return function


def _module(name: str) -> Any:
    sys.path.insert(0, str(Path().resolve()))  # as `python -m` has it
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # of what it imports
        raise _TargetError(f"there is no module {name!r} here or where Python looks") from None


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise _TargetError(f"there is no file {str(path)!r}")
    sys.path.insert(0, str(path.parent.resolve()))  # for what it imports, as `python FILE` has it
    return importlib.import_module(path.stem)


def _taken_apart(target: str, returned: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(model, inputs, keyword arguments) of what the function returned."""
    from torch import nn

    if not isinstance(returned, tuple) or len(returned) < 2 or not isinstance(returned[0], nn.Module):
        raise _TargetError(f"{target} must return a model and its inputs: return model, x")
    model, *inputs = returned
    named = inputs.pop() if isinstance(inputs[-1], dict) else {}
    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
        inputs = list(inputs[0])
    return model, tuple(inputs), named
