"""OnnxError: what is wrong with a model, its data or a file, and what to do, in one message."""

from __future__ import annotations


class OnnxError(ValueError):
    """A model that cannot be read, run or trained as asked, or data that do not fit it."""
