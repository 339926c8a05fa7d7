"""Where a CPU's measured figures are kept: one small JSON file in the cache folder for each CPU, level and version."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pullback import __version__
from pullback.cpu.engine.machine import cpu_model
from pullback.cpu.engine.profile import FIGURES, PROFILE_VARIABLE, Profile
from pullback.cpu.machine_code import trust
from pullback.cpu.machine_code.disk_cache import cache_directory, make_folder, write_aside
from pullback.cpu.machine_code.levels import level

FORMAT = 1
MOST_BYTES = 64 << 10


def path() -> Path:
    """The file of this CPU. All its cores count, not those in reach: what is chosen must not depend on an affinity mask."""
    key = json.dumps([FORMAT, __version__, cpu_model(), level().name, os.cpu_count()])
    return cache_directory() / f"profile-{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"


def parse(text: str | bytes, source: str) -> Profile:
    """Figures from JSON; ValueError where something is missing or no such number."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"it has not the format {FORMAT}")
    for name in FIGURES:
        value: Any = document.get(name)
        if type(value) not in (int, float) or not 0 < value < math.inf:  # nor NaN
            raise ValueError(f"its figure {name!r} is {value!r}; it must be a number above 0")
    if not (isinstance(document.get("cores"), int) and all(isinstance(document.get(name), str) for name in ("cpu", "level"))):
        raise ValueError("cpu, level or cores are missing")
    known: dict[str, Any] = {name: float(document[name]) for name in FIGURES}
    return Profile(source=source, cpu=document["cpu"], level=document["level"], cores=document["cores"], **known)


def read() -> Profile | None:
    """What is kept of this CPU; None where nothing is, or it is damaged, or others could have written it."""
    file = path()
    text = trust.contents(file, MOST_BYTES) if trust.why_shared(file.parent) is None else None
    if text is None:
        return None
    try:
        return parse(text, f"measured, kept in {file}")
    except (ValueError, RecursionError):
        return None


def read_named(name: str) -> Profile:
    """The figures of a file that $PULLBACK_PROFILE names; ValueError with the reason where it has none."""
    try:
        return parse(Path(name).read_bytes(), f"from {name}")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{PROFILE_VARIABLE} is {name!r}, which is neither builtin nor measure nor a file of figures: {error}"
        ) from None


def text_of(figures: Profile) -> str:
    return json.dumps({"format": FORMAT, **{k: v for k, v in asdict(figures).items() if k != "source"}}, indent=1) + "\n"


def write(figures: Profile) -> bool:
    """Keep the figures of this CPU; whether that could be done."""
    file = path()
    return make_folder(file.parent) and write_aside(file, text_of(figures).encode())


def forget() -> bool:
    """Remove what is kept of this CPU; whether there was anything."""
    try:
        path().unlink()
    except OSError:
        return False
    return True
