"""Hints for the names that people try first in `pullback.onnx`: one line that says what to write here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from pullback.nearest import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")
Kind = TypeVar("Kind", bound=type)

# What other systems call our keywords.
KEYWORDS = {
    "loss": "criterion loss_fn loss_function",
    "trainable": "requires_grad train_only",
    "frozen": "freeze frozen_params",
    "schedule": "scheduler lr_scheduler lr_schedule",
    "clip_norm": "max_grad_norm gradient_clip_val clip_grad_norm clipnorm grad_clip",
    "clip_value": "clipvalue clip_grad_value",
    "accumulate": "accumulate_grad_batches gradient_accumulation_steps accumulation_steps",
    "lr": "learning_rate",
    "betas": "beta1 beta2 beta_1 beta_2 b1 b2",
    "eps": "epsilon",
    "epochs": "num_epochs n_epochs max_epochs nb_epoch",
    "batch_size": "batch",
    "valid": "validation_data validation val val_data valid_data eval_set",
    "patience": "early_stopping",
    "checkpoint": "checkpoint_path save_path",
    "on_epoch": "callbacks callback",
    "target": "y labels targets label",
    "length": "T_max total total_steps total_iters",
    "every": "step_size",
}
_OURS = {theirs: ours for ours, names in KEYWORDS.items() for theirs in names.split()}
DATA = "inputs and targets are one argument, as fit((x, target), epochs=10) and evaluate((x, target))"
# Keywords that belong elsewhere.
PLACES = {
    "target": DATA,
    **dict.fromkeys(
        ("lr", "momentum", "weight_decay", "betas", "nesterov"), "it belongs to the optimizer, as optimizer=px.SGD(lr=0.05)"
    ),
    **dict.fromkeys(
        ("epochs", "batch_size", "valid", "patience", "checkpoint", "shuffle", "on_epoch"),
        "it belongs to fit, as trainer.fit((x, target), epochs=10, batch_size=32, valid=...)",
    ),
    **dict.fromkeys(
        ("loss", "optimizer", "schedule", "metrics", "frozen", "clip_norm", "accumulate", "seed"),
        "it belongs to the trainer, as px.Trainer(model, loss=..., optimizer=...)",
    ),
}
# Names of the module that are no plain variation of ours.
NAMES = {
    "train": "px.Trainer(model).fit((x, target), epochs=10)",
    "fit": "px.Trainer(model).fit((x, target), epochs=10)",
    "load": "px.Trainer(path) for a model, px.Trainer.load(path) for a checkpoint",
    "load_checkpoint": "px.Trainer.load(path)",
    "InferenceSession": "px.Session(model)",
    "Module": "px.Trainer(model)",
    "grad": "px.gradients(model, x, target)",
    "generate_artifacts": "px.training_graph(model)",
    "export": "px.Trainer(...).export(path)",
    "CrossEntropyLoss": 'px.Trainer(model, loss="cross_entropy")',
    "MSELoss": 'px.Trainer(model, loss="mse")',
    "CosineAnnealingLR": "px.Cosine(length)",
    "StepLR": "px.StepDecay(every)",
    "OneCycleLR": "px.OneCycle(length)",
    "LinearLR": "px.Linear(length)",
    "optim": "px.SGD, px.Adam and px.AdamW",
}
# Attributes of a trainer.
ATTRIBUTES = {
    "train": "fit((x, target), epochs=10), or step(x, target) in a loop of your own",
    "train_step": "step(x, target)",
    "train_on_batch": "step(x, target)",
    "eval": "evaluate((x, target))",
    "test": "evaluate((x, target))",
    "forward": "predict(x)",
    "weights": "parameters",
    "state_dict": "parameters, or save(path) for everything",
    "save_model": "export(path) for the model, save(path) for a checkpoint",
    "save_checkpoint": "save(path)",
    "lr": "rate(); the optimizer's own is settings.optimizer.lr",
    "learning_rate": "rate(); the optimizer's own is settings.optimizer.lr",
    "set_learning_rate": "Trainer(..., schedule=...), such as px.Cosine(epochs), which sets it for each step",
    "zero_grad": "nothing: step(x, target) begins with fresh gradients",
    "backward": "step(x, target), or px.gradients(model, x, target) for gradients alone",
    "grads": "px.gradients(model, x, target)",
    "optimizer": "settings.optimizer",
}


def with_hints(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, whose calls with a wrong keyword or too many arguments say what the right ones are."""

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        try:
            return function(*args, **named)
        except TypeError:
            _check_call(function, args, named)
            raise

    return call


def hinted(kind: Kind) -> Kind:
    """A class whose keywords have hints."""
    kind.__init__ = with_hints(kind.__init__)  # type: ignore[misc]
    return kind


def _check_call(function: Callable[..., Any], args: Sequence[Any], named: Iterable[str]) -> None:
    signature = inspect.signature(function)
    known = [name for name in signature.parameters if name != "self"]
    who = function.__qualname__.removesuffix(".__init__")
    for name in named:
        if name not in known:
            raise TypeError(f"{who}: there is no {name!r}; {_right_word(name, known)}") from None
    try:
        signature.bind(*args, **dict.fromkeys(named))
    except TypeError as error:
        raise TypeError(f"{who}: {error}; {DATA if 'data' in known else f'it takes {_listed(known)}'}") from None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _right_word(name: str, known: Sequence[str]) -> str:
    ours = _OURS.get(name, name)
    if ours in known:
        return f"it is called {ours!r} here"
    return PLACES.get(ours) or did_you_mean(name, known, "Arguments").lstrip(";. ")


def unknown_name(name: str, public: Sequence[str]) -> NoReturn:
    """AttributeError for a name that the module does not have."""
    _unknown("module 'pullback.onnx'", name, NAMES, public, "Names")


def unknown_attribute(name: str, kind: type) -> NoReturn:
    """AttributeError for a name that a trainer does not have."""
    public = [each for each in (*vars(kind), "parameters", "history") if not each.startswith("_")]
    _unknown("a Trainer", name, ATTRIBUTES, public, "It has")


def _unknown(what: str, name: str, guesses: dict[str, str], public: Sequence[str], these: str) -> NoReturn:
    text = f"{what} has no attribute {name!r}"
    if name in guesses:
        text += f"; write {guesses[name]}"
    elif not name.startswith("_"):
        text += did_you_mean(name, public, these)
    raise AttributeError(text, name=name)  # without `obj`, so that Python adds no guess of its own
