"""What `compare` found: times of each layer and of a step, memory, what was left to PyTorch and why; as text, JSON, picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Others use the machine where the median of a side's steps, or the sum of its layers' medians, lies this share above the best.
BUSY_STEPS, BUSY_LAYERS = 0.2, 0.35


@dataclass(frozen=True)
class Times:
    """Milliseconds on PyTorch's kernels and on ours, one number for each round; ours are none where PyTorch's are kept."""

    pytorch: tuple[float, ...]
    ours: tuple[float, ...] = ()

    def median(self, side: str) -> float | None:
        samples = getattr(self, side)
        return statistics.median(samples) if samples else None

    def best(self, side: str) -> float | None:
        return min(getattr(self, side), default=None)

    def to_dict(self) -> dict[str, Any]:
        return {
            side: {"median_ms": self.median(side), "best_ms": self.best(side), "samples_ms": list(getattr(self, side))}
            for side in ("pytorch", "ours")
            if getattr(self, side)
        }


@dataclass(frozen=True)
class LayerTimes:
    """A layer, or a call of a function ("F.conv2d"), over all its calls in a step; `reason`: why it is PyTorch's, None if ours."""

    name: str
    kind: str
    shape: tuple[int, ...]
    calls: int
    reason: str | None
    ops: dict[str, Times]

    def total(self, side: str) -> float | None:
        """Milliseconds of all its ops in a step, medians."""
        medians = [times.median(side) for times in self.ops.values()]
        return None if not medians or None in medians else sum(value for value in medians if value is not None)

    @property
    def gain(self) -> float | None:
        theirs, ours = self.total("pytorch"), self.total("ours")
        return theirs / ours if theirs and ours else None

    @property
    def title(self) -> str:
        return self.name or "(the model)"


@dataclass(frozen=True)
class Memory:
    """Bytes: kept for the backward pass without the parameters, and the peak of resident memory in a step (None but on Linux)."""

    kept: tuple[int, int]
    peak: tuple[int, int] | None


