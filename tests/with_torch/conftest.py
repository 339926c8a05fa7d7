"""The tests of pullback.torch are collected only where PyTorch is installed (make test-torch)."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
