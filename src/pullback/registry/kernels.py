"""What a kernel is, what it says of a problem (a verdict), and the account of a choice (an explanation)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pullback.problem import AnyProblem

Accepts = Callable[[Any], str | None]
Run = Callable[..., Any]
Steps = Callable[[Any, Any], Any]


class KernelError(RuntimeError):
    """No kernel can run the problem under the backend or name that was asked for, or a plug-in's kernel broke its promise."""


class MissingCode(KernelError):  # noqa: N818 (what it says)
    """There is no machine code for this kernel on this CPU, and nothing to compile it with."""


@dataclass(frozen=True)
class Kernel:
    """A registered kernel.

    `error`: what its results err by beyond a plain sum's rounding, by norm, in units of that rounding. `note`: what it does
    otherwise for some data, which cannot be seen from a problem. `aliases`: older names, or names of several kernels together.
    `steps`: of a problem, and the order in which its filter lies, the jobs that a call is (cpu/engine/sequence.py), where it is
    nothing but jobs; else None.
    """

    op: str
    backend: str
    name: str
    can: Accepts
    run: Run
    pays: Accepts | None = None
    error: float = 0.0
    note: str = ""
    aliases: tuple[str, ...] = ()
    steps: Steps | None = None

    @property
    def label(self) -> str:
        """The name with its backend's, as explanations print it."""
        return f"{self.backend}/{self.name}"

    def is_named(self, name: str) -> bool:
        """Whether a name, with or without the backend's, is this kernel's."""
        return name.removeprefix(f"{self.backend}/") in (self.name, *self.aliases)

    def verdict(self, problem: AnyProblem) -> Verdict:
        cannot = self.can(problem)
        loses = None if cannot is not None or self.pays is None else self.pays(problem)
        return Verdict(self, cannot, loses)

    def relative_error(self, dtype: Any) -> float:
        """`error` as a number, for results of this type; half-precision results are summed in float32."""
        return self.error * (2.0**-52 if dtype.name == "float64" else 2.0**-23)


@dataclass(frozen=True)
class Verdict:
    """What a kernel said of a problem: why it cannot run it, or if it can, why another would be quicker."""

    kernel: Kernel
    cannot: str | None
    loses: str | None

    @property
    def reason(self) -> str | None:
        """Why dispatch passes the kernel over; None where it does not."""
        return self.loses if self.cannot is None else self.cannot


def by_preference(verdicts: Iterable[Verdict], by_name: bool) -> Iterator[Verdict]:
    """Those that may run, as they are preferred: in order those that pay; asked for by name, then those that merely can."""
    able: list[Verdict] = []
    for verdict in verdicts:
        if verdict.reason is None:
            yield verdict
        elif by_name and verdict.cannot is None:
            able.append(verdict)
    yield from able


@dataclass(frozen=True)
class Explanation:
    """Which kernel would run a problem and why each one before it would not; printable. `by_name`: a kernel was asked for."""

    problem: AnyProblem
    backend: str
    verdicts: tuple[Verdict, ...]
    by_name: bool = False

    @property
    def chosen(self) -> Kernel | None:
        return next((v.kernel for v in by_preference(self.verdicts, self.by_name)), None)

    def __str__(self) -> str:
        p, chosen = self.problem, self.chosen
        lines = [f"{p.op} {p.input_shape} -> {p.output_shape} {p.dtype.name} {p.layout}, backend {self.backend!r}"]
        for verdict in self.verdicts:
            label = verdict.kernel.label
            error = verdict.kernel.relative_error(p.dtype)
            if error:
                label += f' (relative error up to about {error:.0e}; not under precision "exact")'
            if verdict.cannot is not None:
                lines.append(f"  refused   {label}: {verdict.cannot}")
            elif verdict.kernel is chosen:
                slower = f", asked for by name; slower: {verdict.loses}" if verdict.loses is not None else ""
                lines.append(f"  runs      {label}{slower}")
                if verdict.kernel.note:
                    lines.append(f"            {verdict.kernel.note}")
            elif verdict.loses is not None:
                lines.append(f"  slower    {label}: {verdict.loses}")
            else:
                lines.append(f"  available {label}")
        if chosen is None:
            lines.append("  no kernel accepts this problem")
        return "\n".join(lines)
