"""The loader: torch's arguments, exact states, random numbers for each row, any number of workers."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import multiprocessing
import os
import random
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from children import status_of_child
from infiles import InFiles
from own import Made, Mapped
from torch.utils.data import Dataset, IterableDataset, Subset
from waiting import PATIENCE, eventually

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.formats.contract import FORMATS
from torchyoga.order.epoch import Iteration
from torchyoga.reading.readahead import ReadAhead
from torchyoga.testing import assert_rows_equal, check_resume

HAS_IN_ORDER = "in_order" in inspect.signature(torch.utils.data.DataLoader).parameters
OUT_OF_ORDER = pytest.mark.skipif(not HAS_IN_ORDER, reason="torch has in_order from 2.6 on")


def noisy(index: int) -> Any:
    """Unmodified augmentation with all three generators."""
    return index, random.random(), np.random.rand(2), torch.rand(2)


NOISY = Mapped(21, noisy)


@pytest.fixture(params=FORMATS)
def ref(request: pytest.FixtureRequest, tmp_path: Path) -> yoga.DataRef:
    rows = [{"x": np.full(3, i, np.float32), "y": i, "s": str(i)} for i in range(23)]
    return yoga.Storage(tmp_path, request.param).submit(rows, "rows", "1", progress=False)


def rows_of(batches: Any) -> list[int]:
    columns = (batch["y"] if isinstance(batch, dict) else batch for batch in batches)
    return [row for column in columns for row in column.tolist()]


def trained(
    data: Any, world: int, size: int, state: Any, steps: int | None, **options: Any
) -> tuple[Any, list[int]]:
    """So many steps of all ranks: their state, and the rows in the order of the epoch."""
    loaders = [yoga.DataLoader(data, size, num_replicas=world, rank=rank, **options) for rank in range(world)]
    ranks = []
    for loader in loaders:
        if state:
            loader.load_state_dict(state)
        ranks.append(rows_of(itertools.islice(loader, steps)))
    states = [loader.state_dict() for loader in loaders]
    assert all(found == states[0] for found in states)
    assert yoga.prove([loader.receipt() for loader in loaders])
    return states[0], [row for step in itertools.zip_longest(*ranks) for row in step if row is not None]


def test_resume_from_every_batch_twice(ref: yoga.DataRef) -> None:
    check_resume(lambda: yoga.DataLoader(ref, batch_size=4, shuffle=True, seed=3))


def test_resume_of_rows_that_draw_from_every_batch_twice_and_with_other_workers() -> None:
    workers, noisy = itertools.cycle((0, 2, 1)), {"batch_size": 5, "shuffle": True, "drop_last": True}
    check_resume(lambda: yoga.DataLoader(NOISY, seed=3, **noisy))
    check_resume(lambda: yoga.DataLoader(NOISY, seed=3, num_workers=next(workers), **noisy), most_stops=3)


def test_persistent_workers_over_epochs_one_of_them_abandoned(ref: yoga.DataRef) -> None:
    plain = yoga.DataLoader(ref, batch_size=4, shuffle=True, seed=2)
    expected = [rows_of(plain) for _ in range(4)]
    loader = yoga.DataLoader(
        ref,
        batch_size=4,
        shuffle=True,
        seed=2,
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=True,
        prefetch_factor=3,
    )
    assert rows_of(loader) == expected[0]
    assert rows_of(itertools.islice(loader, 2)) == expected[1][:8]
    assert loader.state_dict()["position"] == 8
    with pytest.warns(UserWarning, match="the other 15 rows are left out"):
        assert rows_of(loader) == expected[2]
    assert rows_of(loader) == expected[3]


@pytest.mark.quick("block-shard", "True-global")
@pytest.mark.parametrize("locality", ["global", "shard"])
@pytest.mark.parametrize("shuffle", ["block", True])
def test_a_shuffle_by_files_is_resumed_by_other_ranks_workers_and_batches(
    shuffle: Any, locality: Any
) -> None:
    options: dict[str, Any] = {
        **{"shuffle": shuffle, "shuffle_window": 2, "locality": locality},
        **{"seed": 3, "remainder": "keep"},
    }
    workers = itertools.cycle((0, 1))
    check_resume(lambda: yoga.DataLoader(InFiles(), 4, num_workers=next(workers), **options), most_stops=2)
    check_resume(lambda: yoga.DataLoader(InFiles(), 2, num_replicas=3, rank=1, **options))

    _, whole = trained(InFiles(), 3, 23, None, None, **options)
    state, first = trained(InFiles(), 3, 2, None, 1, **options)
    state, second = trained(InFiles(), 2, 3, state, 1, num_workers=1, **options)
    assert locality == "global" or state["shards"] == 3
    _, third = trained(InFiles(), 1, 4, state, None, **options)
    assert first + second + third == whole


def test_accelerate_and_shards_of_files_exclude_each_other() -> None:
    loader = yoga.DataLoader(InFiles(), 2, locality="shard", num_replicas=2, rank=0)
    loader._is_accelerate_prepared = True
    with pytest.raises(ValueError, match="leave it at 'global'"):
        next(iter(loader))


def test_lengths_are_those_of_whole_epochs(ref: yoga.DataRef) -> None:
    for size, drop_last, world in itertools.product((1, 4, 23, 30), (False, True), (1, 2)):
        loader = yoga.DataLoader(ref, size, drop_last=drop_last, num_replicas=world, rank=0)
        assert len(loader) == len(list(loader))


def test_states_of_other_loaders_are_refused(ref: yoga.DataRef, tmp_path: Path) -> None:
    loader = yoga.DataLoader(ref, shuffle=True, seed=1)
    others = [
        yoga.DataLoader(ref, shuffle=True, seed=2),
        yoga.DataLoader(ref, seed=1),
        yoga.DataLoader(ref[:22], shuffle=True, seed=1),
        yoga.DataLoader(ref[::-1], shuffle=True, seed=1),
        yoga.DataLoader(list(range(23)), shuffle=True, seed=1),
    ]
    for other in others:
        with pytest.raises(StateError, match="it is of another dataset or loader"):
            loader.load_state_dict(other.state_dict())


@pytest.mark.slow("hdf5")
def test_leaving_early_leaves_no_process_behind(ref: yoga.DataRef) -> None:
    before = set(multiprocessing.active_children())
    for options in ({}, {"persistent_workers": True}):
        for _ in yoga.DataLoader(ref, batch_size=2, num_workers=2, multiprocessing_context="fork", **options):
            break
        for child in set(multiprocessing.active_children()) - before:
            child.join(300)
        assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("options", [{}, pytest.param({"in_order": False}, marks=OUT_OF_ORDER)])
def test_an_error_that_was_handled_keeps_no_process(broken: Dataset[int], options: dict[str, Any]) -> None:
    """Left to the garbage collector, workers would end after ten seconds, for torch loses their queues."""
    before = set(multiprocessing.active_children())

    def train() -> weakref.ref[Any]:
        iterator = iter(yoga.DataLoader(broken, batch_size=4, num_workers=2, **options))
        with contextlib.suppress(RuntimeError):
            while True:
                next(iterator)
        return weakref.ref(iterator)

    gc.disable()
    try:
        assert train()() is None
        for child in set(multiprocessing.active_children()) - before:
            child.join(PATIENCE)
    finally:
        gc.enable()
    assert set(multiprocessing.active_children()) <= before


def test_the_users_own_collate_and_dataset_are_seen(ref: yoga.DataRef) -> None:
    subset = Subset(ref, [5, 1, 7])
    loader = yoga.DataLoader(subset, batch_size=2, collate_fn=lambda rows: [row["s"] for row in rows])
    assert list(loader) == [["5", "1"], ["7"]]
    assert loader.dataset is subset
    noisy = NOISY
    loader = yoga.DataLoader(noisy, batch_size=2)
    next(iter(loader))
    assert loader.dataset is noisy


def test_our_own_samplers_are_accepted(ref: yoga.DataRef) -> None:
    sampler = yoga.ResumableSampler(ref, seed=4)
    expected = list(yoga.ResumableSampler(ref, seed=4))
    assert rows_of(yoga.DataLoader(ref, batch_size=5, sampler=sampler)) == expected
    batches = yoga.ResumableBatchSampler(yoga.ResumableSampler(ref, seed=4), 5)
    assert rows_of(yoga.DataLoader(ref, batch_sampler=batches)) == expected
    with pytest.raises(ValueError, match="sampler is of 3 rows, the dataset has 23"):
        yoga.DataLoader(ref, sampler=yoga.ResumableSampler(3))
    with pytest.raises(ValueError, match="in_order=False needs batches"):
        yoga.DataLoader(ref, None, in_order=False)
    with pytest.raises(ValueError, match="sampler excludes shuffle"):
        yoga.DataLoader(ref, sampler=sampler, shuffle=True, seed=0)


def test_the_error_for_an_iterable_dataset_says_what_to_do() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Any:
            return itertools.count()

    with pytest.raises(TypeError, match=r"Storage\.submit"):
        yoga.DataLoader(Endless())

    class Counted(Endless):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(TypeError, match="a Counted has no random access"):
        yoga.DataLoader(Counted())


def test_without_workers_a_batch_is_what_the_collate_function_gave() -> None:
    made: list[Any] = []

    def collate(rows: Any) -> Any:
        made.append(torch.tensor(rows))
        return made[-1]

    for data, size in ((list(range(9)), 4), (InFiles(), 4), ([1, 2, 3], None)):
        found = list(yoga.DataLoader(data, size, collate_fn=collate))
        assert len(found) == len(made)
        assert all(one is other for one, other in zip(found, made, strict=True))
        made.clear()


class Slow(Made):
    """Records which rows were read, and in which thread."""

    is_thread_safe = True

    def __init__(self) -> None:
        super().__init__(200)
        self.read: list[int] = []
        self.threads: set[str] = set()

    def take(self, rows: Any) -> list[int]:
        self.read += rows.tolist()
        self.threads.add(threading.current_thread().name)
        return super().take(rows)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_thread_reads_prefetch_factor_batches_ahead_and_no_more(prefetch: int) -> None:
    ref = Slow()
    loader = yoga.DataLoader(ref, batch_size=2, prefetch_factor=prefetch)
    iterator = iter(loader)
    for step in range(1, 12):
        assert next(iterator).tolist() == [2 * step - 2, 2 * step - 1]
        time.sleep(0.02)  # the training step
        assert len(ref.read) <= 2 * (step + max(prefetch, 0) + (prefetch > 0))
        assert loader.state_dict()["position"] == 2 * step
    assert ref.threads == ({"MainThread", "torchyoga-ahead"} if prefetch else {"MainThread"})
    eventually(lambda: len(ref.read) >= 2 * (11 + prefetch))


def test_leaving_an_iterator_ends_its_thread() -> None:
    def threads() -> int:
        return sum(thread.name == "torchyoga-ahead" for thread in threading.enumerate())

    gc.collect()
    eventually(lambda: not threads())
    iterator = iter(yoga.DataLoader(Slow(), batch_size=2))
    for _ in range(5):
        next(iterator)
        time.sleep(0.02)  # the training step
    assert threads() == 1
    del iterator
    gc.collect()
    eventually(lambda: not threads())


def test_a_ref_is_read_by_the_users_thread_unless_it_is_thread_safe() -> None:
    ref = Slow()
    ref.is_thread_safe = False
    for _ in yoga.DataLoader(ref, batch_size=20):
        time.sleep(0.005)
    assert ref.threads == {"MainThread"}


def test_the_users_collate_function_runs_in_the_users_thread(ref: yoga.DataRef) -> None:
    names = set()

    def collate(rows: Any) -> int:
        names.add(threading.current_thread().name)
        return len(rows)

    loader = yoga.DataLoader(ref, batch_size=4, collate_fn=collate)
    found = [(time.sleep(0.01), size)[1] for size in loader]
    assert found == [4, 4, 4, 4, 4, 3]
    assert names == {"MainThread"}


@pytest.mark.parametrize("size", [4, None])
def test_prefetch_factor_is_taken_over_every_view(size: int | None) -> None:
    ref = yoga.from_arrays({"x": np.arange(10.0)})

    def double(row: Any) -> Any:
        return {"x": row["x"] * 2}

    def noisy(columns: Any, draw: Any) -> Any:
        return {"x": columns["x"] + draw.random()}

    views = [ref, ref.map(double), ref.map_batches(double), ref.map_batches(noisy)]
    for view in [*views, Subset(ref.map(double), range(10))]:  # type: ignore[arg-type]
        expected = list(yoga.DataLoader(view, size, seed=1))
        for prefetch in (0, 3):
            loader = yoga.DataLoader(view, size, seed=1, prefetch_factor=prefetch)
            assert loader.prefetch_factor == prefetch
            assert_rows_equal(list(loader), expected)
        with pytest.raises(ValueError, match="prefetch_factor must be at least 0, found -1"):
            yoga.DataLoader(view, size, prefetch_factor=-1)
    with pytest.raises(ValueError, match="prefetch_factor"):
        yoga.DataLoader([1, 2], size, prefetch_factor=2)  # as in torch: nothing is read ahead


class Downloaded(yoga.DataRef):
    """Rows of 8 bytes out of a cache that keeps `ahead_bytes` ahead; records what was read at once."""

    is_cold = False

    def __init__(self, ahead_bytes: int | None) -> None:
        self._readahead, self.ahead_bytes = ReadAhead(8, self), ahead_bytes
        self.read: list[int] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "progress": None}  # workers do not ask

    def __len__(self) -> int:
        return 200

    def take(self, rows: Any) -> list[int]:
        self.read.append(len(rows))
        return rows.tolist()  # type: ignore[no-any-return]

    def announce(self, rows: Any, values: bool) -> None:
        pass

    def probe(self) -> None:
        pass

    def follow(self, order: Any, progress: Any) -> None:
        self.progress = progress


@pytest.mark.parametrize(("size", "together"), [(2, 16), (None, 1)])
def test_what_workers_were_handed_is_not_downloaded_again(size: int | None, together: int) -> None:
    ref = Downloaded(None)
    iterator = iter(yoga.DataLoader(ref, size, num_workers=1, prefetch_factor=3))
    next(iterator)
    assert ref.progress() == (size or 1) * together * 4  # three ahead of the one that came


def test_windows_leave_room_in_a_small_cache() -> None:
    for ahead_bytes, together in ((None, 16), (8 * 2 * 5, 5), (1, 1)):
        ref = Downloaded(ahead_bytes)
        assert sum(map(len, yoga.DataLoader(ref, 2, prefetch_factor=0))) == 200
        assert set(ref.read[:-1]) == {2 * together}


def test_workers_that_read_more_ahead_than_a_cache_keeps_are_reported_once() -> None:
    options: dict[str, Any] = {"batch_size": 25, "num_workers": 1, "prefetch_factor": 2}
    next(iter(yoga.DataLoader(Downloaded(200), **options)))
    loader = yoga.DataLoader(Downloaded(199), **options)
    with pytest.warns(UserWarning, match=r"workers read 2 batches ahead, 0.0 MB.*Set cache_bytes=\d+, which"):
        next(iter(loader))
    next(iter(loader))


class Files(Downloaded):
    """Such rows, 20 in each file."""

    _row_bytes = 8
    file_starts = np.arange(0, 201, 20)


def test_what_a_cache_should_keep_does_not_depend_on_a_resume() -> None:
    def advised(world: int, state: dict[str, Any] | None = None) -> str:
        options: dict[str, Any] = {"shuffle": "block", "shuffle_window": 2, "locality": "shard", "seed": 1}
        loader = yoga.DataLoader(Files(199), 25, num_workers=1, num_replicas=world, rank=0, **options)
        if state is not None:
            loader.load_state_dict(state)
        with pytest.warns(UserWarning, match="Set cache_bytes=") as caught:
            next(iter(loader))
        return str(caught[0].message)

    sampler = yoga.ResumableSampler(Files(None), 2, 0, "block", 1, shuffle_window=2, locality="shard")
    next(iter(sampler))
    assert advised(1, sampler.state_dict()) == advised(1)


class Interrupted(Downloaded):
    """Ctrl-C arrives while some of its rows are read or announced, once for each."""

    is_thread_safe = True

    def __init__(self, row_bytes: int, at_reads: set[int], at_announcements: set[int]) -> None:
        super().__init__(None)
        self._readahead, self.is_cold = ReadAhead(row_bytes, self), bool(at_announcements)
        self.left = {"reads": at_reads, "announcements": at_announcements}
        self.count = {"reads": 0, "announcements": 0}

    def __len__(self) -> int:
        return 300

    def note(self, what: str) -> None:
        self.count[what] += 1
        if self.count[what] in self.left[what] and threading.current_thread() is threading.main_thread():
            self.left[what].discard(self.count[what])
            raise KeyboardInterrupt

    def take(self, rows: Any) -> list[int]:
        self.note("reads")
        return rows.tolist()  # type: ignore[no-any-return]

    def announce(self, rows: Any, values: bool) -> None:
        self.note("announcements")


@pytest.mark.parametrize("row_bytes", [8, 300_000])
@pytest.mark.parametrize(("reads", "announcements"), [({1}, set()), ({2, 3}, set()), (set(), {1, 9, 10})])
@pytest.mark.parametrize("pause", [0, 0.002])
def test_an_interrupt_loses_nothing(
    row_bytes: int, reads: set[int], announcements: set[int], pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not pause:  # because a machine may pause by itself
        monkeypatch.setattr("torchyoga.process.threads.time", SimpleNamespace(perf_counter=lambda: 1.0))
    ref = Interrupted(row_bytes, set(reads), set(announcements))
    loader = yoga.DataLoader(ref, batch_size=10)
    iterator = iter(loader)
    got: list[int] = []
    interrupts = 0
    for _ in range(100):
        time.sleep(pause)
        try:
            got += next(iterator).tolist()
        except KeyboardInterrupt:
            interrupts += 1
        except StopIteration:
            break
        assert loader.state_dict()["position"] % 300 == len(got) % 300
    assert got == list(range(300))
    assert interrupts or pause
    assert loader.state_dict()["epoch"] == 1


def test_a_batch_that_was_made_but_not_counted_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, advance = itertools.count(1), Iteration.advance

    def interrupted(iteration: Iteration) -> None:
        if next(calls) in (2, 3, 9):
            raise KeyboardInterrupt
        advance(iteration)

    monkeypatch.setattr(Iteration, "advance", interrupted)
    loader = yoga.DataLoader(list(range(100)), 10)
    batches, got = iter(loader), list[int]()
    while len(got) < 100:
        with contextlib.suppress(KeyboardInterrupt):
            got += next(batches).tolist()
    assert got == list(range(100))
    loader.prove()


def collated(rows: Any) -> Any:
    return torch.utils.data.default_collate(list(rows))


WORKERS: dict[str, Any] = {"num_workers": 2, "collate_fn": collated}


@pytest.mark.quick("*-thread", "lmdb-workers", "hdf5-persistent")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "options", [{}, WORKERS, {**WORKERS, "persistent_workers": True}], ids=["thread", "workers", "persistent"]
)
def test_a_child_forked_in_the_middle_goes_on_and_leaves_workers_to_its_parent(
    ref: yoga.DataRef, options: dict[str, Any]
) -> None:
    loader = yoga.DataLoader(ref, batch_size=2, shuffle=True, seed=0, **options)
    whole = rows_of(loader)
    loader.set_epoch(0)
    iterator: Any = iter(loader)
    got = []
    for _ in range(4):
        got.append(next(iterator))
        time.sleep(0.01)  # so that the thread is at work

    def goes_on() -> None:
        assert rows_of(got) + rows_of(iterator) == whole

    def begins_again() -> None:
        nonlocal iterator
        iterator = None  # released
        loader.set_epoch(0)
        assert rows_of(loader) == whole

    assert status_of_child(goes_on) == 0
    assert status_of_child(begins_again) == 0
    assert rows_of(got) + rows_of(iterator) == whole  # the workers are still there


def test_skip_accepts_only_the_batches_that_the_state_has_skipped() -> None:
    def resumed() -> Any:
        loader = yoga.DataLoader(list(range(20)), 4)
        loader.load_state_dict(state)
        return iter(loader)

    begun = yoga.DataLoader(list(range(20)), 4)
    next(iter(begun))
    state = begun.state_dict()
    again = resumed()
    again.skip(1)
    assert next(again).tolist() == [4, 5, 6, 7]
    for steps in (2, 3):
        with pytest.raises(StateError, match=f"after 1 batches of the epoch, and {steps} are to be skipped"):
            resumed().skip(steps)


def test_batches_handed_to_workers_count_for_their_own_iterator() -> None:
    loader = yoga.DataLoader(range(90), batch_size=4, num_workers=1)
    one, other = iter(loader), iter(loader)
    next(one), next(other)
    before = other.iteration.handed
    assert len(list(one)) == 22
    assert (one.iteration.handed, other.iteration.handed) == (23, before)


def test_workers_that_were_taken_over_go_on() -> None:
    before = set(multiprocessing.active_children())
    loader = yoga.DataLoader(range(90), batch_size=4, num_workers=1, persistent_workers=True)
    one, other = iter(loader), iter(loader)
    next(one), next(other)
    (worker,) = set(multiprocessing.active_children()) - before
    with pytest.raises(RuntimeError, match="has taken over its persistent workers"):
        next(one)
    assert loader.state_dict()["position"] == 4
    assert len(list(other)) == 22
    assert worker.is_alive()


# -- objects that have no truth value


class Untold:
    """Has no truth value, as an array has none; nor has what it is mixed into."""

    def __bool__(self) -> bool:
        raise TypeError("no truth value")


class UntoldRows(Untold, list[int]):
    pass


class UntoldDataset(Untold, Mapped):
    pass


class UntoldRef(Untold, InFiles):
    pass


class UntoldSampler(Untold):
    def __init__(self, found: Any) -> None:
        self.found = found

    def __iter__(self) -> Any:
        return iter(self.found)

    def __len__(self) -> int:
        raise TypeError("no length")


class UntoldCollate(Untold):
    def __call__(self, rows: Any) -> torch.Tensor:
        return torch.tensor(rows)


@pytest.mark.quick("0-*", "2-dataset")
@pytest.mark.parametrize(
    "dataset", [UntoldRows(range(10)), UntoldDataset(10), UntoldRef([4, 6])], ids=["list", "dataset", "ref"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_asked_for_its_truth_value(dataset: Any, workers: int) -> None:
    plain: Any = {"num_workers": workers, "worker_init_fn": None}
    expected = list(range(10))
    for options in (
        {"batch_size": 4},
        {"batch_size": 4, "sampler": UntoldSampler(range(10))},
        {"batch_sampler": UntoldSampler([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])},
        {"batch_size": None, "sampler": UntoldSampler(range(10)), "collate_fn": int},
        {"batch_size": 4, "generator": torch.Generator()},
    ):
        loader = yoga.DataLoader(dataset, **{"collate_fn": UntoldCollate(), **plain, **options})
        loader.peek()
        batches = iter(loader)
        first = next(batches)
        state = loader.state_dict()
        assert np.hstack([first, *batches]).tolist() == expected
        loader.load_state_dict(state)
        assert np.hstack([first, *loader]).tolist() == expected
