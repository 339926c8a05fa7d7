"""Shapes of one's own: on the command line of `pullback bench` and `pullback explain`, and in short case lists."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.bench import limits, results
from pullback.bench.cases import load_cases, parse_case
from pullback.cli import main
from pullback.cli.bench_shapes import add_shape_options, case_of

QUICK = ["--backend", "reference", "--peer", "none", "--seconds", "0", "--threads", "1"]
CONV = ["--input", "2x7x6x4", "--filter", "3", "--out", "6"]


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own limits take a while to measure."""
    monkeypatch.setattr(limits, "_roofs", lambda: None)


def case(kind: Any, *arguments: str) -> Any:
    parser = argparse.ArgumentParser()
    add_shape_options(parser, kind)
    return case_of(kind, parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("kind", "line", "text", "output"),
    [
        ("conv", "--input 4x30x30x24 --filter 3 --out 48 --stride 2", "4x30x30x24-3x3-48-s2", (4, 14, 14, 48)),
        ("conv", "--input 4x24x30x20 --layout channels_first --filter 3x5 --out 48", "4x30x20x24-3x5-48", (4, 28, 16, 48)),
        ("conv", "--input 8x64x4 --filter 9 --out 8 --groups 2 --dilation 2", "8x64x4-9-8-d2-g2", (8, 48, 8)),
        ("conv", "--input 1x8x8x8x2 --filter 3 --out 2 --padding 1", "1x8x8x8x2-3x3x3-2-p1", (1, 8, 8, 8, 2)),
        ("pool", "--input 8x56x56x64 --window 3 --stride 2 --padding same", "8x56x56x64-3x3-s2-p0:1", (8, 28, 28, 64)),
        ("pool", "--input 8x9x9x64 --window 3", "8x9x9x64-3x3-s3", (8, 3, 3, 64)),
        (
            "pool",
            "--input 8x9x9x64 --window 3x2 --padding 0:1x1 --dilation 2x1",
            "8x9x9x64-3x2-s3x2-p0:1x1-d2x1",
            (8, 2, 5, 64),
        ),
    ],
)
def test_a_shape_from_its_options(kind: Any, line: str, text: str, output: tuple[int, ...]) -> None:
    found = case(kind, *line.split())
    assert (found.name, found.shape_text, found.output_shape) == (text, text, output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["conv", "--input", "4x30", "--filter", "3", "--out", "4"], "--input 4x30 has 2 sizes"),
        (
            ["conv", "--input", "4x30x4", "--filter", "3x3", "--out", "4"],
            "--input 4x30x4: --filter is (3, 3), which has 2 entries",
        ),
        (["conv", *CONV, "--groups", "4"], "4 groups do not divide 4 input and 6 output channels"),
        (["conv", *CONV, "--stride", "1x2x3"], "stride is (1, 2, 3), which has 3 entries for 2 spatial axes"),
        (["conv", "--input", "1x4x4x4", "--filter", "5", "--out", "4"], "spans 5 cells"),
        (["conv", *CONV, "--op", "max_pool"], "--op 'max_pool': there are conv,"),
        (["conv", *CONV, "--kernel", "abacus"], "--kernel 'abacus': conv has "),
        (["conv", *CONV[:-1], "0"], "c_out is 0"),
    ],
)
def test_what_does_not_fit_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("bench", "explain"):
        assert main([command, *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"), [("--input", "4,30,30"), ("--filter", "3x"), ("--padding", "some"), ("--stride", "-1")]
)
def test_what_is_no_size_is_refused_by_name(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "conv", *CONV, f"{option}={value}"])
    assert f"argument {option}: '{value}'" in capsys.readouterr().err


def test_a_shape_is_timed_in_its_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "run.json"
    layouts = ["--layout", "channels_first", "--layout", "channels_last"]
    arguments = ["--input", "2x4x7x6", "--filter", "3", "--out", "6", "--dtype", "float64", *layouts]
    # What is not of the shape may also stand before the command.
    assert (
        main(
            ["bench", "--op", "conv", "--seconds", "0", "conv", *arguments, *QUICK[:4], "--threads", "1", "--json", str(saved)]
        )
        == 0
    )
    found = results.load(saved)
    name = "2x7x6x4-3x3-6"
    assert [(r.op, r.case, r.layout, r.dtype) for r in found.rows] == [
        ("conv", name, "channels_first", "float64"), ("conv", name, "channels_last", "float64"),
    ]  # fmt: skip
    assert found.settings == {"threads": 1, "seconds": 0.0, "backend": "reference"}
    assert found.rows[0].ours.kernel == "reference/taps"
    assert name in capsys.readouterr().out


