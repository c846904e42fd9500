"""Which cases `make test` runs of tests that take long; `make test-rest` runs all the others of them.

Of a test marked `quick("lmdb-*")` it runs only the cases of these patterns; of one marked `slow("hdf5")` all
but these; of one marked `rest` none.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import pytest
from hypothesis import settings


def examples(count: int) -> int:
    """So many examples of a law; half as many in `make test`, as in `make mutants`."""
    assert settings.default is not None
    return count * settings.default.max_examples // 60


def leave_to_the_rest(items: Iterable[pytest.Item], is_whole: bool) -> None:
    """Marks the cases that `make test` does not run.

    Args:
        items: the tests that were collected.
        is_whole: all tests of their files were; then a pattern that fits none of them is an error.
    """
    fits: dict[str, bool] = {}  # by test and pattern
    for item in items:
        test, _, case = item.nodeid.partition("[")
        for mark in (*item.iter_markers("quick"), *item.iter_markers("slow")):
            fitting = [pattern for pattern in mark.args if fnmatchcase(case.removesuffix("]"), pattern)]
            if bool(fitting) == (mark.name == "slow"):
                item.add_marker(pytest.mark.rest)
            for pattern in mark.args:
                fits[f"{test}[{pattern}]"] = fits.get(f"{test}[{pattern}]", False) or pattern in fitting
    lost = [pattern for pattern, does in fits.items() if not does]
    if lost and is_whole:
        raise pytest.UsageError(f"no case of these patterns exists: {', '.join(lost)}")
