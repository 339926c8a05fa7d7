"""Packages that only a part of the library needs: one clear line where one of them is not installed."""

from __future__ import annotations


def missing(error: ImportError, package: str, need: str) -> ImportError:
    """What to raise when importing a package failed: what to install, or the error itself if the package is there but broken."""
    if error.name != package:
        return error
    return ImportError(f"{need}: pip install 'pullback[{package}]'", name=package)
