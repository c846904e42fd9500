"""What cannot be sent from a worker process is an error of its batch, and never waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_convert
from waiting import PATIENCE

import torchyoga as yoga
from torchyoga.loading.parcel import sendable

REF = yoga.from_arrays({"x": np.arange(8)})


class Local(NamedTuple):
    x: object


class Blob:
    """Arrives only in the process in which it was made."""

    def __reduce__(self) -> Any:
        return _refused, (1,)


def _refused(number: int) -> None:
    raise ValueError("this does not open")


def _locals() -> dict[str, Any]:
    class Inner:
        pass

    class Pair(NamedTuple):
        x: int

    return {
        "lambda": lambda: 1,
        "object": Inner(),
        "generator": (x for x in [1]),
        "namedtuple": Pair(1),
        "key": {Inner(): 1},
        "nested": {"a": [Local([lambda: 1])]},
        "objects": np.array([lambda: 1]),
    }


FOUND = {
    "lambda": "a function",
    "object": "a Inner",
    "generator": "a generator",
    "namedtuple": "a Pair",
    "key": "a Inner",
    "nested": "a function",
    "objects": "a ndarray",
}


def loader(collate: Any, **options: Any) -> Iterator[Any]:
    options = {"batch_size": 2, "num_workers": 2, "timeout": PATIENCE, **options}
    return iter(yoga.DataLoader(REF, collate_fn=collate, **options))


@pytest.mark.parametrize("what", FOUND)
def test_what_cannot_be_pickled_is_the_error_of_its_batch(what: str) -> None:
    batches = loader(lambda rows: [_locals()[what], 1] if rows[0]["x"] == 2 else int(rows[0]["x"]))
    assert next(batches) == 0
    with pytest.raises(
        TypeError, match=rf"cannot be sent from a worker process.* {FOUND[what]} in it"
    ) as error:
        next(batches)
    assert "return tensors, arrays or plain data, or use num_workers=0" in str(error.value)
    assert list(batches) == [4, 6]


@pytest.mark.parametrize("options", [{"in_order": False}, {"persistent_workers": True}], ids=str)
def test_under_other_options_too(options: dict[str, Any]) -> None:
    batches = loader(lambda rows: (lambda: 1) if rows[0]["x"] == 2 else int(rows[0]["x"]), **options)
    found, errors = [], 0
    for _ in range(4):
        try:
            found.append(next(batches))
        except TypeError:
            errors += 1
    assert (sorted(found), errors) == ([0, 4, 6], 1)


def test_single_rows_too() -> None:
    rows = loader(lambda row: (lambda: 1) if row["x"] == 2 else row["x"], batch_size=None)
    assert [next(rows), next(rows)] == [0, 1]
    with pytest.raises(TypeError, match="a function in it"):
        next(rows)
    assert list(rows) == [3, 4, 5, 6, 7]


def test_a_single_row_with_a_graph_too() -> None:
    rows = loader(lambda row: torch.ones(1, requires_grad=True) * 2 if row["x"] == 2 else 1, batch_size=None)
    assert [next(rows), next(rows)] == [1, 1]
    with pytest.raises(RuntimeError, match="Cowardly"):
        next(rows)
    assert list(rows) == [1] * 5


def test_batches_that_travel_with_one_that_cannot_arrive() -> None:
    data = [1, 2, lambda: 1, 4, 5, 6]
    batches = iter(yoga.DataLoader(data, 1, num_workers=1, collate_fn=default_convert, timeout=PATIENCE))
    assert [next(batches), next(batches)] == [[1], [2]]
    with pytest.raises(TypeError, match="a function in it"):
        next(batches)
    assert list(batches) == [[4], [5], [6]]


def test_what_cannot_be_unpickled_is_the_error_of_its_batch() -> None:
    for size, rest in ((2, [4, 6]), (None, [3, 4, 5, 6, 7])):
        batches = loader(lambda rows: Blob() if _first(rows) == 2 else _first(rows), batch_size=size)
        assert next(batches) == 0
        if size is None:
            assert next(batches) == 1
        with pytest.raises(ValueError, match="this does not open"):
            next(batches)
        assert list(batches) == rest


def _first(rows: Any) -> int:
    return int(rows["x"] if isinstance(rows, dict) else rows[0]["x"])


class Demanding(Exception):
    def __init__(self, row: int, column: str) -> None:
        super().__init__(f"row {row} of {column}")


def _failing(kind: str) -> Exception:
    class Inner(ValueError):
        pass

    return Inner("of a local class") if kind == "local" else Demanding(2, "x")


@pytest.mark.parametrize("size", [2, None])
@pytest.mark.parametrize("kind", ["local", "demanding"])
def test_errors_that_cannot_be_sent_arrive_as_others(kind: str, size: int | None) -> None:
    def collate(rows: Any) -> int:
        if _first(rows) == 2:
            raise _failing(kind)
        return _first(rows)

    batches = loader(collate, batch_size=size)
    good = [0] if size == 2 else [0, 1]
    assert [next(batches) for _ in good] == good
    with pytest.raises(RuntimeError, match="of a local class" if kind == "local" else "row 2 of x"):
        next(batches)
    assert list(batches) == ([3, 4, 5, 6, 7] if size is None else [4, 6])


def test_an_error_of_worker_init_fn_that_cannot_be_sent_arrives() -> None:
    def init(worker: int) -> None:
        raise _failing("local")

    with pytest.raises(RuntimeError, match="of a local class"):
        next(loader(None, worker_init_fn=init))


def test_plain_data_is_not_pickled_twice() -> None:
    batch = [{1: (1, 0.5, None, b"x", "y"), "a": np.arange(4), "n": np.float32(1)}, [Local(1)]]
    assert sendable(batch, 2) is batch
