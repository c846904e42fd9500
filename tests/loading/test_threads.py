"""Where rows are only copied, `num_workers` means threads; what is promised of processes holds for them."""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaged import flip
from waiting import at_once, switching_often

import torchyoga as yoga
from torchyoga.errors import CorruptError
from torchyoga.loading import plan as plan_module

ROWS = 300


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "usable_cpus", lambda: 4)


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> yoga.DataRef:
    data = {"x": np.arange(ROWS * 1500).reshape(ROWS, 1500), "label": np.arange(ROWS)}
    return yoga.Storage(tmp_path_factory.mktemp("rows")).submit(data, "rows", "1", progress=False)


def labels(batches: Any, seconds: float = 0.0) -> list[list[int]]:
    found = []
    for batch in batches:
        found.append(batch["label"].tolist())
        time.sleep(seconds)  # threads read ahead only of a loop that takes its time
    return found


def test_the_order_is_as_without_and_threads_read(ref: yoga.DataRef, four_cpus: None) -> None:
    others = set(multiprocessing.active_children())
    expected = labels(yoga.DataLoader(ref, 2, shuffle=True, seed=3))
    loader = yoga.DataLoader(ref, 2, shuffle=True, seed=3, num_workers=2)
    found, names = [], set()
    for batch in loader:
        names |= {thread.name for thread in threading.enumerate()}
        found.append(batch["label"].tolist())
        assert torch.equal(batch["x"][:, 0], batch["label"] * 1500)
        time.sleep(0.002)
    assert found == expected
    assert loader.meter.workers == "2 threads"
    assert set(multiprocessing.active_children()) <= others
    assert "torchyoga-ahead" in names


@pytest.mark.parametrize(("pixels", "helped"), [(0, False), (9000, True)])
def test_objects_are_made_by_one_thread(tmp_path: Path, four_cpus: None, pixels: int, helped: bool) -> None:
    rows = [{"text": bytes(3000), "x": np.zeros(pixels, np.uint8)} for _ in range(ROWS)]
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1", progress=False)
    before, batches = set(threading.enumerate()), iter(yoga.DataLoader(ref, 2, num_workers=2))
    assert next(batches)["text"] == [bytes(3000)] * 2
    # Another thread begins where a loop takes its time, which this one has not shown yet.
    assert bool(set(threading.enumerate()) - before) == helped
    assert len(list(batches)) == ROWS // 2 - 1


@pytest.mark.parametrize("stop", [1, 7, 30])
def test_a_state_within_an_epoch_goes_on(ref: yoga.DataRef, four_cpus: None, stop: int) -> None:
    whole = labels(yoga.DataLoader(ref, 8, shuffle="block", seed=1))
    loader = yoga.DataLoader(ref, 8, shuffle="block", seed=1, num_workers=3)
    batches = iter(loader)
    first = [labels([next(batches)], 0.002)[0] for _ in range(stop)]
    again = yoga.DataLoader(ref, 8, shuffle="block", seed=1, num_workers=3)
    again.load_state_dict(loader.state_dict())
    assert first + labels(again, 0.001) == whole
    again.prove()


