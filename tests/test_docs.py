"""The pages of docs/ against the code: what is mended has its section, what is public its place, commands exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import pullback
from pullback import cli, golden, onnx, ort, tfjs
from pullback.ort.kernels import MENDED

ROOT = Path(__file__).parents[1]
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module", autouse=True)
def hooks():
    """The modules that MkDocs runs while it builds the site."""
    folder = str(ROOT / "docs" / "hooks")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


def test_every_kernel_of_tfjs_that_is_mended_has_a_section():
    import tfjs_table

    def differs(kernel, case):
        inputs, attrs = golden.arrays(case["inputs"]), case["attrs"]
        with tfjs.quirks():
            upstream = tfjs_table.answer(kernel, inputs, attrs)
        return tfjs_table.answer(kernel, inputs, attrs) != upstream

    with_section = set(tfjs_table.links_by_kernel(tfjs_table.DEFECTS, tfjs_table.called))
    kernels = {config.kernel_name for config in tfjs.get_kernels_for_backend("reference")}
    with pullback.backend("reference"), np.errstate(all="ignore"):
        recorded = kernels & set(golden.names("tfjs"))
        mended = {kernel for kernel in recorded if any(differs(kernel, case) for case in golden.load("tfjs", kernel))}
    assert mended <= with_section <= kernels
    assert "MaxPool" not in mended  # some are as they were


def test_the_table_of_tfjs_says_what_kernels_read():
    import tfjs_table

    with pullback.backend("reference"), np.errstate(all="ignore"):
        assert tfjs_table.asked_for("AvgPoolGrad") == (["dy", "input"], ["dimRoundingMode", "filterSize", "strides", "pad"])
        assert tfjs_table.default("AvgPoolGrad", "pad") is None
        assert tfjs_table.default("MaxPool3DGrad", "dataFormat") == "NDHWC"
        assert tfjs_table.default("DepthwiseConv2dNative", "dilations") == 1


def test_the_table_of_ort_has_a_row_for_each_operator():
    import ort_table

    with pullback.backend("reference"):
        rows = [line for line in ort_table.table().splitlines() if line.startswith("| <code>")]
    assert [row.replace("<wbr>", "").split("</code>")[0] for row in rows] == [f"| <code>{name}" for name in ort_table.SCHEMAS]
    by_name = dict(zip(ort_table.SCHEMAS, rows, strict=True))
    assert "`storage_order` = 0" in by_name["MaxPoolGrad"]
    assert "`dilations` = 1 (since 19)" in by_name["AveragePool"]
    with_section = set(ort_table.links_by_kernel(ort_table.DEFECTS, ort_table.called))
    assert {row[1] for row in MENDED if row[1].endswith("Grad")} <= with_section


def test_the_table_of_onnx_says_which_inputs_have_gradients():
    pytest.importorskip("onnx", reason="onnx is not installed: pip install 'pullback[onnx]'")
    import onnx_table

    assert {"Conv", "MaxPool", "BatchNormalization"} <= set(onnx_table.trained())
    assert "Shape" in onnx_table.run_only()
    assert onnx_table.gradient("Conv") == "`X`, `W`, `B`"
    assert onnx_table.gradient("Reshape") == "`data`"
    assert "MaxPoolGrad" not in (*onnx_table.trained(), *onnx_table.run_only())  # of training graphs alone
    assert "ConvGrad" in onnx_table.nodes("com.microsoft")


def test_a_public_name_without_a_place_is_found():
    from public_names import missing_names, public_names

    everything = [f'<h2 id="{name}">' for name in public_names()]
    assert missing_names(everything) == []
    assert missing_names(page for page in everything if ".ort.conv_grad" not in page) == ["pullback.ort.conv_grad"]
    assert {f"pullback.{name}" for name in pullback.__all__} <= set(public_names())
    assert {f"pullback.ort.{name}" for name in ort.__all__} <= set(public_names())
    assert {f"pullback.onnx.{name}" for name in onnx.__all__} <= set(public_names())


def found_in_pages(pattern):
    """What a pattern finds at the start of code for a shell on any page: inline, in blocks, in indented lines."""
    found = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        code = re.findall(r"`([^`\n]+)`|^ {4}(\S.*)$", text, re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines()] + [part for both in code for part in both if part]
        found |= {match.groups() for line in lines if (match := re.match(pattern, line))}
    return found


def test_targets_and_files_exist():
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {target for (target,) in found_in_pages(r"make ([a-z][a-z0-9-]*)")}
    assert {"docs", "bench"} <= named <= targets
    files = {file for (file,) in found_in_pages(r"(?:python|torchrun) .*?((?:examples|tools)/\w+\.py)")}
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_commands_exist(capsys):
    commands = found_in_pages(r"pullback ([a-z]+(?: (?:plot|scaling|kernels|page|cliffs|schedule)\b)?)(.*)")
    assert {"check", "info", "warmup", "bench", "bench plot"} <= {words for words, _ in commands}
    for words, rest in commands:
        with pytest.raises(SystemExit) as end:
            cli.main([*words.split(), "--help"])
        assert end.value.code == 0
        help_text = capsys.readouterr().out
        assert [option for option in re.findall(r"(?<= )--[a-z-]+", rest) if option not in help_text] == [], words
