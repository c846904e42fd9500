"""An exception says which row, or which rows, raised it: with and without workers, and of its own type."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own import Mapped
from torch.utils.data import Subset

import torchyoga as yoga

BAD, LENGTH = 27, 40


class SlowDigits(Mapped):
    def __init__(self, fail: Callable[[], object] = lambda: json.loads("{")) -> None:
        super().__init__(LENGTH)
        self.fail = fail

    def __getitem__(self, row: int) -> Any:
        if row == BAD:
            self.fail()
        return {"x": np.float32(row)}


class Together(SlowDigits):
    def __getitems__(self, rows: list[int]) -> Any:
        return [self[row] for row in rows]


def fails(row: Any) -> Any:
    return row if row["x"] != BAD else b"\xff".decode()


def collated(rows: Any) -> Any:
    return list(map(fails, rows))


def stop() -> None:
    raise StopIteration


DIGITS = yoga.from_arrays({"x": np.arange(LENGTH, dtype=np.float32)})
ROWS = "24, 25, 26, 27, 28, 29, 30, 31"
ROW = "in row 27 of SlowDigits, batch 3 of epoch 0; dataset[27] raises it"
LOADED: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "row": (SlowDigits(), {}, json.JSONDecodeError, ROW),
    "row not seeded": (SlowDigits(), {"seed_rows": False}, json.JSONDecodeError, ROW),
    "StopIteration": (SlowDigits(stop), {}, RuntimeError, ROW),
    "single row": (
        *(SlowDigits(), {"batch_size": None}, json.JSONDecodeError),
        "in row 27 of SlowDigits, epoch 0; dataset[27] raises it",
    ),
    "Subset": (
        *(Subset(SlowDigits(), range(LENGTH - 1, -1, -1)), {}, json.JSONDecodeError),
        "in row 12 of Subset (row 27 of SlowDigits), batch 1 of epoch 0; dataset[12] raises it",
    ),
    "rows by one call": (
        *(Together(), {}, json.JSONDecodeError, f"in one of the rows {ROWS} of Together, batch 3 of epoch 0"),
    ),
    "collation": (
        *(SlowDigits(lambda: 0), {"collate_fn": collated}, UnicodeDecodeError),
        f"in collating the rows {ROWS} of SlowDigits, batch 3 of epoch 0",
    ),
    "collation of a DataRef": (
        *(DIGITS, {"collate_fn": collated}, UnicodeDecodeError),
        f"in collating the rows {ROWS} of DataRef arrays, batch 3 of epoch 0",
    ),
    "map": (
        *(DIGITS.map(fails), {}, UnicodeDecodeError),
        "in row 27 of DataRef arrays after fails, batch 3 of epoch 0; dataset[27] raises it",
    ),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", LOADED)
def test_a_loader_says_which_row_of_which_batch_raised(name: str, workers: int) -> None:
    data, arguments, kind, expected = LOADED[name]
    loader = yoga.DataLoader(data, **{"batch_size": 8, "num_workers": workers, **arguments})
    if arguments.get(
        "batch_size", 8
    ):  # batches are counted from the beginning of the epoch, after a resume too
        loader.load_state_dict({**loader.state_dict(), "position": 8, "steps": 1, "proof": None})
    assert raised_by(loader) == (kind, [expected], False)


def raised_by(loader: Any) -> tuple[type[Exception], list[str], bool]:
    """The type and the notes of what a loader raises, and whether its text has a note, too."""
    try:
        list(loader)
    except Exception as error:
        text = f"{error} {error.__cause__}"
        return type(error), error.__notes__, " of epoch 0" in text  # type: ignore[attr-defined,unused-ignore]
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("workers", [0, 2])
def test_submit_says_which_row_raised(workers: int, tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    for data, note in (
        (SlowDigits(), "in row 27 of SlowDigits; dataset[27] raises it"),
        (Together(), "27, 28"),
        *([] if workers else [((SlowDigits()[row] for row in range(LENGTH)), "in row 27 of <genexpr>")]),
    ):
        others = multiprocessing.active_children()
        with pytest.raises(json.JSONDecodeError) as caught:
            storage.submit(data, "digits", "1", num_workers=workers)
        assert not {*multiprocessing.active_children()}.difference(others)
        (found,) = caught.value.__notes__
        assert note in found


def test_map_and_where_say_which_row_raised() -> None:
    for ask in (lambda: DIGITS.map(fails)[BAD], lambda: list(DIGITS.map(fails))):
        with pytest.raises(UnicodeDecodeError) as caught:
            ask()
        assert caught.value.__notes__ == ["in row 27 of DataRef arrays after fails"]
    with pytest.raises(ZeroDivisionError) as divided:
        DIGITS.where("x", lambda values: np.array([1 / (int(value) - BAD) > 0 for value in values]))
    assert divided.value.__notes__ == ["in a condition of row 27 of DataRef arrays"]
    with pytest.raises(ZeroDivisionError) as divided:
        list(DIGITS.map_batches(lambda columns: {"x": 1 // int(BAD not in columns["x"]) * columns["x"]}))
    assert "27" in divided.value.__notes__[0]


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """An exception that refuses to be given an attribute."""

    code: int


class Unreadable(Exception):
    @property
    def __notes__(self) -> Any:
        raise OSError("notes cannot be read")


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", [Frozen(3), Unreadable("bad")], ids=lambda error: type(error).__name__)
def test_an_exception_that_takes_no_attribute_comes_as_itself(error: Exception, workers: int) -> None:
    data = SlowDigits(lambda: fail(error))
    batches = iter(yoga.DataLoader(data, 8, num_workers=workers))
    with pytest.raises(type(error)) as caught:
        list(batches)
    assert [note[: len("in row 27")] for note in vars(caught.value)["__notes__"]] == ["in row 27"]
    assert len(list(batches)) == 1


@pytest.mark.parametrize("data", [SlowDigits, lambda fail: Subset(SlowDigits(fail), range(LENGTH))])
def test_an_exception_that_is_raised_again_notes_the_batch_of_now(data: Any) -> None:
    error = ValueError("one object")
    error.__notes__ = ["the user's"]  # type: ignore[attr-defined,unused-ignore]
    for size in (8, 4):
        with pytest.raises(ValueError, match="one object") as caught:
            list(yoga.DataLoader(data(lambda: fail(error)), size))
        theirs, ours = caught.value.__notes__  # type: ignore[attr-defined,unused-ignore]
        assert (theirs, f"batch {BAD // size} of" in ours) == ("the user's", True)
    broken = DIGITS.map(lambda row: fail(error))
    for number in (7, 13):
        with pytest.raises(ValueError, match="one object"):
            broken[number]
    assert [f"in row {number} " in "".join(error.__notes__) for number in (7, 13)] == [False, True]  # type: ignore[attr-defined,unused-ignore]
