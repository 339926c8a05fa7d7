"""Layers on a GPU as `pullback.torch` runs them, and the last kernels of the lists: against PyTorch's own derivatives."""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
import pytest

import pullback as pb

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.torch
LAYOUTS = ("channels_last", "channels_first")
DEVICE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"  # conftest.py sets it


def lying(tensor: Any, layout: str) -> Any:
    return tensor.to(memory_format=torch.channels_last) if layout == "channels_last" else tensor


def gradients(y: Any, inputs: list[Any], dy: Any) -> list[Any]:
    """First derivatives, and those of the sum of their squares."""
    first = torch.autograd.grad(y, inputs, dy, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first), [*inputs, dy], allow_unused=True)
    return [y, *first, *second]


def close(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None) or not (a if b is None else b).any()
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ours", [{"forward", "input gradient", "filter gradient"}, {"input gradient"}, {"filter gradient"}])
def test_a_convolution_of_which_some_ops_are_ours(layout: str, ours: set[str]) -> None:
    from pullback.torch import gpu_layers

    torch.manual_seed(0)
    x = lying(torch.randn(2, 4, 6, 5, device=DEVICE), layout).requires_grad_()
    w, b = (torch.randn(*shape, device=DEVICE, requires_grad=True) for shape in ((4, 1, 3, 3), (4,)))
    keywords = {
        "stride": (2, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 4, "rounding": "floor", "layout": layout,
    }  # fmt: skip
    with pb.kernel("depthwise"):
        plan = gpu_layers.conv_plan(x, w, x.dtype, keywords, frozenset(ours))
    assert [bound is not None for bound in plan[:3]] == [op in ours for op in ("forward", "input gradient", "filter gradient")]
    y = torch.nn.functional.conv2d(x, w, b, (2, 1), 1, 1, 4)
    dy = torch.randn_like(y).requires_grad_()
    assert gpu_layers.conv(plan, x, w, b).is_contiguous(
        memory_format=torch.channels_last if layout == "channels_last" else torch.contiguous_format
    )
    close(gradients(gpu_layers.conv(plan, x, w, b), [x, w, b], dy), gradients(y, [x, w, b], dy))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_poolings(layout: str) -> None:
    from pullback.torch import gpu_layers

    torch.manual_seed(0)
    x = lying(torch.randn(2, 3, 7, 6, device=DEVICE), layout).requires_grad_()
    place = {"window": (3, 2), "stride": (2, 2), "padding": ((1, 1), (0, 0)), "dilation": (1, 1), "rounding": "floor"}
    for op, theirs, more in (
        ("max_pool", torch.nn.functional.max_pool2d, {}),
        ("avg_pool", torch.nn.functional.avg_pool2d, {"count_include_pad": True, "divisor": None}),
    ):
        plan = gpu_layers.pool_plan(x, op, layout, {**place, **more})
        # PyTorch's average gradient of overlapping windows is wrong on a GPU in channels_last: it is asked in its own order.
        y = theirs(x.contiguous(), (3, 2), 2, (1, 0))
        dy = torch.randn_like(y).requires_grad_()
        close(gradients(gpu_layers.pool(plan, x), [x], dy), gradients(y, [x], dy))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layer_finds_its_plan_once(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an accelerated layer does with a tensor of a GPU, on whatever tensors there are here."""
    from pullback.torch import accelerate, layers

    monkeypatch.setattr(layers, "GPU_SMALL_WORK", 0)
    torch.manual_seed(0)
    taken = 0
    for plain in (
        torch.nn.Conv2d(4, 4, 5, padding=2, groups=4), torch.nn.MaxPool2d(3, 2, 1), torch.nn.AvgPool2d(2), torch.nn.BatchNorm2d(4),
    ):  # fmt: skip
        plain = plain.to(DEVICE)
        ours: Any = accelerate(copy.deepcopy(plain))
        monkeypatch.setattr(type(ours), "why_left", lambda *_: None)
        for _ in range(2):
            x = lying(torch.randn(2, 4, 8, 7, device=DEVICE), layout).requires_grad_()
            y, theirs = layers.Accelerated.forward_on_gpu(ours, x), plain(x)
            torch.testing.assert_close(y, theirs)
            torch.testing.assert_close(*(torch.autograd.grad((z * z).sum(), x)[0] for z in (y, theirs)), rtol=1e-4, atol=1e-5)
        plans = ours.__dict__[layers.GPU_PLANS]
        assert len(plans) == 1
        taken += next(iter(plans.values())) is not None
        assert not copy.deepcopy(ours).__dict__[layers.GPU_PLANS]
    assert taken == 4


class Normalized(torch.nn.Module):
    """Normalizations with all that may follow them, in the middle of a network and at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4, momentum=None), torch.nn.BatchNorm2d(4)
        self.d, self.e = torch.nn.BatchNorm2d(4, affine=False), torch.nn.BatchNorm2d(4, track_running_stats=False)
        self.silu, self.relu6 = torch.nn.SiLU(), torch.nn.ReLU6(inplace=True)
        self.rows, self.head = torch.nn.LayerNorm(4), torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        y = self.silu(self.a(x))
        y = torch.relu(self.b(y) + x)
        y = self.relu6(self.d(y))
        y = x + self.c(y)
        y = self.e(y) * 2
        return self.head(self.rows(y.permute(0, 2, 3, 1).contiguous()))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An accelerated model whose normalizations do with whatever tensors there are here what they do with those of a GPU."""
    from pullback.torch import accelerate, layers, modules, norm_layers, pending

    def forward(layer: Any, x: Any, *more: Any) -> Any:
        return layer.forward_on_gpu(x.plain() if type(x) is pending.Pending else x, *more)

    def taken(model: Any) -> Any:
        model = accelerate(model.to(DEVICE))
        for layer in model.modules():
            if type(layer) is torch.nn.LayerNorm:
                layer.__class__ = modules.LayerNorm
                layer.__dict__[pending.FUSES] = True
        return model

    for kind in (norm_layers.BatchNormLayer, norm_layers.LayerNormLayer):
        monkeypatch.setattr(kind, "forward", forward)
        monkeypatch.setattr(kind, "why_left", lambda *_: None)
    monkeypatch.setattr(layers.Accelerated, "forward", forward)
    monkeypatch.setattr(norm_layers, "something_compiled", lambda: False)  # by tests before
    return taken


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("training", [True, False])
def test_normalizations_with_what_follows(layout: str, training: bool, taken: Any) -> None:
    """Results, running statistics, derivatives of both orders; a sum, an activation, or nothing in the same pass."""
    torch.manual_seed(0)
    plain = Normalized().double().to(DEVICE)
    for buffer in plain.buffers():
        buffer.add_(1)
    ours = taken(copy.deepcopy(plain))
    for seed in range(2):
        torch.manual_seed(seed)
        x = lying(torch.randn(2, 4, 3, 5, dtype=torch.float64, device=DEVICE), layout)
        found = []
        for model in (plain.train(training), ours.train(training)):
            inputs = [x.clone().requires_grad_(), *model.parameters()]
            y = model(inputs[0])
            first = torch.autograd.grad((y**2).sum(), inputs, retain_graph=True)
            y = model(inputs[0])
            (slope,) = torch.autograd.grad((y**3).sum(), inputs[:1], create_graph=True)
            second = torch.autograd.grad((slope * slope).sum(), inputs, allow_unused=True)
            found.append([y, *first, *second, *model.buffers()])
        for one, other in zip(*found, strict=True):
            assert (one is None) == (other is None) or not (other if one is None else one).any()
            if one is not None and other is not None:
                torch.testing.assert_close(one, other)
    from pullback.torch import pending

    waits = {name: layer.__dict__[pending.FUSES] for name, layer in ours.named_children() if pending.FUSES in layer.__dict__}
    assert waits == {"a": True, "b": True, "c": True, "d": True, "e": False, "rows": True}


def test_a_layer_norm_in_the_type_of_the_next_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under autocast the rows are rounded once, to what the linear layer takes; anything else sees float32."""
    from pullback.cuda.norm.plan import Rows
    from pullback.torch import pending
    from pullback.torch.gpu_norm import RowStatistics

    torch.manual_seed(0)
    x = torch.randn(6, 8, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
    norm, head = torch.nn.LayerNorm(8).to(DEVICE), torch.nn.Linear(8, 3).to(DEVICE)
    by = RowStatistics(Rows(6, 8, torch.bfloat16, torch.float32, eps=norm.eps))
    found = []
    for ours in (False, True):
        with torch.autocast(DEVICE, torch.bfloat16):
            y = pending.deferred(norm, by, x, norm.weight, norm.bias) if ours else norm(x.float())
            assert y.dtype is torch.float32
            half, plain = head(y), y.sum(1)
        assert half.dtype is torch.bfloat16
        found.append(
            [half, plain, *torch.autograd.grad(half.float().square().sum() + plain.sum(), [x, norm.weight, head.weight])]
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


CROPS = (
    {"stride": 1, "padding": 1},
    {"stride": 2, "padding": ((1, 0), (0, 2)), "rounding": "ceil", "dilation": 2, "groups": 2},
    {"stride": 3, "padding": ((-1, 2), (2, -1)), "rounding": "ceil"},
    {"stride": 3, "padding": 1},  # no window reaches the second pad
    {"stride": 2, "padding": ((1, 3), (1, 0))},
)
PLAIN = [True, False, False, True, False]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("keywords", "plain"), list(zip(CROPS, PLAIN, strict=True)))
def test_cudnn_pads_and_crops_as_the_problem_says(
    layout: str, keywords: dict[str, Any], plain: bool, on_gpu: Any, reference: Any
) -> None:
    """plain: PyTorch pads by itself, and nothing is copied."""
    from pullback.cuda.library import _Exact
    from pullback.ops.conv import prepare_conv

    rng = np.random.default_rng(0)
    groups = keywords.get("groups", 1)
    last = layout == "channels_last"
    sizes = ((2, 11, 9, 4), (3, 3, 4 // groups, 6)) if last else ((2, 4, 11, 9), (6, 4 // groups, 3, 3))
    x, f = (rng.integers(-3, 4, shape).astype(np.float64) for shape in sizes)
    given = {**keywords, "layout": layout}
    dy = reference("conv", x, f, **given)
    assert _Exact(prepare_conv(x, f, **given)[0]).plain == plain
    for op, arguments in {"conv": (x, f), "conv_grad_input": (dy, f, x.shape), "conv_grad_filter": (dy, x, f.shape)}.items():
        np.testing.assert_array_equal(on_gpu(op, *arguments, kernel="cudnn", **given), reference(op, *arguments, **given))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", [0, 1])
def test_what_goes_by_indices_and_winners(layout: str, order: int, on_gpu: Any, reference: Any) -> None:
    rng = np.random.default_rng(0)
    shape = (2, 7, 6, 3) if layout == "channels_last" else (2, 3, 7, 6)
    x, t = rng.permutation(252).astype(np.float64).reshape(shape), rng.integers(-5, 6, shape).astype(np.float64)
    place: dict[str, Any] = {"stride": 2, "padding": 1, "layout": layout}
    y, indices = reference("max_pool", x, 3, return_indices=True, storage_order=order, **place)
    _, winners = reference("max_pool", x, 3, return_winners=True, **place)
    flat = {"layout": layout, "storage_order": order}
    for op, arguments, keywords in (
        ("max_pool_grad_from_indices", (y, indices, x.shape), flat),
        ("max_pool_jvp_from_indices", (t, indices), flat),
        ("max_pool_jvp_from_winners", (t, winners, 3), place),
        ("max_pool_jvp", (t, x, 3), place),
    ):
        np.testing.assert_array_equal(on_gpu(op, *arguments, **keywords), reference(op, *arguments, **keywords))


def test_an_index_out_of_range_is_an_error(on_gpu: Any) -> None:
    with pytest.raises(ValueError, match="index 99 in indices is out of range"):
        on_gpu("max_pool_grad_from_indices", np.ones((1, 1, 1, 1)), np.full((1, 1, 1, 1), 99), (1, 2, 2, 1))


def test_the_backend_is_chosen_by_the_arrays_alone() -> None:
    from pullback.cuda import call
    from pullback.ops.explain import PREPARE

    assert "cuda" not in pb.backends()
    with pytest.raises(ValueError, match="unknown backend 'cuda'"), pb.backend("cuda"):
        pass
    x = torch.ones(1, 4, 4, 2)
    with pb.backend("reference"), pytest.raises(pb.KernelError, match="arrays of a GPU run on backend 'cuda' only"):
        call.run(PREPARE["max_pool"], x, 3, stride=1)
