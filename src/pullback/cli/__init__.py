"""The `pullback` command: one sub-command per file, each with `add(subparsers)` and a function that returns the exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pullback import __version__
from pullback.cli import bench_command, check_command, info_command, warmup_command

EXAMPLES = """examples:
  pullback check            hold the library against TF.js, ONNX Runtime and mathematics
  pullback check --json     the same, for a program to read
  pullback bench --list     what can be timed here, and against whom
  pullback bench --op avg_pool_grad --peer torch
  pullback warmup           compile the kernels ahead, once for a version and a machine
  pullback info             CPU, threads, kernel cache, backends and versions on this machine
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="pullback",
        description="Exact gradients of convolution and pooling for NumPy arrays.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pullback {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (check_command, bench_command, warmup_command, info_command):
        command.add(subparsers)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        return 141  # as a shell says it of a command that SIGPIPE ended
    return status
