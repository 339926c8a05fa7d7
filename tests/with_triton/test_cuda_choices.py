"""What the lists leave to cuDNN, and what a recording that fails leaves behind: questions that need no GPU."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def chosen(op: str, *arguments: Any, **keywords: Any) -> str:
    from pullback.ops.explain import PREPARE
    from pullback.registry import CUDA, chosen_kernel
    from pullback.registry.in_force import asked_backend
    from pullback.settings import during

    with during(asked_backend, CUDA):
        return chosen_kernel(PREPARE[op](*arguments, **keywords)[0]).name


def of(*shape: int) -> Any:
    return np.broadcast_to(np.float32(0), shape)


@pytest.mark.parametrize("taps", [3, 5])
def test_depthwise_filter_gradients_that_tensor_cores_would_slow_down(taps: int) -> None:
    x, place = of(128, 28, 28, 240), {"groups": 240, "padding": taps // 2}
    assert chosen("conv_grad_filter", x, x, (taps, taps, 1, 240), **place) == "cudnn"
    y = of(128, 28, 28, 256)
    assert chosen("conv_grad_filter", y, y, (3, 3, 8, 256), groups=32, padding=1) == "grouped"


def test_filter_gradients_of_first_layers() -> None:
    for size, stride, kernel in ((3, 2, "few_channels"), (4, 4, "cudnn")):
        x, dy = of(64, 3, 224, 224), of(64, 96, 224 // stride, 224 // stride)
        place = {"stride": stride, "padding": "same", "layout": "channels_first"}
        assert chosen("conv_grad_filter", dy, x, (96, 3, size, size), **place) == kernel


def test_a_recording_that_fails_frees_what_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from pullback.torch.graphs import model as graphs
    from pullback.torch.graphs.kinds import NoGraphError

    held: list[Any] = []

    def recording(*_: Any) -> Any:
        result = torch.ones(3, requires_grad=True) * 2
        held.append(weakref.ref(result))
        raise NoGraphError("it trains a tensor that is no parameter of one of its modules")

    monkeypatch.setattr(graphs, "Recording", recording)
    monkeypatch.setattr(graphs, "_end_of_failed_recording", lambda: None)
    for name in ("get_rng_state", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: None)
    found = graphs.Graphs()
    found.parts = object()  # type: ignore[assignment]
    kind = graphs.Kind()
    with pytest.raises(NoGraphError, match="no parameter") as caught:
        found._record(kind, torch.nn.ReLU(), lambda *_: None, graphs.given((), {}))
    assert held[0]() is None
    assert caught.value.__context__ is None
    assert kind.why == str(caught.value)
