"""Tests in this folder need the pretended GPU, of which they ask what no real one tells."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.gpu)
