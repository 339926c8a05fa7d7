"""BatchNorm layers of an accelerated model: PyTorch's results, running statistics and gradients, of the first and second order."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import pullback.torch as pt  # noqa: E402
from pullback.torch import norm_layers  # noqa: E402

pytestmark = pytest.mark.torch

LAYERS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
SHAPES = ((9, 5), (4, 17, 6), (3, 33, 5, 7), (2, 8, 3, 5, 6))


@pytest.fixture(autouse=True)
def small_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of any size run on our kernels."""
    monkeypatch.setattr(norm_layers, "SMALL_NORM", 0)
    monkeypatch.setattr(norm_layers, "EQUAL_NORM", {"channels_first": 0, "channels_last": 0})


def lying(x: Any, last: bool) -> Any:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.to(memory_format=formats[x.dim()]) if last and x.dim() in formats else x


def pair(shape: tuple[int, ...], dtype: Any = torch.float32, **options: Any) -> tuple[Any, Any]:
    """A layer of PyTorch's, and its copy on our kernels."""
    torch.manual_seed(len(shape))
    theirs = LAYERS[len(shape)](shape[1], dtype=dtype, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    return theirs, pt.accelerate(copy.deepcopy(theirs), measure=False)


def step(layer: Any, x: Any, dy: Any) -> list[Any]:
    """The result, the gradients, and the running statistics after it."""
    given = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(given)
    assert y.stride() == given.stride()
    y.backward(dy)
    gradients = [parameter.grad for parameter in layer.parameters()]
    return [y.detach(), given.grad, *gradients, *(buffer.double() for buffer in layer.buffers())]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"momentum": 0.3, "eps": 0.1}]
)
def test_steps_are_pytorchs(last: bool, options: dict[str, Any]) -> None:
    for shape in SHAPES:
        theirs, ours = pair(shape, **options)
        exact, _ = pair(shape, torch.float64, **options)
        exact.load_state_dict(theirs.state_dict())
        for _ in range(2):  # the second step finds moved statistics and gradients
            x, dy = lying(torch.randn(shape) * 3 + 2, last), lying(torch.randn(shape), last)
            found, expected = step(ours, x, dy), step(theirs, x, dy)
            truth = step(exact, x.double(), dy.double())
            for mine, other, true in zip(found, expected, truth, strict=True):
                bound = 1e-6 * float(true.abs().max()) + 2 * float((other - true).abs().max())
                assert float((mine - true).abs().max()) <= bound
        assert type(ours).__module__ == "pullback.torch.modules"
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        for layer in (theirs, ours):
            layer.eval()
        found, expected = step(ours, x, dy), step(theirs, x, dy)
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_first_and_second_derivatives(training: bool, frozen: bool) -> None:
    _, ours = pair((3, 2, 2, 3), torch.float64)
    ours.train(training).requires_grad_(not frozen)
    x = lying(torch.randn(3, 2, 2, 3, dtype=torch.float64), True).requires_grad_()

    def call(x: Any, *parameters: Any) -> Any:
        return ours(x)

    inputs = (x, *(() if frozen else ours.parameters()))
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)
    assert torch.autograd.gradcheck(call, inputs, check_batched_grad=True)


def test_only_what_is_wanted_is_made() -> None:
    theirs, ours = pair((3, 4, 5, 5))
    x = torch.randn(3, 4, 5, 5)
    for layer in (theirs, ours):
        layer.bias.requires_grad_(False)
        layer(x).square().sum().backward()  # x wants no gradient
        assert layer.bias.grad is None
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    expanded = torch.randn(3, 4, 5, 1).expand(3, 4, 5, 5)  # gaps: PyTorch's
    torch.testing.assert_close(ours(expanded), theirs(expanded))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
    gradient = torch.ones(()).expand(3, 4, 5, 5)  # a gradient without memory of its own
    given = [x.clone().requires_grad_() for _ in range(2)]
    for layer, tensor in zip((theirs, ours), given, strict=True):
        (layer(tensor) * x).backward(gradient)
    torch.testing.assert_close(given[1].grad, given[0].grad)


def test_what_pytorch_refuses_is_refused() -> None:
    _, ours = pair((3, 4, 5, 5))
    for wrong, error in (
        (torch.randn(3, 5, 5, 5), RuntimeError), (torch.randn(3, 4, 5), ValueError), (torch.randn(1, 4, 1, 1), ValueError),
        (torch.randn(3, 4, 5, 5, dtype=torch.float64), RuntimeError),
    ):  # fmt: skip
        with pytest.raises(error):
            ours(wrong)


