"""`pullback check`: everything recorded passes, a wrong kernel or a wrong record is noticed, and the command tells it."""

import json

import numpy as np
import pytest

from pullback import check, golden, tfjs
from pullback.check import compare, identities, ort_goldens, tfjs_goldens
from pullback.cli import main


@pytest.fixture(scope="module")
def rows():
    ticks = []
    found = check.run(ticks.append)
    assert len(ticks) == check.size()
    return found


def test_nothing_fails(rows):
    assert [failure for row in rows for failure in row.failures] == []


def test_a_quick_check_takes_one_case_in_eight_of_every_kernel(rows):
    ticks = []
    quick = check.run(ticks.append, check.QUICK)
    assert len(ticks) == check.size(check.QUICK) < check.size() / 6
    assert [failure for row in quick for failure in row.failures] == []
    assert {row.kernel for row in quick} >= {
        *tfjs_goldens.kernels(),
        "MaxPoolGrad",
        "AveragePoolGrad",
        "ConvGrad",
        "conv_grad_input",
    }


def test_every_recorded_kernel_has_a_row(rows):
    kernels = {row.kernel for row in rows}
    assert set(tfjs_goldens.kernels()) <= kernels
    assert {"MaxPool", "MaxPoolGrad", "AveragePool", "AveragePoolGrad", "Conv", "ConvGrad"} <= kernels
    assert sum(row.total for row in rows) == check.size()


def test_known_defects_are_mended_with_a_proof(rows):
    proofs = {(row.system.split()[0], row.kernel): set(row.proofs) for row in rows}
    assert "adjoint" in proofs["TensorFlow.js", "AvgPoolGrad"]
    assert "finite difference" in proofs["TensorFlow.js", "MaxPool3DGrad"]
    assert "adjoint" in proofs["ONNX", "AveragePoolGrad"]


def test_a_wrong_record_fails():
    case = next(case for case in golden.load("tfjs", "MaxPoolGrad") if "output" in case)
    case["output"]["values"][0] += 1
    assert tfjs_goldens.judge("MaxPoolGrad", case).verdict == "failed"


def test_a_kernel_that_is_wrong_by_default_fails(monkeypatch):
    real = tfjs.run_kernel
    monkeypatch.setattr(tfjs, "run_kernel", lambda name, inputs, attrs: real(name, inputs, attrs) * np.float32(1.001))
    case = next(case for case in golden.load("tfjs", "AvgPoolGrad") if "output" in case)
    assert tfjs_goldens.judge("AvgPoolGrad", case).verdict == "failed"


def test_an_answer_where_upstream_refuses_fails(monkeypatch):
    monkeypatch.setattr(tfjs, "run_kernel", lambda name, inputs, attrs: np.zeros(1, np.float32))
    case = next(case for case in golden.load("tfjs", "MaxPoolGrad") if "error" in case)
    assert tfjs_goldens.judge("MaxPoolGrad", case).verdict == "failed"


def test_proofs_reject_a_wrong_gradient():
    rng = np.random.default_rng(0)
    matrix, dy = rng.standard_normal((4, 6)), rng.standard_normal(4)
    assert compare.is_adjoint(lambda v: matrix @ v, dy, matrix.T @ dy)
    assert not compare.is_adjoint(lambda v: matrix @ v, dy, matrix.T @ dy * 1.01)
    x = rng.standard_normal(6)
    assert compare.is_slope(lambda v: matrix @ v, x, dy, matrix.T @ dy)
    assert not compare.is_slope(lambda v: matrix @ v, x, dy, matrix.T @ dy * 1.01)


@pytest.mark.parametrize("ties", ["first", "last"])
def test_ranks_keep_the_winners_and_have_no_ties(ties):
    x = np.array([[2.0, 2.0, np.nan], [1.0, 2.0, -np.inf]])
    places = compare.ranks(x, ties)
    assert np.nanargmax(places) == (0 if ties == "first" else 4)
    numbers = places[~np.isnan(places)]
    assert len(set(numbers)) == len(numbers)


def test_sampled_problems_vary():
    described = {sample.describe() for sample in identities.samples()}
    assert len(described) > identities.SAMPLES * 0.9


def test_sizes_add_up():
    assert ort_goldens.size() == sum(1 for _ in ort_goldens.replay())


def test_command_prints_a_table(capsys):
    assert main(["check", "--quick"]) == 0
    out = capsys.readouterr().out
    assert "AvgPoolGrad" in out
    assert ", 0 failed" in out


def test_command_prints_json(capsys):
    assert main(["check", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"system", "kernel", "proofs", "failures"} <= set(found[0])


def test_command_fails_when_a_case_fails(capsys, monkeypatch):
    monkeypatch.setattr(identities, "is_adjoint", lambda *args: False)
    assert main(["check", "--quick"]) == 1
    assert "FAILED conv_grad_input" in capsys.readouterr().out


def test_info(capsys):
    assert main(["info"]) == 0
    assert "max_pool_grad_from_indices" in capsys.readouterr().out


def test_plain_tables_without_rich(capsys, monkeypatch):
    from pullback.cli import console

    monkeypatch.setattr(console, "HAS_RICH", False)
    console.print_table("title", ("a", "b"), [("long name", "1")])
    with console.progress("work", 3) as tick:
        tick("one")
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["title", "a          b", "long name  1"]
    assert "pullback[cli]" in captured.err
