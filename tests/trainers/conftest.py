"""Collects the result of each test of the matrix, for docs/trainers.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matrix
import pytest

_found: dict[tuple[str, str], list[tuple[str, str]]] = {}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cell(trainer, column, says): the cell of the matrix that a test fills"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    marker = item.get_closest_marker("cell")
    if marker is not None and (report.when == "call" or report.failed):
        report.user_properties.append(("cell", [*marker.args, marker.kwargs.get("says", "yes")]))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == "cell":
            trainer, column, says = value
            _found.setdefault((trainer, column), []).append((report.outcome, says))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the results, unless this process is one of several test processes, or tested only a part."""
    config = session.config
    is_whole = not config.option.keyword and all(Path(argument).is_dir() for argument in config.args)
    if not hasattr(config, "workerinput") and is_whole and _found:
        matrix.keep(_found)