def test_transforms_and_traces_are_pytorchs() -> None:
    theirs, ours = pair((3, 4, 5, 5))
    x = torch.randn(3, 4, 5, 5)
    for layer in (theirs, ours):
        layer.eval()
    torch.testing.assert_close(torch.vmap(ours)(x[None]), torch.vmap(theirs)(x[None]))
    torch.testing.assert_close(torch.func.grad(lambda x: ours(x).sum())(x), torch.func.grad(lambda x: theirs(x).sum())(x))
    torch.testing.assert_close(torch.func.jvp(ours, (x,), (x,))[1], torch.func.jvp(theirs, (x,), (x,))[1])
    assert "pullback::" not in str(torch.jit.trace(ours, x).graph)
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype is theirs(x).dtype
        assert ours(x.bfloat16()).dtype is theirs(x.bfloat16()).dtype


def test_an_input_that_has_changed_is_an_error_of_the_backward_pass() -> None:
    _, ours = pair((3, 4, 5, 5))
    x = torch.randn(3, 4, 5, 5).requires_grad_().clone()
    y = ours(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_swapped_layers_are_restored_and_explained() -> None:
    model = pt.accelerate(nn.Sequential(nn.BatchNorm2d(4)), measure=False)
    assert pt.explain(model, torch.randn(2, 4, 8, 8)).layers[0].reason is None
    assert type(pt.restore(model)[0]) is nn.BatchNorm2d
    assert type(pt.accelerate(nn.LazyBatchNorm2d())) is nn.LazyBatchNorm2d


class Block(nn.Module):
    """What follows a normalization, by name; `kept` is for those who look at it later."""

    def __init__(self, what: str, inplace: bool) -> None:
        super().__init__()
        self.norm, self.other, self.what = nn.BatchNorm2d(4), nn.BatchNorm2d(4), what
        self.relu, self.relu6 = nn.ReLU(inplace), nn.ReLU6(inplace)

    def forward(self, x: Any) -> Any:
        z = self.norm(x)
        if self.what == "relu":
            return self.relu(z)
        if self.what == "relu6":
            return self.relu6(z)
        if self.what == "functions":
            return torch.relu(z) + torch.nn.functional.relu6(self.other(x)).relu()
        if self.what == "sum":
            return self.relu(x + z)
        if self.what == "sum in place":
            z += x
            return self.relu(z)
        if self.what == "sum of two":
            return self.relu(z + self.other(x))
        if self.what == "sum alone":
            return z + x
        if self.what == "sum of itself":
            return self.relu(z + z)
        if self.what == "sum with a factor":
            w = self.other(x)
            w.add_(x, alpha=3)
            return self.relu(torch.add(z, x, alpha=2)) + self.relu(w)
        if self.what == "used twice":
            return torch.relu(z) * z + torch.relu(z + x).mean() * z.sigmoid()
        if self.what == "result not taken":
            self.relu(z)
            return Doubled.apply(z) if self.relu.inplace else z
        if self.what == "a function of its own":
            return Doubled.apply(z) + torch.relu(z)
        if self.what == "changed in place":
            z *= 2
            return torch.relu(z[:, 1:]) + z[0, 0, 0, 0]
        if self.what == "twice":
            return self.relu(self.norm(self.relu(z)))
        if self.what == "other shape":
            return self.relu(z + x[:, :1])
        return torch.cat((z.detach(), self.relu(z), z.flatten(2).unflatten(2, z.shape[2:])))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * g


@pytest.fixture
def all_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_layers, "LEAST_FUSED", {"channels_first": 0, "channels_last": 0})
    monkeypatch.setattr(norm_layers, "something_compiled", lambda: False)  # another test may have


WHAT = (
    "relu", "relu6", "functions", "sum", "sum in place", "sum of two", "sum alone", "sum of itself", "sum with a factor",
    "used twice", "result not taken", "a function of its own", "changed in place", "twice", "other shape", "views",
)  # fmt: skip


