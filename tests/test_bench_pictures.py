"""The benchmark's pictures and page: what they show of a run, in both themes, and what they refuse."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bench_fakes import made, row

from pullback.bench import page, plot, plot_style, results
from pullback.bench.results import LOSS, Results
from pullback.cli import main


@pytest.fixture
def found() -> Results:
    return made(
        row("channels_last", 1.0, torch=4.0, jax=8.0),
        row("channels_first", 1.0, torch=0.5, jax=2.0),
        row("channels_last", 1.0, op="avg_pool", case="p", torch=0.97),
        row("channels_last", 1.0, op="avg_pool", case="q", torch=1.0),
    )


def texts(picture: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", picture.read_text())


def test_picture_of_a_run(found: Results, tmp_path: Path) -> None:
    picture = tmp_path / "ratios.svg"
    plot.draw(found, picture)
    shown = texts(picture)
    for text in ("conv", "avg_pool", "a", "p", "q", "last 4.00", "first 0.50", "last 0.98", "0.50", f"we lose (under {LOSS})"):
        assert text in shown, text
    assert "0.97" not in shown  # no loss, and so without a number
    assert not any("busy" in text for text in shown)
    drawn = picture.read_text()
    theme = plot_style.THEMES["light"]
    for colour in (theme.background, theme.losing, *theme.layouts.values()):
        assert colour in drawn


def test_a_busy_row_is_drawn_hollow_and_explained(found: Results, tmp_path: Path) -> None:
    found.rows[0].entries["torch"].samples = [1.0, 4.0, 9.0]
    plot.draw(found, tmp_path / "busy.svg")
    assert "busy: not to be trusted" in texts(tmp_path / "busy.svg")


def test_picture_against_one_peer_and_of_one_family(found: Results, tmp_path: Path) -> None:
    picture = tmp_path / "jax.svg"
    plot.draw(plot.narrowed(found, "conv"), picture, "dark", peer="jax")
    shown = texts(picture)
    assert "Speed against JAX 3" in shown
    assert {"last 8.00", "first 2.00"} <= set(shown)
    assert "avg_pool" not in shown
    assert plot_style.THEMES["dark"].background in picture.read_text()


def test_text_is_large_enough_at_the_width_of_a_page(found: Results, tmp_path: Path) -> None:
    picture = tmp_path / "sizes.svg"
    plot.draw(found, picture)
    drawn = picture.read_text()
    [width] = re.findall(r'<svg [^>]*?width="([0-9.]+)pt"', drawn)
    shrunk = plot_style.WIDTH_PX / float(width)  # a picture's point in pixels of the page
    assert min(float(size) * shrunk for size in re.findall(r"font(?:-size)?: (?:bold |700 )?([0-9.]+)px", drawn)) >= 9


@pytest.mark.parametrize(("low", "high", "ticks"), [(0.4, 20, [0.5, 1, 2, 4, 8, 16]), (0.1, 700, [0.25, 1, 4, 16, 64, 256])])
def test_ticks_are_few_and_have_1_among_them(low: float, high: float, ticks: list[float]) -> None:
    assert plot._ticks(low, high) == ticks


def test_commands_draw_saved_runs(found: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, picture = tmp_path / "run.json", tmp_path / "again.png"
    results.save(found, saved)
    assert main(["bench", "plot", str(saved), str(picture), "--theme", "both", "--op", "conv", "--peer", "torch"]) == 0
    for path in (picture, tmp_path / "again-dark.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    for wrong, message in ((["--op", "conv3"], "--op 'conv3'"), (["--peer", "theano"], "--peer 'theano'")):
        assert main(["bench", "plot", str(saved), str(picture), *wrong]) == 2
        assert message in capsys.readouterr().err


def test_refuses_what_it_cannot_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="nothing to plot"):
        plot.draw(made(row("channels_last", 1.0)), tmp_path / "empty.svg")
    other = tmp_path / "other.json"
    other.write_text("[]")
    assert main(["bench", "plot", str(other), str(tmp_path / "x.svg")]) == 2
    assert main(["bench", "--plot", "ratios.pdf"]) == 2
    assert "ratios.pdf" in capsys.readouterr().err


class Table(HTMLParser):
    """The rows of a page's table, each a list of (what a cell shows, its data-sort)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[list[str]]] = []
        self.classes: list[str] = []
        self.table: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "table":
            self.table = given
        elif tag == "tr":
            self.rows.append([])
            self.classes.append(given.get("class") or "")
        elif tag in ("td", "th"):
            self.rows[-1].append(["", given.get("data-sort") or ""])

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1][0] += data.strip()


def test_page_has_a_sortable_row_for_every_row(found: Results, tmp_path: Path) -> None:
    found.rows[2].entries["torch"].samples = [0.5, 0.97, 2.0]
    found.rows[3].limit_seconds = 0.25
    found.rows[3].case = "<q>"
    saved, written = tmp_path / "run.json", tmp_path / "page.md"
    results.save(found, saved)
    assert main(["bench", "page", str(saved), str(written)]) == 0
    text = written.read_text()
    assert "abacus" in text
    assert "PyTorch 2, JAX 3" in text
    assert "1 of 4 rows are busy" in text
    parsed = Table(text)
    assert "sortable" in (parsed.table["class"] or "")
    header, *lines = [[cell[0] for cell in line] for line in parsed.rows]
    assert header == ["op", "case", "layout", "kernel", "time", "PyTorch", "JAX", "limit", "spread", "marks"]
    assert lines[0][:7] == ["conv", "a", "last", "cpu/direct", "1.00\N{NO-BREAK SPACE}s", "4.00", "8.00"]
    assert [line[-1] for line in lines] == ["", "loss: PyTorch", "busy: PyTorch", ""]
    assert (lines[2][5], lines[2][6]) == ("0.97 busy", "-")
    assert (lines[3][1], lines[3][7]) == ("<q>", "25%")
    assert [parsed.rows[1][place][1] for place in (4, 5, 6)] == ["1", "4", "8"]
    assert parsed.classes[1:] == ["row", "row loss", "row busy", "row"]


def test_page_or_table_by_suffix(found: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert page.written(found, ".html").startswith("<table")
    saved = tmp_path / "run.json"
    results.save(found, saved)
    assert main(["bench", "page", str(saved), str(tmp_path / "page.pdf")]) == 2
    assert ".pdf" in capsys.readouterr().err
