"""The files of `pullback train`: where model, curves and checkpoint go."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pullback.cli.output_files import check_written
from pullback.onnx.train.checkpoint import summary_path

DIGITS = "digits"
PICTURES = (".png", ".svg")
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
    if out is not None and (out.is_dir() or not out.name):
        raise ValueError(f"--out {out}: that is a folder; --into {out} writes there")
    if curves is not None:
        need("matplotlib")
    stem = f"{model.stem}-trained" if model is not None else DIGITS
    written = out or into / f"{stem}.onnx"
    picture = curves or written.with_name(f"{written.stem}-curves.png")
    if picture.suffix not in PICTURES:
        raise ValueError(f"--curves {picture}: a picture is a {' or '.join(PICTURES)} file")
    can_draw = find_spec("matplotlib") is not None
    found = Written(written, checkpoint or written.with_suffix(".safetensors"), picture if can_draw else None)
    files = [found.model, found.checkpoint, summary_path(found.checkpoint), picture]
    twice = next((path for path in files if files.count(path) > 1), None)
    if twice is not None:
        raise ValueError(f"two files would be called {twice}: the model is an .onnx file, the checkpoint a .safetensors file")
    return found


def prepare_files(written: Written, into: Path, *, resume: bool, demo: bool) -> None:
    """A RequestError where the files cannot be written, or there is nothing to go on from, or a run broken off would be lost."""
    checkpoint, model = written.checkpoint, written.model
    try:
        into.mkdir(parents=True, exist_ok=True)
        check_written((model, checkpoint, written.curves))
    except OSError as error:
        raise RequestError(f"--into {into}: {error.strerror or error}") from None
    except ValueError as error:
        raise RequestError(str(error)) from None
    if resume and not checkpoint.exists():
        raise RequestError(f"there is no checkpoint {checkpoint} to go on from; leave out --resume to begin")
    finished = not checkpoint.exists() or (model.exists() and model.stat().st_mtime >= checkpoint.stat().st_mtime)
    if not (resume or demo or finished):  # the model is written last
        raise RequestError(
            f"{checkpoint} is of a run that was broken off: --resume goes on from it. To begin anew, remove it or name another "
            "--checkpoint"
        )
