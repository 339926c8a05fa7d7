"""`pullback bench plot` and `pullback bench page`: a saved run again, as a picture or as a page of a documentation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pullback.cli.bench_options import add_theme, check_files, narrow
from pullback.cli.bench_run import draw_pictures

PLOT_EXAMPLES = """examples:
  pullback bench plot results.json ratios.svg                       against the fastest peer of each layout
  pullback bench plot results.json convolution.svg --family conv --peer torch --theme both
  pullback bench plot results.json gradient.png --op conv_grad_input --theme dark
  pullback bench plot scaling.json scaling.svg                      of pullback bench scaling
"""
PAGE_EXAMPLES = """examples:
  pullback bench page results.json page.md          machine, versions and one table row for each op, case and layout
  pullback bench page results.json table.html       the table alone
"""


def add(actions: Any) -> None:
    plot = actions.add_parser(
        "plot", help="draw a run again from its JSON", description="Draws a saved run.", epilog=PLOT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    plot.add_argument("results", type=Path, help="what --json wrote")
    plot.add_argument("picture", type=Path, help="the .png or .svg file to write")
    plot.add_argument("--family", choices=("conv", "pool"), help="only the ops of convolution or of pooling")
    plot.add_argument("--op", action="append", metavar="OP", default=None, help="only this op (may be repeated)")
    plot.add_argument(
        "--peer", metavar="PEER", default=None, help="against this peer (default: the fastest of the row's layout)"
    )
    add_theme(plot)
    plot.set_defaults(run=run_plot)
    page = actions.add_parser(
        "page", help="a table for a documentation, from a run's JSON", description="Writes a saved run as Markdown or HTML.",
        epilog=PAGE_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    page.add_argument("results", type=Path, help="what --json wrote")
    page.add_argument("page", type=Path, help="the .md or .html file to write")
    page.set_defaults(run=run_page)


def run_plot(options: argparse.Namespace) -> int:
    from pullback.bench import plot, results, scaling, scaling_plot

    try:
        check_files(None, options.picture)
        stretched = scaling.load(options.results)
        if stretched is not None:
            draw_pictures(scaling_plot.draw, stretched, options.picture, options.theme)
            return 0
        found = results.load(options.results)
        if options.peer is not None:
            narrow("--peer", [options.peer], found.peers)
        narrow("--op", options.op, list(dict.fromkeys(row.op for row in found.rows)))
        found = plot.narrowed(found, options.family, options.op)
        draw_pictures(lambda run, path, theme: plot.draw(run, path, theme, options.peer), found, options.picture, options.theme)
    except (ValueError, OSError) as error:
        print(f"pullback bench plot: {error}", file=sys.stderr)
        return 2
    return 0


def run_page(options: argparse.Namespace) -> int:
    from pullback.bench import page, results

    try:
        check_files(options.page, None)
        options.page.write_text(page.written(results.load(options.results), options.page.suffix))
    except (ValueError, OSError) as error:
        print(f"pullback bench page: {error}", file=sys.stderr)
        return 2
    return 0
