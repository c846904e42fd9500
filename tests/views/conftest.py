"""Datasets that several files of this folder look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from records import FORMATS, ROWS, SCHEMA

import torchyoga as yoga


@pytest.fixture(scope="module", params=FORMATS)
def ref(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> yoga.DataRef:
    storage = yoga.Storage(tmp_path_factory.mktemp("views"), format=request.param)
    return storage.submit(ROWS, "rows", "1", schema=SCHEMA, progress=False)


@pytest.fixture(scope="module")
def labelled() -> yoga.DataRef:
    label = np.repeat([0, 1, 2], [70, 20, 10])
    return yoga.from_arrays({"id": np.arange(100), "label": label, "name": np.array(["a", "b", "c"])[label]})


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    """An empty one."""
    return yoga.Storage(tmp_path)
