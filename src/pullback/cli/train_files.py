"""The files of `pullback train`: where model, curves and checkpoint go."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

DIGITS = "digits"
INSTALL = "pip install 'pullback[train]'"  # all that training from the shell uses


class RequestError(ValueError):
    """What the options ask for cannot be meant so."""


@dataclass(frozen=True)
class Written:
    """`curves` is None where no picture can be drawn."""

    model: Path
    checkpoint: Path
    curves: Path | None


def need(*packages: str) -> None:
    """An ImportError that says what to install, where a package is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ImportError(f"this needs {' and '.join(missing)}: {INSTALL}", name=missing[0])


def files_of(model: Path | None, into: Path, out: Path | None, checkpoint: Path | None, curves: Path | None) -> Written:
    """Names that are not given come from that of the model: digits.onnx, digits.safetensors, digits-curves.png.

    Curves that are asked for need matplotlib; those that come unasked are left out without it.
    """
    if curves is not None:
        need("matplotlib")
    stem = f"{model.stem}-trained" if model is not None else DIGITS
    written = out or into / f"{stem}.onnx"
    picture = curves or written.with_name(f"{written.stem}-curves.png")
    can_draw = find_spec("matplotlib") is not None
    return Written(written, checkpoint or written.with_suffix(".safetensors"), picture if can_draw else None)
