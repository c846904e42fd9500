"""Rows with columns of many kinds, for views of all sorts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from own import Made, Own
from smallfiles import make_files_of

import torchyoga as yoga

ROWS = [
    {
        "id": number,
        "text": "abc"[number % 3] * (number % 4),
        "ids": np.arange(number % 5, dtype=np.int32),
        "meta": {"half": number / 2, "pair": (np.float32(number), torch.tensor([number, 1]))},
    }
    for number in range(60)
]


SCHEMA = yoga.Schema.of(ROWS[0], ragged=["ids"])
OWN = Own(ROWS, SCHEMA, "own")
# What reads a format has tests of its own, so one is enough for `make test`.
FORMATS = ["lmdb", pytest.param("hdf5", marks=pytest.mark.rest)]


def in_a_version(rows: Any, schema: yoga.Schema | None = None) -> Any:
    """A fixture: these rows in a version."""

    @pytest.fixture(scope="module")
    def made(tmp_path_factory: pytest.TempPathFactory) -> yoga.DataRef:
        storage = yoga.Storage(tmp_path_factory.mktemp("rows"))
        return storage.submit(rows, "rows", "1", schema=schema, progress=False)

    return made


def in_every_format(own: Made, file_rows: int | None = None) -> Any:
    """A fixture: these rows in a version of each format, of so many in each file, and as they are."""

    @pytest.fixture(scope="module", params=[*FORMATS, "own"])
    def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> yoga.DataRef:
        if request.param == "own":
            return own
        with pytest.MonkeyPatch.context() as patch:
            if file_rows is not None:
                make_files_of(file_rows, patch.setattr)
            storage = yoga.Storage(tmp_path_factory.mktemp("rows"), format=request.param)
            return storage.submit(list(own), "rows", "1", schema=own.schema, progress=False)

    return made
