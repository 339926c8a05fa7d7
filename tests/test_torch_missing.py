"""Without PyTorch: `import pullback` does not ask for it, and `import pullback.torch` says in one line what to install."""

from __future__ import annotations

from cpu_calls import run_python


def test_import_pullback_imports_no_torch() -> None:
    assert run_python("import sys, pullback; print('torch' in sys.modules)").strip() == "False"


def test_missing_torch_is_one_clear_line() -> None:
    source = """
import sys
sys.modules["torch"] = None
try:
    import pullback.torch
except ImportError as error:
    print(error)
"""
    assert run_python(source).strip() == "pullback.torch needs PyTorch: pip install 'pullback[torch]'"
