"""The page on PyTorch runs with the tests that need it."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name == "torch.md":
            item.add_marker(pytest.mark.torch)
