"""What people try first: each wrong guess is one line that names the right word, and no sentence prints an array."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.ops import hints
from pullback.shown import shown

X, F = np.ones((2, 6, 6, 3)), np.ones((3, 3, 3, 4))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("conv2d", "pullback.conv"),
        ("Conv3D", "pullback.conv"),
        ("max_pool2d", "pullback.max_pool"),
        ("MaxPool2d", "pullback.max_pool"),
        ("avgpool", "pullback.avg_pool"),
        ("adaptive_avg_pool2d", "pullback.adaptive_avg_pool"),
        ("conv2d_backprop_input", "pullback.conv_grad_input"),
        ("conv_transpose2d", "pullback.conv_transpose"),
        ("maxpool_grad", "pullback.max_pool_grad"),
        ("value_and_grad", "pullback.value_and_grads"),
        ("set_threads", "pullback.set_num_threads"),
        ("accelerate", "pullback.torch.accelerate"),
        ("explane", "pullback.explain"),
    ],
)
def test_a_wrong_name_of_an_op(name: str, meant: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(pb, name)
    assert meant in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_like_none_of_ours_is_a_plain_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'unrelated_thing'$"):
        pb.unrelated_thing  # noqa: B018
    assert not hasattr(pb, "__path_of_nothing__")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pb.max_pool(X, kernel_size=2), "max_pool: there is no 'kernel_size'; it is called 'window'"),
        (lambda: pb.avg_pool(X, pool_size=2), "avg_pool: .*'window'"),
        (lambda: pb.max_pool(X, 2, strides=2), "max_pool: there is no 'strides'; it is called 'stride'"),
        (lambda: pb.max_pool(X, 2, ceil_mode=True), "max_pool: there is no 'ceil_mode'; rounding=\"ceil\""),
        (lambda: pb.conv(X, F, data_format="NHWC"), "conv: there is no 'data_format'; layout is .*NCHW"),
        (lambda: pb.conv(X, F, kernel_size=3), "conv: .*filter's own shape"),
        (lambda: pb.conv(X, weight=F), "conv: .*'filter'"),
        (lambda: pb.conv(X, F, group=2), "conv: .*'groups'"),
        (lambda: pb.conv_grad_input(X, F, input_size=(1,)), "conv_grad_input: .*'input_shape'"),
        (lambda: pb.max_pool(X, 2, bias=1), "max_pool: there is no 'bias'; conv has it"),
        (lambda: pb.avg_pool(X, 2, divisor_override=3), "avg_pool: .*'divisor'"),
        (lambda: pb.max_pool(X, 2, tie="last"), "max_pool: .*did you mean 'ties'"),
        (lambda: pb.max_pool(X, 2, zzz=1), "max_pool: there is no 'zzz'; max_pool takes x, window, stride"),
        (lambda: pb.max_pool(X, 2, 2), r"max_pool: 3 arguments by place; only x, window.*max_pool\(x, window, stride=...\)"),
        (lambda: pb.explain("conv", X, F, strides=2), "conv: there is no 'strides'; it is called 'stride'"),
    ],
)
def test_a_wrong_keyword(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        call()
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "\n" not in str(caught.value)


def test_errors_of_the_op_itself_stay_as_they_are() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        pb.max_pool(X)


@pytest.mark.parametrize("padding", ["SAME", "Same", "same", "SAME_UPPER"])
def test_padding_and_layout_in_any_case(padding: str) -> None:
    np.testing.assert_array_equal(pb.max_pool(X, 4, padding=padding), pb.max_pool(X, 4, padding="same"))
    assert pb.max_pool(X, 2, layout="nhwc").shape == pb.max_pool(X, 2, layout="Channels_Last").shape == (2, 3, 3, 3)


def test_a_shape_may_be_given_as_the_array() -> None:
    y = pb.conv(X, F)
    np.testing.assert_array_equal(pb.conv_grad_input(y, F, X), pb.conv_grad_input(y, F, X.shape))
    np.testing.assert_array_equal(pb.conv_grad_filter(y, X, F), pb.conv_grad_filter(y, X, F.shape))
    np.testing.assert_array_equal(pb.avg_pool_grad(X, np.ones((2, 12, 12, 3)), 2), pb.avg_pool_grad(X, (2, 12, 12, 3), 2))


def test_a_filter_that_fits_in_the_other_layout_says_so() -> None:
    with pytest.raises(ValueError, match='they fit in the other layout: pass layout="channels_first"'):
        pb.conv(np.ones((2, 8, 16, 16)), np.ones((4, 8, 3, 3)))
    with pytest.raises(ValueError, match=r"not \(3, 3, 3, 4\)$"):
        pb.conv(np.ones((2, 8, 16, 9)), F)


@pytest.mark.parametrize("value", [X, [X], {"a": X}, (X, 2), np.ones(3)])
def test_no_sentence_prints_an_array(value: Any) -> None:
    assert "1." not in shown(value)
    assert "shape (" in shown(value)
    with pytest.raises((TypeError, ValueError)) as caught:
        pb.max_pool(X, value)
    assert "1." not in str(caught.value)


NCHW, NHWC = (2, 3, 8, 8), (2, 8, 8, 3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (f"pb.max_pool(np.ones({NCHW}), 2)", 1),
        (f"pb.max_pool(np.ones({NCHW}), 2); pb.avg_pool(np.ones({NCHW}), 2)", 1),  # once
        (f"pb.max_pool(np.ones({NCHW}), 2, layout='channels_first')", 0),
        (f"pb.max_pool(np.ones({NCHW}), 2, layout='channels_last')", 0),
        (f"pb.max_pool(np.ones({NHWC}), 2)", 0),
        ("pb.max_pool(np.ones((2, 8, 8, 8)), 2)", 0),
        ("pb.max_pool(np.ones((2, 8, 16)), 2)", 0),
        ("warnings.simplefilter('error'); pb.max_pool(np.ones((2, 4, 8, 8)), 2)", 1),  # a hint, never an error
    ],
)
def test_a_hint_where_the_shape_speaks_for_channels_first(
    call: str, said: int, capsys: pytest.CaptureFixture[str], variable: Callable[[str, str | None], None], monkeypatch: Any
) -> None:
    variable("PULLBACK_QUIET", None)
    monkeypatch.setattr(hints, "_said_in", -1)
    with pb.backend("reference"):
        exec(f"import warnings, numpy as np, pullback as pb\nwith warnings.catch_warnings():\n    {call}")
    error = capsys.readouterr().err
    assert error.count('pass layout="channels_first"') == said
    variable("PULLBACK_QUIET", "1")
    monkeypatch.setattr(hints, "_said_in", -1)
    pb.max_pool(np.ones((3, 3, 8, 8)), 2)
    assert not capsys.readouterr().err


class OnlyDlpack:
    """An array of another library, which offers nothing but the DLPack protocol."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_objects_with_only_dlpack_are_read() -> None:
    np.testing.assert_array_equal(pb.conv(OnlyDlpack(X.copy()), OnlyDlpack(F.copy())), pb.conv(X, F))

    class Elsewhere(OnlyDlpack):
        def __dlpack__(self, **keywords: Any) -> Any:
            raise BufferError("the data is on another device")

    with pytest.raises(TypeError, match=r"conv: x offers only __dlpack__.*another device"):
        pb.conv(Elsewhere(X), F)


def test_recorded_arrays_of_other_libraries_name_their_module() -> None:
    class Tensor:
        __module__ = "torch"
        requires_grad = True

    class DynamicJaxprTracer:
        __module__ = "jax._src.interpreters.partial_eval"

    with pytest.raises(TypeError, match=r"conv: x is a PyTorch tensor that requires grad.*pullback\.torch\.functional"):
        pb.conv(Tensor(), F)
    with pytest.raises(TypeError, match=r"max_pool: x is a JAX array that jit.*pullback\.jax\.max_pool"):
        pb.max_pool(DynamicJaxprTracer(), 2)


def test_the_hints_cost_no_import() -> None:
    code = "import sys, pullback; print([m for m in ('torch', 'jax', 'autograd', 'matplotlib', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
