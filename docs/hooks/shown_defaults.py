"""Signatures of the reference show what a default is, where the source has the name of a constant for it."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

import griffe


class ShownDefaults(griffe.Extension):
    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            name = str(parameter.default)
            if name.isidentifier() and name.isupper():
                with suppress(ImportError):  # of a framework that is not installed
                    parameter.default = repr(getattr(import_module(func.module.path), name))
