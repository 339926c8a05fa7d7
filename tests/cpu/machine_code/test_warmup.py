"""`pullback warmup` and `pullback info`, the default backend, and what happens where Numba is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import call, cases, with_nan
from cpu_calls import run_python

import pullback as pb
from pullback import ort, registry, tfjs
from pullback.cli import main, warmup_command
from pullback.cpu.engine import plan_cache
from pullback.cpu.machine_code import compiler, disk_cache, dry_run, find, warmup
from pullback.cpu.machine_code.levels import level

NO_NUMBA = """
import importlib.util, sys
import numpy as np
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in MISSING else real(name, *more)
import pullback as pb
from pullback import registry
from pullback.cli import main
"""


def ops_on(dtype: str) -> list[tuple[str, tuple, dict]]:
    pooling = ("max_pool", "max_pool_grad", "max_pool_grad_from_indices", "avg_pool", "avg_pool_grad")
    return [(op, *call(op, case, with_nan)) for case in cases() if case.dtype.name == dtype for op in pooling]


def test_nothing_is_left_to_compile_after_a_warmup() -> None:
    """The tasks ask for all that the whole case list, its winners and both dialects ask for, in float32."""
    used = 0
    with pb.backend("cpu"), np.errstate(all="ignore"), dry_run.dry_run(faulty=False) as run:
        for op, arguments, keywords in ops_on("float32"):
            getattr(pb, op)(*arguments, **keywords)
            if op == "max_pool":
                y, winners = pb.max_pool(*arguments, **keywords, return_winners=True)
                rules = {name: value for name, value in keywords.items() if name != "ties"}
                pb.max_pool_grad_from_winners(y, winners, arguments[0].shape, arguments[1], **rules)
            used += 1
        x = np.ones((1, 4, 4, 2), np.float32)
        window = {"filterSize": 2, "strides": 2, "pad": "valid"}
        y = tfjs.run_kernel("MaxPool", {"x": x}, window)
        tfjs.run_kernel("MaxPoolGrad", {"dy": y, "input": x, "output": y}, window)
        ort.run_kernel("MaxPool", {"X": x}, {"kernel_shape": [2, 2]})
        with ort.quirks():
            ort.run_kernel("MaxPool", {"X": x}, {"kernel_shape": [2, 2]})
    assert used > 50
    assert len(run.wanted) > 20
    assert set(run.wanted) <= set(warmup.wanted(["float32"]))


def test_a_warmup_asks_only_for_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64 averages ask for no maxima and no other dtype, and nothing is compiled or loaded in order to know that."""
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(find, "_loaded", {})
    before = compiler.compilations
    [task] = [task for task in warmup.tasks(["float64"]) if task.op == "avg_pool"]
    variants = warmup.variants_of(task)
    assert len(variants) > 5
    assert all(variant.kernel.startswith("avg_") and variant.dtype == "float64" for variant in variants), variants
    assert warmup.missing(variants) == variants
    assert (compiler.compilations, find._loaded) == (before, {})
    assert dry_run.current is None
    assert plan_cache.kept_bytes() == 0


def test_a_dry_run_runs_nothing_whatever_is_loaded() -> None:
    """Nor does a loaded kernel call one that is not: max_grad_from_x has the address of the forward in its record."""
    x = np.ones((1, 6, 6, 64), np.float32)
    with pb.backend("cpu"), pb.kernel("channels"):
        dx = pb.max_pool_grad(x[:, ::2, ::2], x, 2)
        for faulty, value in ((False, 0.0), (True, np.nan)):
            with dry_run.dry_run(faulty) as run:
                for ties in ("first", "last"):
                    planned = pb.max_pool_grad(x[:, ::2, ::2], x, 2, ties=ties)
                    np.testing.assert_array_equal(planned, np.full_like(x, value))
            assert {variant.kernel for variant in run.wanted} == {"max_grad_from_x", "max_forward"}
        np.testing.assert_array_equal(pb.max_pool_grad(x[:, ::2, ::2], x, 2), dx)


PRUNE = """
from importlib import metadata
def missing(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = missing
from pullback.cpu.machine_code import cache_folders
print(len(cache_folders.cache_folders()), len(list(cache_folders.prune(0))))
"""


def test_old_caches_can_be_pruned_without_numba(tmp_path: Path) -> None:
    """As after an update to a wheel that ships its kernels."""
    (tmp_path / ("0" * 20)).mkdir()
    assert run_python(PRUNE, PULLBACK_CACHE_DIR=str(tmp_path)) == "1 1"