def test_pooling_is_timed_by_all_its_ops(tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    assert main(["bench", "pool", "--input", "2x7x6x4", "--window", "2", *QUICK, "--json", str(saved)]) == 0
    found = results.load(saved)
    assert len(found.rows) == 9
    assert all(row.ours.samples and row.ours.error == pytest.approx(0, abs=1e-6) for row in found.rows)
    assert {row.ours.kernel for row in found.rows if row.op == "max_pair"} == {"reference/taps + reference/taps"}


def test_a_kernel_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def run(problem: Any, *arrays: Any) -> Any:
        calls.append(problem.op)
        with pb.backend("reference"):
            return pb.conv(*arrays)

    pb.register_kernel("conv", "spare", "first", lambda _: None, lambda *_: pytest.fail("another kernel was asked for"))
    pb.register_kernel("conv", "spare", "second", lambda p: None if p.groups == 1 else "it is for one group", run)
    try:
        saved = tmp_path / "run.json"
        timed = ["bench", "conv", *CONV, "--backend", "spare", "--peer", "none", "--seconds", "0", "--kernel", "second"]
        assert main([*timed, "--json", str(saved)]) == 0
        found = results.load(saved)
        assert [(row.op, row.ours.kernel) for row in found.rows] == [
            ("conv", "spare/second")
        ]  # the gradients have none so named
        assert found.settings["kernel"] == "second"
        assert calls
        assert main([*timed, "--groups", "2"]) == 1  # nothing was timed
        assert "not timed pullback: the kernel second refuses: it is for one group (conv;" in capsys.readouterr().out
        assert main([*timed, "--op", "conv_grad_input"]) == 2
        assert "--kernel 'second': conv_grad_input has taps on backend 'spare'" in capsys.readouterr().err
    finally:
        for name in ("first", "second"):
            pb.unregister_kernel("conv", "spare", name)


def test_explain_prints_what_the_library_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pool", "--input", "2x7x6x4", "--window", "2", "--backend", "reference", "--op", "avg_pool"]) == 0
    said = capsys.readouterr().out
    assert (
        said == "avg_pool (2, 7, 6, 4) -> (2, 3, 3, 4) float32 channels_last, backend 'reference'\n  runs      reference/taps\n"
    )


@pytest.mark.parametrize(("kind", "shape"), [("conv", CONV), ("pool", ["--input", "2x7x6x4", "--window", "2"])])
def test_explain_takes_all_ops_of_the_family(kind: str, shape: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", kind, *shape, "--dtype", "float64", "--layout", "channels_last"]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    ops = [block.split()[0] for block in blocks]
    assert len(set(ops)) == len(ops) == {"conv": 3, "pool": 7}[kind]
    assert all("float64 channels_last" in block and "  runs " in block for block in blocks)


@pytest.mark.parametrize("command", ["bench", "explain"])
def test_a_shape_beyond_memory_is_one_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    huge = ["--input", "1000000x100000x100000x100", "--filter", "3", "--out", "1", "--backend", "reference", "--op", "conv"]
    assert main([command, "conv", *huge, *(["--peer", "none"] if command == "bench" else [])]) == 1
    assert "fit into memory" in capsys.readouterr().err.splitlines()[-1]


def test_shapes_and_lists_do_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--case", "stem7x7", "conv", *CONV]) == 2
    assert "--case" in capsys.readouterr().err


def test_a_case_of_a_list_needs_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    short = {"size": [30, 30], "c_in": 24, "c_out": 48, "kernel": 3}
    path.write_text(json.dumps({"conv": [short], "pool": [{"name": "p", "size": [9], "channels": 2, "window": [3]}]}))
    conv, pool = load_cases(path)
    assert conv == parse_case(
        "conv",
        {**short, "name": "1x30x30x24-3x3-48", "rank": 2, "batch": 1, "stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    )
    assert (pool.name, pool.window.stride, pool.batch) == ("p", (3,), 1)  # a pooling steps by its window, as the ops do


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"conv": [{"name": "a", "size": [5], "c_in": 1, "c_out": 1}]}, "case 'a': the key 'kernel' is missing"),
        ({"conv": [{"size": [5], "c_in": 1, "c_out": 1}]}, r"conv case 1 \(without a name\): the key 'kernel'"),
        (
            {"pool": [{"name": "a", "size": [5], "channels": "2", "window": 2}]},
            "case 'a': channels must be an integer, not '2'",
        ),
        ({"pool": [{"name": "a", "size": 5, "channels": 2, "window": 2}]}, "case 'a': size is 5; it must be a list"),
        (
            {"pool": [{"name": "a", "size": [5], "channels": 2, "window": 2, "groups": 2}]},
            "case 'a': a pool case has no key 'groups'",
        ),
        (
            {"pool": [{"name": "a", "size": [5], "channels": 2, "window": 2, "padding": "sam"}]},
            "case 'a': unknown padding 'sam'",
        ),
        ({"pool": [{"name": "a", "size": [5], "channels": 0, "window": 2}]}, "case 'a': channels is 0"),
        ({"pool": [7]}, "pool case 1 is 7"),
        ({"pools": []}, "lists conv and pool"),
    ],
)
def test_a_bad_case_of_a_list_is_named_with_its_key(lists: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(lists))
    with pytest.raises(ValueError, match=message):
        load_cases(path)