@dataclass(frozen=True)
class Comparison:
    """A model's step on PyTorch's kernels and on ours; print it, `to_dict()`, `save(path)` or `plot(path)`."""

    layers: tuple[LayerTimes, ...]
    step: Times
    memory: Memory
    loss_apart: float | None
    settings: dict[str, Any]

    @property
    def gain(self) -> float:
        """How many times as fast a step is with our kernels: the ratio of the medians."""
        return (self.step.median("pytorch") or 0.0) / (self.step.median("ours") or float("inf"))

    @property
    def gain_of_bests(self) -> float:
        return (self.step.best("pytorch") or 0.0) / (self.step.best("ours") or float("inf"))

    @property
    def busy(self) -> str | None:
        """A sentence if times of the same thing differ so much that the machine must have been busy with other things."""
        ops = [times for layer in self.layers for times in layer.ops.values()]
        for side, name in (("pytorch", "PyTorch's"), ("ours", "our")):
            samples = getattr(self.step, side)
            for what, parts, most in (("steps", [self.step], BUSY_STEPS), ("layers", ops, BUSY_LAYERS)):
                median, best = (sum(getattr(times, of)(side) or 0.0 for times in parts) for of in ("median", "best"))
                if median > (1 + most) * best:
                    return (
                        f"{name} {what} took {best:.2f} ms at best and {median:.2f} in the median (steps up to "
                        f"{max(samples):.2f}): the machine seems busy, and the figures say little; close other programs, "
                        "or take more steps"
                    )
        return None

    HEADER = ("layer", "PyTorch", "ours", "gain", "forward", "input grad", "filter grad", "what it is")

    def rows(self) -> list[tuple[str, ...]]:
        """The table: milliseconds of a step, PyTorch / ours for each op; and what a layer is."""
        return [_row(layer) for layer in self.layers]

    def lines(self) -> list[tuple[str, str]]:
        """What there is to say beside the table, as (title, text)."""
        theirs, ours = self.step.median("pytorch") or 0.0, self.step.median("ours") or 0.0
        rounds = len(self.step.ours)
        found = [
            ("step", f"PyTorch {theirs:.2f} ms, ours {ours:.2f} ms (medians of {rounds}, {self.settings['step']})"),
            ("gain", f"{self.gain:.2f} times as fast; best step against best step {self.gain_of_bests:.2f}"),
        ]
        if self.busy is not None:
            found.append(("busy", self.busy))
        found += [
            ("layers", self._layers_text()),
            *(("", text) for text in self._left_texts()),
            ("memory", self._memory_text()),
        ]
        if self.loss_apart is not None:
            found.append(("loss", f"the two ways differ by {self.loss_apart:.0e} of it"))
        return [*found, ("with", self.settings_text())]

    def _layers_text(self) -> str:
        mine = [layer for layer in self.layers if layer.reason is None]
        theirs, ours = (sum(layer.total(side) or 0.0 for layer in mine) for side in ("pytorch", "ours"))
        left = sum(layer.total("pytorch") or 0.0 for layer in self.layers if layer.reason is not None)
        text = f"{len(mine)} of {len(self.layers)} are ours: {theirs:.2f} ms of PyTorch's became {ours:.2f} ms"
        return text + (f"; those left to PyTorch take {left:.2f} ms" if len(mine) < len(self.layers) else "")

    def _left_texts(self) -> list[str]:
        """The layers that are PyTorch's, by why they are."""
        reasons: dict[str, list[str]] = {}
        for layer in self.layers:
            if layer.reason is not None:
                reasons.setdefault(layer.reason, []).append(layer.title)
        return [f"{', '.join(dict.fromkeys(titles))}: {reason}" for reason, titles in reasons.items()]

    def _memory_text(self) -> str:
        kept = f"kept for the backward pass: PyTorch {_mib(self.memory.kept[0])}, ours {_mib(self.memory.kept[1])}"
        if self.memory.peak is None:
            return kept
        return (
            f"{kept}; peak of resident memory in a step: PyTorch {_mib(self.memory.peak[0])}, ours {_mib(self.memory.peak[1])}"
        )

    def settings_text(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.settings["versions"].items())
        return f"{versions}; threads: {self.settings['threads']}; {self.settings['cpu']}"

    def __str__(self) -> str:
        rows = [self.HEADER, *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.HEADER))]
        last = len(self.HEADER) - 1
        table = [
            "  ".join(
                text if place == last else text.ljust(width) if place == 0 else text.rjust(width)
                for place, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return "\n".join([*table, "", *(f"{title:<7} {text}" for title, text in self.lines())])

    def to_dict(self) -> dict[str, Any]:
        """All samples and settings, of plain types that JSON holds."""
        layers = [
            {
                "name": layer.name, "kind": layer.kind, "shape": list(layer.shape), "calls": layer.calls,
                "left_because": layer.reason, "gain": layer.gain,
                "ops": {op: times.to_dict() for op, times in layer.ops.items()},
            }
            for layer in self.layers
        ]  # fmt: skip
        return {
            "settings": self.settings, "step": self.step.to_dict(), "gain": self.gain, "gain_of_bests": self.gain_of_bests,
            "loss_apart": self.loss_apart, "busy": self.busy, "memory_bytes": _memory_dict(self.memory), "layers": layers,
        }  # fmt: skip

    def save(self, path: str | Path) -> None:
        """`to_dict` as a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    def plot(self, path: str | Path, theme: str = "light") -> None:
        """A picture for a page: bars of each layer, PyTorch's and ours (.png or .svg; theme "light" or "dark")."""
        from pullback.torch.comparing.plot import draw

        draw(self, Path(path), theme)


def _row(layer: LayerTimes) -> tuple[str, ...]:
    ops = [_pair(layer.ops.get(op)) for op in ("forward", "input gradient", "filter gradient")]
    times = f" x {layer.calls}" if layer.calls > 1 else ""
    what = f"{layer.kind} {'x'.join(map(str, layer.shape))}{times}"
    what += " on PyTorch" if layer.reason is not None else ""
    gain = "" if layer.gain is None else f"{layer.gain:.2f}"
    return (layer.title, _number(layer.total("pytorch")), _number(layer.total("ours")), gain, *ops, what)


def _pair(times: Times | None) -> str:
    if times is None:
        return "-"
    ours = times.median("ours")
    return _number(times.median("pytorch")) + ("" if ours is None else f" / {_number(ours)}")


def _number(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.2f}" if milliseconds < 100 else f"{milliseconds:.0f}"


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _memory_dict(memory: Memory) -> dict[str, Any]:
    def sides(pair: Sequence[int] | None) -> dict[str, int] | None:
        return None if pair is None else dict(zip(("pytorch", "ours"), pair, strict=True))

    return {name: sides(pair) for name, pair in (("kept_for_backward", memory.kept), ("peak_resident", memory.peak))}