def test_tasks_narrow_by_dtype() -> None:
    everything, single = warmup.tasks(), warmup.tasks(["float32"])
    assert {task.dtype for task in everything} == {"float32", "float64", "float16", "bfloat16"}
    assert len(everything) == 4 * len(single)
    assert len({str(task) for task in everything}) == len(everything)


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "RULES", {"avg_pool": (None,)})
    assert main(["warmup", "--dtype", "float32", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert str(disk_cache.cache_folder()) in out
    assert "kernels compiled" in out


def test_the_command_in_several_processes(tmp_path: Path) -> None:
    """Two dtypes in two processes into an empty cache: afterwards there is nothing left to compile."""
    code = """
import sys
from pullback.cli import main
from pullback.cpu.machine_code import warmup
if __name__ == "__main__":
    warmup.RULES = {"avg_pool": (None,)}
    warmup.training_variants = lambda dtypes: []
    sys.exit(main(["warmup", "--dtype", "float32", "--dtype", "float64", "--jobs", sys.argv[1]]))
"""
    environment = {"PULLBACK_CACHE_DIR": str(tmp_path), "warnings": "error"}
    first = run_without_bar(code, "2", **environment)
    assert not first.startswith("0 kernels compiled")
    assert run_without_bar(code, "1", **environment).startswith("0 kernels compiled")


def run_without_bar(code: str, *arguments: str, **environment: str) -> str:
    """The progress bar writes to stderr, which `run_python` wants empty."""
    return run_python("import io, sys\nsys.stderr = io.StringIO()\n" + code, *arguments, timeout=300, **environment)


def test_the_command_says_what_stands_in_its_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["warmup", "--jobs", "0"]) == 2
    assert "--jobs is 0" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path / "file" / "below"))
    assert main(["warmup"]) == 1
    assert disk_cache.CACHE_VARIABLE in capsys.readouterr().err
    monkeypatch.setattr(warmup_command.registry, "why_unavailable", lambda name: f"no {name} today")
    assert main(["warmup"]) == 2
    assert "no cpu today" in capsys.readouterr().err


def test_info_names_the_machine_the_cache_and_the_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    with pb.threads(3):
        assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"{level().name}, {level().vector_bytes} bytes" in out
    assert str(disk_cache.cache_directory()) in out
    assert "3 (this process has" in out
    assert ", ".join(f"{kernel.backend}/{kernel.name}" for kernel in registry.kernels_for("max_pool", "cpu")) in out
    assert "unavailable" not in out


def test_the_default_backend(variable: Any) -> None:
    variable(registry.BACKEND_VARIABLE, None)
    assert registry.default_backend() == "cpu"
    assert pb.explain("max_pool", np.zeros((1, 4, 4, 1)), 2).chosen.backend == "cpu"
    variable(registry.BACKEND_VARIABLE, "reference")
    assert pb.explain("max_pool", np.zeros((1, 4, 4, 1)), 2).chosen.backend == "reference"
    with pb.backend("cpu"):
        assert pb.explain("max_pool", np.zeros((1, 4, 4, 1)), 2).chosen.backend == "cpu"
    variable(registry.BACKEND_VARIABLE, "abacus")
    with pytest.raises(ValueError, match="PULLBACK_BACKEND: unknown backend 'abacus'; there are cpu, reference"):
        pb.max_pool(np.zeros((1, 4, 4, 1)), 2)


@pytest.mark.parametrize("missing", [("numba",), ("llvmlite",), ("numba", "llvmlite")])
def test_without_numba_the_reference_runs_and_info_says_why(missing: tuple[str, ...]) -> None:
    """In a checkout, which ships no kernels."""
    code = """
assert registry.default_backend() == "reference" and registry.backends() == ("reference",)
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        assert pb.max_pool(np.arange(4.0).reshape(1, 4, 1), 2).ravel().tolist() == [1, 3]
        assert pb.avg_pool(np.arange(4.0).reshape(1, 4, 1), 2).ravel().tolist() == [0.5, 2.5]
[warning] = caught
print(warning.message)
try:
    with pb.backend("cpu"):
        pass
except ValueError as error:
    print(error)
assert main(["info"]) == 0
"""
    out = run_python(NO_NUMBA.replace("MISSING", repr(missing)) + code)
    assert out.count("what compiles them is not installed: pip install 'pullback[compiler]'") == 3, out
    assert out.startswith("all ops run on the slow reference backend (backend 'cpu': no kernels are shipped")
    assert "unavailable" in out