@pytest.mark.usefixtures("all_fuse")
@pytest.mark.parametrize("what", WHAT)
def test_whatever_follows_is_right(what: str) -> None:
    for inplace, last, training in ((False, False, True), (True, True, True), (False, True, False)):
        torch.manual_seed(1)
        theirs = Block(what, inplace).double().train(training)
        for parameter in theirs.parameters():
            nn.init.normal_(parameter)
        ours = pt.accelerate(copy.deepcopy(theirs), measure=False)
        for _ in range(2):
            x, answers = lying(3 * torch.randn(3, 4, 5, 6, dtype=torch.float64), last), []
            for model in (theirs, ours):
                given = x.clone(memory_format=torch.preserve_format).requires_grad_()
                y = model(given)
                gradients = torch.autograd.grad(y.square().sum(), [given, *model.norm.parameters()], create_graph=True)
                (second,) = torch.autograd.grad(sum(g.square().sum() for g in gradients), given)
                answers.append([y, *gradients, second, *model.buffers()])
            for mine, other in zip(*reversed(answers), strict=True):
                torch.testing.assert_close(mine, other)


@pytest.mark.usefixtures("all_fuse")
def test_one_pass_keeps_no_result_of_a_relu_and_is_taken() -> None:
    model = pt.accelerate(nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(inplace=True)), measure=False)
    x = torch.randn(3, 4, 5, 6).requires_grad_()
    y = model(x)
    assert type(y) is torch.Tensor
    kept = [tensor for tensor in y.grad_fn.saved_tensors if tensor is not None]
    assert [tensor.data_ptr() for tensor in kept] == [x.data_ptr(), model[0].weight.data_ptr()]
    apart = pt.accelerate(copy.deepcopy(model), measure=False, fuse=False)
    torch.testing.assert_close(apart(x), y, rtol=0, atol=0)
    model(x).sum().backward()
    gradient, x.grad = x.grad, None
    apart(x).sum().backward()
    torch.testing.assert_close(gradient, x.grad)


@pytest.mark.usefixtures("all_fuse")
def test_what_waits_is_an_ordinary_tensor_to_all_others() -> None:
    _, ours = pair((3, 4, 5, 6))
    x = torch.randn(3, 4, 5, 6).requires_grad_()
    expected = pt.restore(copy.deepcopy(ours))(x)
    for use in (
        lambda z: z.detach().numpy().sum(), lambda z: z.tolist(), lambda z: z[0, 0, 0, 0].item(), repr, lambda z: z.data_ptr(),
        lambda z: copy.deepcopy(z.detach()), lambda z: torch.jit.script(nn.ReLU())(z).sum().backward(),
        lambda z: torch.utils.checkpoint.checkpoint(torch.sigmoid, z, use_reentrant=False).sum().backward(),
    ):  # fmt: skip
        ours.__dict__["pullback_fuses"] = True
        z = ours(x)
        assert type(z) is not torch.Tensor
        assert z.shape == x.shape
        use(z)
        torch.testing.assert_close(torch.Tensor.clone(z), expected)
        assert ours.__dict__["pullback_fuses"] is False  # from now on it does not wait
        assert type(ours(x)) is torch.Tensor
    ours.__dict__["pullback_fuses"] = True
    with torch.no_grad():
        assert type(ours(x)) is torch.Tensor
    handle = ours.register_forward_hook(lambda *_: None)
    assert type(ours(x)) is torch.Tensor
    handle.remove()
    assert torch.utils.checkpoint.checkpoint(ours, x, use_reentrant=False).grad_fn is not None


@pytest.mark.usefixtures("all_fuse")
def test_who_asks_for_a_gradient_that_is_never_made_is_told() -> None:
    _, ours = pair((3, 4, 5, 6))
    x = torch.randn(3, 4, 5, 6).requires_grad_()
    z = ours(x)
    loss = torch.relu(z).sum()
    for ask in (lambda: z.register_hook(print), z.retain_grad, lambda: torch.autograd.grad(loss, z)):
        with pytest.raises(RuntimeError, match="fuse=False"):
            ask()
    seen = []
    z = ours(x)
    z.register_hook(seen.append)  # before: then its numbers are made
    torch.relu(z).sum().backward()
    torch.testing.assert_close(seen[0], (z > 0).float())
    ours.__dict__["pullback_fuses"] = True
    z = ours(x.clone())
    z.source.x.data.add_(0)
    z.source.x.detach().add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        torch.relu(z)
