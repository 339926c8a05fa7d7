"""The `pullback` command: one sub-command per file, each with `add(subparsers)` and a function that returns the exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pullback import __version__
from pullback.cli import (
    bench_command,
    check_command,
    compare_command,
    draw_command,
    explain_command,
    grads_command,
    info_command,
    train_command,
    tune_command,
    warmup_command,
)
from pullback.cli.surroundings import check_environment, run_guarded
from pullback.nearest import nearest

EXAMPLES = """examples:
  pullback train            train a small network on handwritten digits: is everything there?
  pullback train model.onnx --data train.npz --valid valid.npz --out trained.onnx
  pullback grads model.onnx --picture grads.svg    the training graph of an ONNX model
  pullback check            hold the library against TF.js, ONNX Runtime and mathematics
  pullback check --json     the same, for a program to read
  pullback explain conv --input 4x30x30x24 --filter 3 --out 48 --stride 2
  pullback bench conv --input 4x30x30x24 --filter 3 --out 48 --stride 2
  pullback bench --list     what can be timed here, and against whom
  pullback bench --op avg_pool_grad --peer torch
  pullback compare train:example   a PyTorch model's training step, on PyTorch's kernels and on ours
  pullback warmup           compile the kernels ahead, once for a version and a machine
  pullback tune             measure this CPU, so that kernels are chosen by its own figures (two seconds)
  pullback info             CPU, threads, kernel cache, backends and versions on this machine
  pullback draw max_pool --input 6x6 --window 3 --stride 2
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status; whatever stands in the way is one sentence on stderr."""
    return run_guarded(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="pullback",
        description="Exact gradients of convolution and pooling, and training of ONNX models, on the CPU.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pullback {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands = (
        train_command,
        grads_command,
        check_command,
        explain_command,
        bench_command,
        compare_command,
        draw_command,
        warmup_command,
        tune_command,
        info_command,
    )
    for command in commands:
        command.add(subparsers)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        chosen = next(each for each in subparsers.choices.values() if each.get_default("run") is options.run)
        print(f"{chosen.prog}: {_unknown(unknown[0], chosen)}", file=sys.stderr)
        return 2
    try:
        check_environment()
    except ValueError as error:
        print(f"pullback: {error}", file=sys.stderr)
        return 2
    status: int = options.run(options)
    return status


def _unknown(word: str, parser: argparse.ArgumentParser) -> str:
    """What to say of an argument that a command does not take."""
    more = f"{parser.prog} --help shows all"
    if not word.startswith("-"):
        return f"{word!r} is one argument too many: files and values follow their option; {more}"
    name = word.partition("=")[0]
    known = [each for action in parser._actions for each in action.option_strings if each.startswith("--")]
    meant = nearest(name, known)
    return f"there is no option {name}; " + (f"did you mean {meant}? {more}" if meant else more)
