"""Pictures of window problems: what they show is what the ops compute, in every form, and what cannot be drawn is said."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import pullback as pb
from pullback.cli import main
from pullback.pictures.gallery import EXAMPLES, page, write_gallery
from pullback.pictures.options import EXAMPLES as HELP
from pullback.pictures.panels import number_text
from pullback.pictures.scene import Rectangle, Text

RNG = np.random.default_rng(0)
X = RNG.integers(0, 6, (6, 5)).astype(float)
CALLS: list[tuple[str, Any, dict[str, Any]]] = [
    ("max_pool", 3, {"stride": 2, "padding": "same", "ties": "last"}),
    ("max_pool", (2, 3), {"stride": (1, 2), "dilation": (2, 1), "padding": ((1, 0), (0, 2))}),
    ("avg_pool", 3, {"stride": 2, "padding": 1, "count_include_pad": True}),
    ("avg_pool", 2, {"rounding": "ceil", "padding": ((0, 0), (0, 0)), "divisor": 3}),
]


@pytest.fixture(autouse=True)
def _on_the_reference() -> Any:
    with pb.backend("reference"):
        yield


def values(drawing: Any, name: str) -> list[list[str]]:
    """The numbers of a panel, without padding."""
    rows = [[content.value for content in row if content.value] for row in drawing.panels[name].rows]
    return [row for row in rows if row]


def written(array: Any) -> list[list[str]]:
    return [[number_text(float(value)) for value in row] for row in np.atleast_2d(array)]


@pytest.mark.parametrize(("op", "window", "keywords"), CALLS)
def test_pools_show_what_the_ops_compute(op: str, window: Any, keywords: dict[str, Any]) -> None:
    x = X[None, ..., None]
    y = getattr(pb, op)(x, window, **keywords)
    dy = np.arange(1.0, y.size + 1).reshape(y.shape)
    dx = pb.max_pool_grad(dy, x, window, **keywords) if op == "max_pool" else pb.avg_pool_grad(dy, x.shape, window, **keywords)
    drawing = pb.draw(op, X, window, dy=dy[0, ..., 0], **keywords)
    for name, array in (("x", x), ("y", y), ("dy", dy), ("dx", dx)):
        assert values(drawing, name) == written(array[0, ..., 0]), name


def test_a_convolution_shows_both_gradients() -> None:
    weights = RNG.integers(-2, 3, (3, 2)).astype(float)
    x, f = X[None, ..., None], weights[..., None, None]
    y = pb.conv(x, f, stride=2, padding=1)
    dx = pb.conv_grad_input(np.ones_like(y), f, x.shape, stride=2, padding=1)
    df = pb.conv_grad_filter(np.ones_like(y), x, f.shape, stride=2, padding=1)
    drawing = pb.draw("conv", X, filter=weights, stride=2, padding=1)
    assert values(drawing, "w") == written(weights)
    assert values(drawing, "y") == written(y[0, ..., 0])
    assert values(drawing, "dx") == written(dx[0, ..., 0])
    assert values(drawing, "dw") == written(df[..., 0, 0])


@pytest.mark.parametrize(("op", "window", "keywords"), CALLS)
def test_tags_name_the_windows_that_pay(op: str, window: Any, keywords: dict[str, Any]) -> None:
    """The gradient of one window alone reaches just the cells with its tag."""
    problem = pb.draw(op, X, window, **keywords).problem
    for output in problem.outputs:
        alone = np.zeros_like(problem.y)
        alone[output] = 1
        drawing = pb.draw(op, X, window, dy=alone, **keywords)
        cells = [content for content in drawing.panels["dx"].contents() if content.kind == "cell"]
        assert any(content.value != "0" for content in cells)
        for content in cells:
            assert (problem.label(output) in [tag.label for tag in content.tags]) == (content.value != "0")


def test_divisors_winners_and_ties() -> None:
    drawing = pb.draw("avg_pool", (4, 4), 3, stride=2, padding=((1, 0), (1, 0)))
    assert [content.note for content in drawing.panels["dy"].contents()] == ["÷4", "÷6", "÷6", "÷9"]
    cells = pb.draw("max_pool", [[5, 1, 5], [2, 5, 0]], (2, 2), stride=1).panels["x"]
    shown = [[(tag.label, tag.hollow) for tag in content.tags] for content in cells.contents()]
    assert shown == [[("a", False)], [], [("b", False)], [], [("a", True), ("b", True)], []]
    ignoring = pb.draw("max_pool", [np.nan, 1.0, np.nan, np.nan], 2, nan="ignore")
    assert values(ignoring, "y") == [["1", "-∞"]]
    assert [len(content.tags) for content in ignoring.panels["dx"].contents()] == [0, 1, 0, 0]


def test_cells_around_the_input() -> None:
    kinds = [
        content.kind
        for content in pb.draw("avg_pool", 5, 2, stride=3, padding=((1, 0),), rounding="ceil").panels["x"].contents()
    ]
    assert kinds == ["padding", *["cell"] * 5]
    kinds = [content.kind for content in pb.draw("avg_pool", 5, 2, rounding="ceil").panels["x"].contents()]
    assert kinds == [*["cell"] * 5, "beyond"]
    kinds = [content.kind for content in pb.draw("max_pool", 6, 2, padding=((-1, -2),)).panels["x"].contents()]
    assert kinds == ["cropped", "cell", "cell", "cell", "cropped", "cropped"]


def test_only_the_taps_of_a_dilated_window_are_marked() -> None:
    drawing = pb.draw("max_pool", (5, 5), 2, dilation=2, stride=3, padding=((0, 1), (0, 1)), outline=(0, 0))
    left = drawing.scene.shapes
    squares = [s for s in left if isinstance(s, Rectangle) and s.stroke == "line0" and s.stroke_width == 3 and not s.dashed]
    assert len(squares) == 2 * 4 + 1  # in x and dx, and in the legend
    [x_rows] = re.findall(r"x  input.*?\n(.*?)\n\n", str(drawing), re.DOTALL)
    brackets = [[cell.start() for cell in re.finditer(r"\[", row)] for row in x_rows.splitlines()]
    assert [len(row) for row in brackets] == [2, 0, 2, 0, 0, 0]


def test_phases_pair_weights_with_the_cells_they_reach() -> None:
    """A filter of one weight alone pays the cells of that weight's phase, and no others."""
    for tap in np.ndindex(3, 3):
        weights = np.zeros((3, 3))
        weights[tap] = 1
        drawing = pb.draw("conv", (6, 6), filter=weights, stride=2, padding=1, by="phases")
        own = drawing.panels["w"].rows[tap[0]][tap[1]].name
        cells = [content for content in drawing.panels["dx"].contents() if content.kind == "cell"]
        assert {content.name for content in cells if content.value != "0"} == {own}


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_svg_is_xml_with_the_same_numbers(theme: str) -> None:
    drawing = pb.draw("avg_pool", (5, 4), (3, 2), stride=2, padding="same", theme=theme)
    root = ElementTree.fromstring(drawing.svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("x", "y", "dx", "dy"):
        for content in drawing.panels[name].contents():
            if content.value:
                texts.remove(content.value)  # once for each cell
    assert ("prefers-color-scheme" in drawing.svg) == (theme == "auto")
    assert drawing._repr_svg_() == drawing.svg
    used = set(re.findall(r'class="([^"]*)"', drawing.svg))
    for role in {name for names in used for name in names.split()}:
        assert f".{role}{{" in drawing.svg
    others = pb.draw("avg_pool", (5, 4), (3, 2), stride=2, padding="same", theme=theme, seed=1)
    assert root.get("id") != ElementTree.fromstring(others.svg).get("id")


def test_letters_stay_inside_the_picture() -> None:
    for example in EXAMPLES:
        scene = example.draw("light").scene
        for text in (shape for shape in scene.shapes if isinstance(shape, Text)):
            wide = len(text.text) * text.size * 0.5
            assert text.x + (wide if text.start else wide / 2) <= scene.width
            assert text.size >= 10


def test_the_text_picture() -> None:
    drawing = pb.draw("max_pool", [[1, 4, 2], [3, 0, 4]], 2, stride=1, padding=((0, 1), (0, 0)), dy=[[1, 2], [3, 4]])
    text = str(drawing)
    assert "[ 1]    [ 4]ab    2 " in text
    assert "4 d=b" in text
    assert "a: 4  b: 4" in text
    assert "░░" in text
    assert repr(drawing) == "<Drawing of max_pool(x, 2, stride=1, padding=((0, 1), (0, 0)))>"
    [rows] = re.findall(r"dx  gradient of x.*?\n(.*?)\n\n", text, re.DOTALL)
    numbers = [[int(n) for n in re.findall(r"[\[ ](\d+)[\] ]", row)] for row in rows.splitlines()]
    assert [row[:3] for row in numbers[:2]] == drawing.problem.dx.astype(int).tolist()


def test_sizes_are_filled_from_the_seed() -> None:
    first, again, other = (pb.draw("max_pool", (6, 6), 3, seed=seed).problem.x for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(np.unique(first)) < first.size  # so that there are ties
    assert pb.draw("max_pool", (4, 4), 2).problem.x.shape == (4, 4)
    for values_given in ([4, 4], (4.0, 4.0), np.array([4, 4])):
        assert pb.draw("max_pool", values_given, 2).problem.x.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("arguments", "keywords", "sentence"),
    [
        (("max_pool", (17, 4), 3), {}, "beyond 16 along a side .* draw a part of it"),
        (("max_pool", (16, 4), 3), {"padding": 1}, "x with its padding is 18x6"),
        (("max_pool", (4, 4), 2), {"padding": 1000}, "the output is 1002x1002"),
        (("max_pool", np.ones((1, 4, 4, 1)), 2), {}, r"take x\[0, ..., 0\]"),
        (("max_pool", (0, 4), 2), {}, "holds no cell"),
        (("min_pool", (4, 4), 2), {}, "op is 'min_pool'; it must be one of"),
        (("max_pool", (4, 4)), {}, "needs a window"),
        (("max_pool", (4, 4), 2), {"divisor": 2}, "divisor belongs to avg_pool"),
        (("max_pool", (4, 4), 2), {"filter": [[1]]}, "filter belongs to conv"),
        (("max_pool", (4, 4), 2), {"by": "phases"}, "has no weights"),
        (("max_pool", (4, 4), 2), {"theme": "pink"}, "theme is 'pink'"),
        (("max_pool", (4, 4), 2), {"outline": (2, 0)}, "no output of"),
        (("max_pool", (4, 4), 2), {"dy": [1, 2]}, r"dy has shape \(2,\)"),
        (("conv", (4, 4)), {}, "needs a filter"),
        (("conv", (4, 4)), {"filter": [1, 2]}, "give both the same axes"),
    ],
)
def test_what_cannot_be_drawn_is_said(arguments: tuple[Any, ...], keywords: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        pb.draw(*arguments, **keywords)


def test_words_are_no_numbers() -> None:
    with pytest.raises(TypeError, match="must hold real numbers"):
        pb.draw("max_pool", ["a", "b"], 2)


def test_the_command_prints_or_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "draw",
        "max_pool",
        "--input",
        "4x4",
        "--window",
        "2",
        "--dilation",
        "2",
        "--padding",
        "0:1x0:1",
        "--ties",
        "last",
    ]
    assert main(arguments) == 0
    drawn = pb.draw("max_pool", (4, 4), 2, dilation=2, padding=((0, 1), (0, 1)), ties="last")
    assert capsys.readouterr().out == f"{drawn}\n"
    assert main([*arguments, "-o", str(tmp_path / "a.svg")]) == 0
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == drawn.svg
    assert main([*arguments, "-o", str(tmp_path / "a.gif")]) == 2
    assert main(["draw", "max_pool", "--input", "40x40", "--window", "2"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 2)
    assert err.startswith("pullback draw: a picture is a .svg or .png file, not 'a.gif'\npullback draw: x is 40x40")
    for bad in (["--input", "1,2;3"], ["--input", "4x4", "--window", "two"], ["--input", "4x4", "--padding", "some"]):
        with pytest.raises(SystemExit):
            main(["draw", "max_pool", "--window", "2", *bad])


def test_the_examples_of_the_help_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line)[1:] for line in HELP.splitlines() if line.startswith("  pullback draw")]
    assert len(commands) > 5
    assert [main(command) for command in commands] == [0] * len(commands)
    assert capsys.readouterr().err == ""


