"""The longest tests come first, so that none is begun when all others are done."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "::test_the_suite_passes" not in item.nodeid)
