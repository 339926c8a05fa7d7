"""The tests of tests/peers are collected only where the packages that they ask are installed (make test-peers)."""

from importlib.util import find_spec

NEEDS = {"test_opinfo.py": ("torch", "expecttest"), "test_onnx_nodes.py": ("onnx",)}
collect_ignore = [name for name, packages in NEEDS.items() if not all(map(find_spec, packages))]
