"""Kernel plug-ins: found by entry point, tried where they want to stand, and what they give back is checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import reference
from pullback.problem import RESULTS
from pullback.registry.promises import checked_run

X = np.arange(32, dtype=np.float32).reshape(1, 4, 4, 2)
PLUGIN = Path(__file__).parent / "plugin_package"


def run_python(code: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    inherited = [entry for entry in [os.environ.get("PYTHONPATH")] if entry]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), *inherited])}
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_kernel_may_be_registered_before_the_first_call(tmp_path: Path) -> None:
    """The built-in kernels must be on their lists already, whether or not an op has run before."""
    code = """
import numpy as np, pullback as pb
pb.register_kernel("avg_pool", "reference", "last", lambda problem: None, lambda problem, x: None)
pb.register_kernel("avg_pool", "reference", "first", lambda problem: "no", lambda problem, x: None, before="taps")
print([k.name for k in pb.registry.kernels_for("avg_pool", "reference")])
"""
    result = run_python(code, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "['first', 'taps', 'last']"


USE_THE_PLUGIN = """
import numpy as np, pullback as pb
with pb.backend("cpu"):
    names = [k.name for k in pb.registry.kernels_for("avg_pool", "cpu")]
    assert names[names.index("whole_mean") + 1] == "whole"
    names = [k.name for k in pb.registry.kernels_for("conv", "cpu")]
    assert names[names.index("one_tap") + 1] == "direct"
x = np.arange(12.0).reshape(1, 4, 3)
with pb.backend("reference"):
    explanation = pb.explain("avg_pool", x, 4)
    print(explanation)
    assert explanation.chosen.name == "whole_mean", explanation
    assert pb.avg_pool(x, 4).tolist() == [[[4.5, 5.5, 6.5]]]
    refused = pb.explain("avg_pool", x, 2)
    assert refused.chosen.name == "taps" and "window (2,) is not the whole input (4,)" in str(refused)
    assert pb.avg_pool(x, 2).shape == (1, 2, 3)
    with pb.kernel("reference/whole_mean"):
        assert pb.avg_pool(x, 4).tolist() == [[[4.5, 5.5, 6.5]]]
        try:
            pb.avg_pool(x, 2)
        except pb.KernelError as error:
            print(error)
        else:
            raise SystemExit("a refused kernel ran")
"""


@pytest.fixture(scope="session")
def installed_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(PLUGIN, folder / "source")  # setuptools builds inside the tree it is given
    target = folder / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    pip = subprocess.run([*install, "--target", target, source], capture_output=True, text=True, timeout=300, check=False)
    assert pip.returncode == 0, pip.stderr
    return target


WARMUP = "from pullback.cli import warmup_command; from pullback.cpu.machine_code import warmup; warmup.tasks(['float32'])"


@pytest.mark.parametrize(
    "first",
    [
        "import pullback",
        "import pullback.cpu",
        "import pullback.cpu.kernel_list",
        "import pullback.reference",
        "import pullback.tfjs",
        WARMUP,  # as `pullback warmup` comes to ask for kernels
        pytest.param("import pullback.torch.functional", marks=pytest.mark.torch),
        pytest.param("import pullback.jax", marks=pytest.mark.jax),
    ],
)
def test_an_installed_plugin_is_found_and_used(installed_plugin: Path, first: str) -> None:
    """Whichever module of the package is imported first."""
    result = run_python(f"{first}\n{USE_THE_PLUGIN}", installed_plugin, "-W", "error")
    assert result.returncode == 0, result.stderr
    assert "runs      reference/whole_mean" in result.stdout
    assert "reference/whole_mean: window (2,) is not the whole input (4,)" in result.stdout


def test_info_shows_the_plugin_where_it_stands(installed_plugin: Path) -> None:
    result = run_python("import sys; from pullback.cli import main; sys.exit(main(['info']))", installed_plugin, "-W", "error")
    assert result.returncode == 0, result.stderr
    assert "cpu/one_tap, cpu/direct" in result.stdout


def test_importing_a_backend_registers_nothing(installed_plugin: Path) -> None:
    """What is on the lists cannot hang on who imports what: the first question fills them, built-in kernels first."""
    code = "import pullback.cpu.kernel_list, pullback.reference, pullback.registry.lists as lists; print(lists._kernels)"
    assert run_python(code, installed_plugin).stdout.strip() == "{}"


def test_before_a_kernel_of_a_backend_that_is_not_there(installed_plugin: Path) -> None:
    code = """
