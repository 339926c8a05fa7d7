"""Tables and progress bars: with rich where it is installed (extra `cli`), in plain text where it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

HAS_RICH = find_spec("rich") is not None


@contextmanager
def progress(title: str, total: int, *, in_background: bool = True) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr; the yielded function advances it by one and shows a label.

    Without `in_background` it is redrawn only then, by the caller's own thread.
    """
    if HAS_RICH:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=in_background) as bar:
            task = bar.add_task("", total=total)
            yield lambda label: bar.update(task, advance=1, description=label, refresh=not in_background)
        return
    print(f"{title}: {total} steps (pip install 'pullback[cli]' shows a progress bar)", file=sys.stderr)
    yield lambda label: None


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, texts: bool = False) -> None:
    """A table on stdout; the first and the last column are text, the others numbers, or with `texts` all are text."""
    if HAS_RICH:
        from rich import box
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
        for column, name in enumerate(header):
            last = column == len(header) - 1  # the only one that may wrap: it is the one with sentences in it
            table.add_column(name, justify="left" if texts or last or column == 0 else "right", no_wrap=not last)
        for row in rows:
            table.add_row(*row)
        console = Console()
        if not console.is_terminal or console.width < 118:
            console = Console(width=118)  # better a wrapped line in a narrow terminal than names cut short
        with console.capture() as text:
            console.print(table)
        print(text.get(), end="")  # ours: rich has an answer of its own to a closed pipe
        return
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    print(title)
    for line in (header, *rows):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def size_text(count: int) -> str:
    """A number of bytes in words."""
    scale = min((max(count, 1).bit_length() - 1) // 10, 3)
    return f"{count / 1024**scale:.{0 if scale == 0 else 1}f} {('bytes', 'KiB', 'MiB', 'GiB')[scale]}"