def test_a_png_has_twice_the_pixels(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawing = pb.draw("max_pool", 5, 2, padding=1, dilation=2)
    drawing.save(tmp_path / "a.png")
    head = (tmp_path / "a.png").read_bytes()[:24]
    assert head[1:4] == b"PNG"
    size = [int.from_bytes(head[at : at + 4], "big") for at in (16, 20)]
    assert size == [pytest.approx(2 * side, abs=1) for side in (drawing.scene.width, drawing.scene.height)]


def test_a_png_without_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib, or save it as .svg"):
        pb.draw("max_pool", 5, 2).save(tmp_path / "a.png")


def test_importing_the_library_loads_nothing_that_draws() -> None:
    code = (
        "import sys, pullback; print([m for m in sys.modules if m.startswith('pullback.pictures.')], 'draw' in dir(pullback))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[] True\n"


def test_the_gallery_and_its_page_agree(tmp_path: Path) -> None:
    """`python -m pullback.pictures.gallery` writes the page."""
    assert (Path(__file__).parents[1] / "docs" / "gallery.md").read_text(encoding="utf-8") == page()
    write_gallery(tmp_path / "new")
    files = {path.name for path in (tmp_path / "new").iterdir()}
    assert files == {f"{example.name}-{theme}.svg" for example in EXAMPLES for theme in ("light", "dark")}
    assert set(re.findall(r"gallery/([^#)]*)", page())) == files
