"""What cannot be sent from a worker process is an error of its batch, and never waited for."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest
import torch
from torch.utils.data import default_convert
from waiting import PATIENCE

import torchyoga as yoga
from torchyoga.loading.parcel import sendable

REF = yoga.from_arrays({"x": np.arange(36)})


class Local(NamedTuple):
    x: object


class Blob:
    """Arrives only in the process in which it was made."""

    def __reduce__(self) -> Any:
        return _refused, (1,)


def _refused(number: int) -> None:
    raise ValueError("this does not open")


def unsendable() -> list[tuple[Any, type[Exception], str]]:
    """Values that do not arrive, and what is said of each."""

    class Inner:
        pass

    class Pair(NamedTuple):
        x: int

    culprits = [
        (lambda: 1, "a function"),
        (Inner(), "a Inner"),
        ((x for x in [1]), "a generator"),
        (Pair(1), "a Pair"),
        ({Inner(): 1}, "a Inner"),
        ({"a": [Local([lambda: 1])]}, "a function"),
        (np.array([lambda: 1]), "a ndarray"),
    ]
    text = "cannot be sent from a worker process: there is {} in it.*return tensors, .*or use num_workers=0"
    return [
        *((value, TypeError, text.format(culprit)) for value, culprit in culprits),
        # Torch's own loader waits for it for ever.
        (torch.ones(1, requires_grad=True) * 2, RuntimeError, "Cowardly refusing to serialize"),
        (Blob(), ValueError, "this does not open"),
    ]


def loader(collate: Any, **options: Any) -> Iterator[Any]:
    options = {"batch_size": 2, "num_workers": 2, "timeout": PATIENCE, **options}
    return iter(yoga.DataLoader(REF, collate_fn=collate, **options))


@pytest.mark.parametrize(
    "options",
    [{"batch_size": None}, {"batch_size": 1}, {"in_order": False}, {"persistent_workers": True}],
    ids=str,
)
def test_what_does_not_arrive_is_the_error_of_its_batch_or_row(options: dict[str, Any]) -> None:
    """Every other batch is of a number."""
    size = options.get("batch_size", 2) or 1
    expected = unsendable() * (2 // size)

    def made(rows: Any) -> Any:
        kind, is_odd = divmod(int(rows["x"] if isinstance(rows, dict) else rows[0]["x"]) // size, 2)
        return [expected[kind][0], 1] if is_odd else kind

    batches, numbers, errors = loader(made, **options), [], []
    for _ in range(2 * len(expected)):
        try:
            numbers.append(next(batches))
        except (TypeError, RuntimeError, ValueError) as error:
            errors.append((type(error), str(error)))  # the error itself would keep the workers
    assert next(batches, None) is None
    assert len(errors) == len(expected)
    if options.get("in_order", True):
        assert numbers == [*range(len(expected))]
        for (found, text), (_, kind, message) in zip(errors, expected, strict=True):
            assert found is kind
            assert re.search(message, text)
    else:
        assert sorted(numbers) == [*range(len(expected))]


def test_batches_that_travel_with_one_that_cannot_arrive() -> None:
    data = [1, 2, lambda: 1, 4, 5, 6]
    batches = iter(yoga.DataLoader(data, 1, num_workers=1, collate_fn=default_convert, timeout=PATIENCE))
    assert [next(batches), next(batches)] == [[1], [2]]
    with pytest.raises(TypeError, match="a function in it"):
        next(batches)
    assert list(batches) == [[4], [5], [6]]


class Demanding(Exception):
    def __init__(self, row: int, column: str) -> None:
        super().__init__(f"row {row} of {column}")


class Adding(Exception):
    def __init__(self, row: int) -> None:
        super().__init__(f"row {row + 1} fails")


class Named(Exception):
    def __init__(self, *, row: int) -> None:
        super().__init__(f"the row named {row}")


class WithMessage(Exception):
    message = "none"

    def __init__(self, row: int, message: str = "nothing") -> None:
        super().__init__(message)


class Formatted(Exception):
    def __str__(self) -> str:
        return f"row {self.args[0]:.1f}"


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


class Delegating(Exception):
    def __getattr__(self, name: str) -> None:
        return None


def _local() -> Exception:
    class Inner(ValueError):
        pass

    return Inner("of a local class")


def _unknown() -> Exception:
    module: Any = types.ModuleType("known_to_the_worker")
    sys.modules[module.__name__] = module
    exec("class Unknown(Exception): pass", vars(module))
    error: Exception = module.Unknown("of another module")
    return error


ODD: dict[str, tuple[Callable[[], Exception], str]] = {
    "RuntimeError, local": (_local, "Inner: of a local class"),
    "RuntimeError, unknown": (_unknown, "Unknown: of another module"),
    "RuntimeError, of two": (lambda: Demanding(2, "x"), "Demanding: row 2 of x"),
    "RuntimeError, adding": (lambda: Adding(2), "Adding: row 3 fails"),
    "RuntimeError, named": (lambda: Named(row=2), "Named: the row named 2"),
    "RuntimeError, message": (lambda: WithMessage(2, "bad row"), "WithMessage: bad row"),
    "Mute": (lambda: Mute(2), "Mute"),
    "Formatted": (lambda: Formatted(2.0), "row 2.0"),
    "Delegating": (lambda: Delegating("to whatever"), "to whatever"),
}
if Group := getattr(builtins, "ExceptionGroup", None):  # since Python 3.11
    ODD["ExceptionGroup"] = (lambda: Group("rows fail", [KeyError(2)]), "rows fail")
    ODD["RuntimeError, group"] = (lambda: Group("rows fail", [Demanding(2, "x")]), "row 2 of x")


class Failing:
    """Rows, a function of a worker, and something that cannot be pickled: each raises an error."""

    def __init__(self, make: Callable[[], Exception]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> int:
        return row if row != 2 else self(row)

    def __call__(self, row: int) -> NoReturn:
        raise self.make()

    def __reduce__(self) -> NoReturn:
        self(2)


@pytest.mark.quick("RuntimeError, local", "RuntimeError, of two", "Formatted", "Mute", "Delegating")
@pytest.mark.parametrize("name", ODD)
def test_errors_of_all_classes_name_their_cause(name: str, tmp_path: Path) -> None:
    make, text = ODD[name]
    failing, storage = Failing(make), yoga.Storage(tmp_path)
    for run in (
        lambda: list(yoga.DataLoader(failing, 1, num_workers=1)),
        lambda: list(yoga.DataLoader(failing, None, num_workers=1)),
        lambda: next(loader(lambda rows: failing, num_workers=1)),
        lambda: storage.submit(failing, "a", "1", num_workers=2, progress=False),
    ):
        error = _raised_by(run)
        assert type(error).__name__ == name.split(",")[0]
        assert text in f"{error!r} {error.__cause__}"
    error = _raised_by(lambda: next(iter(yoga.DataLoader(range(4), num_workers=2, worker_init_fn=failing))))
    assert text in str(error) or make is _unknown  # torch pickles the class
    assert type(_raised_by(lambda: list(yoga.DataLoader(failing)))).__name__ == type(make()).__name__


def _raised_by(run: Callable[[], object]) -> Exception:
    try:
        run()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_workers_that_could_not_be_set_up_end_before_their_error_is_raised() -> None:
    batches = iter(yoga.DataLoader(range(4), num_workers=2, worker_init_fn=Failing(lambda: ValueError("no"))))
    others = multiprocessing.active_children()
    error = _raised_by(lambda: next(batches))
    assert not {*multiprocessing.active_children()}.difference(others), str(error)
    assert "ValueError: no" in str(error)


@pytest.mark.parametrize("is_workers", [True, False])
def test_too_many_open_files_are_said_to_be_the_cause(is_workers: bool) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 50
    count = 200 if is_workers else 10
    rows = loader(lambda row: [torch.nn.Parameter(torch.ones(1)) for _ in range(count)], batch_size=None)
    kept: list[Any] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        error = _raised_by(lambda: kept.extend(rows))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    kind, text = type(error), str(error)
    del error  # which would keep the workers
    assert issubclass(kind, RuntimeError)
    assert re.search(r"ulimit -n.*set_sharing_strategy\('file_system'\)", text)


def test_plain_data_is_not_pickled_twice() -> None:
    batch = [{1: (1, 0.5, None, b"x", "y"), "a": np.arange(4), "n": np.float32(1)}, [Local(1)]]
    assert sendable(batch, 2) is batch