@pytest.mark.damages("a flipped bit")
def test_a_flipped_bit_is_an_error_before_its_batch(tmp_path: Path, four_cpus: None) -> None:
    data = {"x": np.zeros((ROWS, 12288), np.uint8), "label": np.arange(ROWS)}
    storage = yoga.Storage(tmp_path)
    storage.submit(data, "rows", "1", progress=False)
    (path,) = (tmp_path / "rows" / "1").glob("*.mdb")
    flip(path, path.stat().st_size // 2)
    loader = yoga.DataLoader(storage.fetch("rows", "1"), 8, num_workers=2)
    batches, errors = iter(loader), 0
    while True:
        try:
            batch = next(batches)
        except CorruptError:
            errors += 1
        except StopIteration:
            break
        else:
            assert not batch["x"].any()
            time.sleep(0.001)
    assert errors >= 1


def test_a_batch_that_is_held_stays_as_it_is(ref: yoga.DataRef, four_cpus: None) -> None:
    held = []
    for batch in yoga.DataLoader(ref, 8, shuffle=True, num_workers=3, prefetch_factor=4):
        held.append((batch["x"], batch["x"].clone()))
        time.sleep(0.001)
    assert all(torch.equal(one, copy) for one, copy in held)


def own_collate(rows: Any) -> Any:
    return torch.utils.data.default_collate(rows)


class OwnOrder:
    """A sampler of which nothing is known."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))


def init(worker: int) -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("options", "workers", "way"),
    [
        ({}, "2 threads", "read ahead by 2 threads"),
        ({"num_workers": 9}, "3 threads", "by 3 threads"),  # one processor is left to the loop
        ({"num_workers": 1}, "1 thread", "read ahead by a thread"),
        ({"num_workers": 0}, "this process", "read ahead by a thread"),
        ({"num_workers": 0, "prefetch_factor": 0}, "this process", "asked for, as prefetch_factor is 0"),
        ({"collate_fn": own_collate}, "2 processes", "as the collate function is your own"),
        ({"worker_init_fn": init}, "2 processes", "as an argument is for processes"),
        ({"multiprocessing_context": "fork"}, "2 processes", "as an argument is for processes"),
        ({"timeout": 60}, "2 processes", "as an argument is for processes"),
        ({"in_order": False}, "2 processes", "as batches may come in any order"),
        ({"seed_rows": True}, "2 processes", "as each row has random numbers of its own"),
        ({"num_workers": 1, "batch_size": None}, "1 process", "as rows are handed out one by one"),
        ({"sampler": OwnOrder()}, "2 processes", "as the sampler draws when it is asked"),
    ],
)
def test_code_of_the_users_runs_in_processes(
    ref: yoga.DataRef, four_cpus: None, options: dict[str, Any], workers: str, way: str
) -> None:
    is_many = options.get("num_workers", 2) > 2
    with warnings.catch_warnings(record=True) as said:  # torch warns of more workers than processors
        loader = yoga.DataLoader(ref, **{"batch_size": 50, "num_workers": 2, **options})
    assert not (is_many and said)
    assert len(list(loader)) > 5
    assert loader.meter.workers == workers
    assert loader.meter._setting.asked == loader.num_workers
    assert repr(loader).endswith(way + ")")


def test_which_data_is_only_copied(ref: yoga.DataRef, tmp_path: Path) -> None:
    arrays = yoga.from_arrays({"x": np.arange(ROWS)})
    copied = [
        ref,
        ref.columns(["label"]),
        ref[10:20],
        ref.split([0.5, 0.5])[0],
        yoga.concat([ref, ref]),
        arrays,
    ]
    assert all(one._only_copies for one in copied)
    packed = yoga.Storage(tmp_path / "gzip", "hdf5").submit(
        {"x": np.arange(ROWS)}, "rows", "1", format="hdf5", compression="gzip", progress=False
    )
    worked = [ref.map(lambda row: row), packed]
    assert not any(one._only_copies for one in worked)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 1])
def test_threads_that_share_an_iterator_get_each_row_once(
    ref: yoga.DataRef, four_cpus: None, workers: int, batch_size: int | None
) -> None:
    loader = yoga.DataLoader(ref, batch_size, shuffle=True, seed=1, num_workers=workers)
    found, batches = [], iter(loader)

    def take() -> None:
        found.extend(int(batch["label"]) for batch in batches)

    with switching_often():
        at_once(take, take, take)
    assert sorted(found) == [*range(ROWS)]
    assert yoga.prove([loader.receipt()])


def test_where_the_system_refuses_threads_the_loop_reads_by_itself(
    ref: yoga.DataRef, four_cpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    found = labels(yoga.DataLoader(ref, 10, num_workers=2))
    assert [label for some in found for label in some] == [*range(ROWS)]