import pullback.cpu.machine_code.find as find
find.why_unavailable = lambda: "no kernels here, on purpose"
import pullback
print(pullback.backends())
"""
    result = run_python(code, installed_plugin)
    assert "no kernel 'whole' for avg_pool on backend 'cpu'; there are [] (backend 'cpu': no kernels here, on purpose)" in (
        result.stderr
    )
    assert result.stdout.strip() == "('reference',)"


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        ("def register(): raise ZeroDivisionError('broken on purpose')", "broken on purpose"),
        ("import a_module_that_is_not_there", "a_module_that_is_not_there"),
        ("register = 3", "not callable"),
    ],
)
def test_a_broken_plugin_is_named_and_passed_over(tmp_path: Path, module: str, complaint: str) -> None:
    info = tmp_path / "broken_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pullback.kernels]\nbad_apple = broken_plugin:register\n")
    (tmp_path / "broken_plugin.py").write_text(module + "\n")
    code = """
import warnings, numpy as np, pullback as pb
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    y = pb.max_pool(np.arange(4.0).reshape(1, 4, 1), 2)
assert y.ravel().tolist() == [1, 3]
[warning] = [w for w in caught if w.category is RuntimeWarning]
print(warning.message)
"""
    result = run_python(code, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "'bad_apple' (broken_plugin:register)" in result.stdout
    assert complaint in result.stdout


@contextmanager
def planted(op: str, run: Callable[..., Any], accepts: Any = lambda problem: None, **more: Any) -> Iterator[None]:
    pb.register_kernel(op, "planted", "mine", accepts, run, **more)
    try:
        with pb.backend("planted"):
            yield
    finally:
        pb.unregister_kernel(op, "planted", "mine")


def good(problem: Any, x: Any) -> Any:
    return reference.pool.max_pool(problem, x)


def read_only(problem: Any, x: Any) -> Any:
    return np.broadcast_to(np.zeros(1, problem.dtype), problem.output_shape)


EXPECTED = r"an array of shape \(1, 2, 2, 2\) and dtype float32"


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (lambda p, x: None, f"returned None; expected {EXPECTED}"),
        (lambda p, x: good(p, x).tolist(), f"returned a list of 1; expected {EXPECTED}"),
        (lambda p, x: good(p, x)[0], rf"returned an array of shape \(2, 2, 2\) and dtype float32; expected {EXPECTED}"),
        (
            lambda p, x: good(p, x).astype(float),
            rf"returned an array of shape \(1, 2, 2, 2\) and dtype float64; expected {EXPECTED}",
        ),
        (lambda p, x: (good(p, x), None), f"returned a tuple of 2; expected {EXPECTED}"),
        (lambda p, x: x[:, :2, :2], "returned memory of an array that it was given; expected a new array"),
        (read_only, "returned a read-only array; expected a new one that may be written to"),
    ],
)
def test_a_wrong_result_is_one_clear_error(run: Callable[..., Any], complaint: str) -> None:
    with planted("max_pool", run):
        for _ in range(2):  # found, and remembered
            with pytest.raises(pb.KernelError, match=f"max_pool: the kernel planted/mine {complaint}"):
                pb.max_pool(X, 2)
        with pb.kernel("planted/mine"), pytest.raises(pb.KernelError, match=complaint):
            pb.max_pool(X, 2)


@pytest.mark.parametrize(("wanted", "dtype"), [("return_indices", "int64"), ("return_winners", "uint8")])
def test_a_pair_where_max_pool_returns_pairs(wanted: str, dtype: str) -> None:
    both = f"expected a pair: {EXPECTED} and {EXPECTED.replace('float32', dtype)}"
    for wrong, complaint in (
        (lambda pair: pair[0], f"returned {EXPECTED}; {both}"),
        (lambda pair: (*pair, None), f"returned a tuple of 3; {both}"),
        (
            lambda pair: (pair[0], pair[1].astype(np.int32)),
            f"returned as part 1 of its pair an array .* dtype int32; .*{dtype}",
        ),
        (lambda pair: (pair[0].astype(np.float16), pair[1]), "returned as part 0 of its pair an array .* dtype float16"),
    ):
        with planted("max_pool", lambda p, x, wrong=wrong: wrong(good(p, x))), pytest.raises(pb.KernelError, match=complaint):
            pb.max_pool(X, 2, **{wanted: True})
    with planted("max_pool", good):
        values, beside = pb.max_pool(X, 2, **{wanted: True})
        assert (values.dtype, beside.dtype) == (X.dtype, np.dtype(dtype))


def test_every_op_of_the_reference_keeps_the_promises() -> None:
    """The shapes that are promised are those of the specification."""
    assert RESULTS.keys() == reference.KERNELS.keys()
    w, dy, y = np.ones((2, 3, 2, 5), np.float32), np.ones((1, 3, 2, 5), np.float32), np.ones((1, 2, 2, 2), np.float32)
    _, indices = pb.max_pool(X, 2, return_indices=True)
    _, winners = pb.max_pool(X, 2, return_winners=True)
    calls: dict[str, tuple[Any, ...]] = {
        "conv": (X, w),
        "conv_grad_input": (dy, w, X.shape),
        "conv_grad_filter": (dy, X, w.shape),
        "max_pool": (X, 2),
        "max_pool_grad": (y, X, 2),
        "max_pool_grad_from_indices": (y, indices, X.shape),
        "max_pool_grad_from_winners": (y, winners, X.shape, 2),
        "max_pool_jvp": (X, X, 2),
        "max_pool_jvp_from_indices": (X, indices),
        "max_pool_jvp_from_winners": (X, winners, 2),
        "avg_pool": (X, 2),
        "avg_pool_grad": (y, X.shape, 2),
    }
    for op, args in calls.items():
        run = checked_run(op, reference.KERNELS[op])
        problem = pb.explain(op, *args).problem
        run(problem, *(value for value in args if isinstance(value, np.ndarray)))


def test_dilations_promise_what_the_reference_gives() -> None:
    from pullback import tfjs

    inputs = {"x": X, "filter": np.ones((2, 3, 2), np.float32), "dy": np.ones((1, 3, 2, 2), np.float32)}
    attrs = {"strides": 1, "pad": "valid", "dilations": 1}
    for op, kernel in (
        ("dilation", "Dilation2D"),
        ("dilation_grad_input", "Dilation2DBackpropInput"),
        ("dilation_grad_filter", "Dilation2DBackpropFilter"),
    ):
        seen = []

        def noted(*arguments: Any, op: str = op, seen: list[Any] = seen) -> Any:
            seen.append(op)
            return reference.KERNELS[op](*arguments)

        pb.register_kernel(op, "reference", "mine", lambda problem: None, noted, before="taps")
        try:
            tfjs.run_kernel(kernel, inputs, attrs, "reference")
        finally:
            pb.unregister_kernel(op, "reference", "mine")
        assert seen == [op]


@pytest.mark.parametrize(
    ("answer", "given"),
    [(True, "True"), (False, "False"), (np.True_, "True"), (3, "a value of type int")],
)
def test_accepts_and_pays_return_none_or_a_reason(answer: Any, given: str) -> None:
    with planted("max_pool", good, accepts=lambda problem: answer):
        complaint = rf"planted/mine: accepts\(problem\) returned {given}; return None to accept, or the reason as a string"
        for call in (pb.max_pool, lambda *args: pb.explain("max_pool", *args)):
            with pytest.raises(pb.KernelError, match=f"^max_pool: the kernel {complaint}$"):
                call(X, 2)
    with planted("max_pool", good, pays=lambda problem: answer):
        complaint = rf"planted/mine: pays\(problem\) returned {given}; return None where it pays, or the reason as a string"
        with pytest.raises(pb.KernelError, match=complaint):
            pb.max_pool(X, 2)


def test_built_in_kernels_are_called_as_they_are() -> None:
    assert all(k.run is reference.KERNELS[op] for op in reference.KERNELS for k in pb.registry.kernels_for(op, "reference"))
