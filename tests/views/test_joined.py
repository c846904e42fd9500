"""Subsets and concatenations of DataRefs give the rows that torch gives, at the speed of a DataRef."""

from __future__ import annotations

import itertools
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from infiles import InFiles
from kinds import KINDS, N, outcome
from own import Announced, Filed, Mapped
from starts import FRESH_STARTS
from torch.utils.data import ConcatDataset, Subset, default_collate, random_split

import torchyoga as yoga
from torchyoga.formats.contract import FORMATS
from torchyoga.order.by_file import equal_runs
from torchyoga.reading.dataref import DataRef
from torchyoga.testing import assert_rows_equal, check_resume
from torchyoga.views.flattened import flattened
from torchyoga.views.joined import JoinedRef, RowMap
from torchyoga.views.over import SlicedRef


class Counting(Announced, Filed):
    """Rows that are numbers from `first` on; records how they were requested."""

    is_thread_safe, ahead_bytes = True, None

    def __init__(self, first: int, count: int, files: int = 5) -> None:
        super().__init__(range(first, first + count), None, files)
        self._said = None, f"{first} {count}", first + 1
        self.first, self.count, self.is_cold = first, count, False


def row_by_row(dataset: Any) -> list[Any]:
    return [dataset[i] for i in range(len(dataset))]


def nest(sources: list[DataRef], depth: int, pick: random.Random) -> Any:
    """Subsets and concatenations of each other, at random."""
    if depth == 0:
        return pick.choice(sources)
    if pick.random() < 0.3:
        return ConcatDataset([nest(sources, depth - 1, pick) for _ in range(pick.randint(1, 3))])
    inner = nest(sources, depth - 1, pick)
    if isinstance(inner, DataRef) and pick.random() < 0.3:
        return inner[pick.choice([slice(2, None), slice(None, None, -1), slice(1, 9, 3)])]
    count = len(inner)
    if not count:
        return Subset(inner, [])
    indices: Any = [pick.randrange(-count, count) for _ in range(pick.randrange(8))]
    indices = pick.choice([list, tuple, np.array, torch.tensor, lambda _: range(count - 1, -1, -2)])(indices)
    return Subset(inner, indices)


def test_any_nesting_becomes_one_step_and_gives_the_rows_that_torch_gives() -> None:
    pick = random.Random(0)
    for _ in range(300):
        sources: list[DataRef] = [Counting(100, 9), Counting(200, 5), Counting(300, 0)]
        dataset = nest(sources, pick.randint(1, 4), pick)
        found, expected = flattened(dataset), row_by_row(dataset)
        assert list(found) == row_by_row(found) == expected
        assert list(found.take(np.arange(len(found)))) == expected
        if isinstance(dataset, DataRef):
            assert found is dataset
        elif isinstance(found, JoinedRef):
            assert all(isinstance(source, Counting) for source in found.sources)
        elif isinstance(found, SlicedRef):
            assert isinstance(found.whole, Counting)


def test_each_batch_is_one_read_of_each_source() -> None:
    one, other = Counting(0, 50), Counting(1000, 50)
    dataset: Any = random_split(ConcatDataset([one, other]), [0.8, 0.2])[0]
    loader = yoga.DataLoader(dataset, batch_size=16, shuffle=True, num_workers=0, prefetch_factor=0)
    assert sorted(row for batch in loader for row in batch.tolist()) == sorted(row_by_row(dataset))
    one.calls.clear()
    other.calls.clear()
    next(iter(loader))
    assert len(one.calls) <= 1
    assert len(other.calls) <= 1
    assert loader.dataset is dataset


def test_rows_of_foreign_files_become_one_step(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("".join(f"{n}\n" for n in range(9)))
    found = flattened(Subset(yoga.from_jsonl(tmp_path / "x.jsonl", cache_dir=tmp_path), [5, 0, 7]))
    assert found is not None
    assert list(found) == [5, 0, 7]


def test_subclasses_and_mixtures_with_other_datasets_stay_as_they_are() -> None:
    class Doubled(Subset[Any]):
        def __getitem__(self, index: Any) -> Any:
            return 2 * super().__getitem__(index)

        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    class Joined(ConcatDataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return -super().__getitem__(index)

    class Own(Counting):
        def __getitem__(self, index: Any) -> Any:
            return 7

    ref: Any = Counting(0, 9)
    rows: Any = list(range(5))
    for dataset in (
        Doubled(ref, [1, 2]),
        Joined([ref, ref]),
        Subset(Doubled(ref, [1, 2]), [1]),
        ConcatDataset([ref, Doubled(ref, [1, 2])]),
        ConcatDataset([ref, rows]),
        Subset(rows, [1]),
        rows,
    ):
        assert flattened(dataset) is None
        found = [row for batch in yoga.DataLoader(dataset, 2, seed_rows=False) for row in batch.tolist()]
        assert found == row_by_row(dataset)
    assert flattened(Subset(Own(0, 9), [1])) is None  # type: ignore[arg-type]
    assert yoga.DataLoader(ConcatDataset([ref, Mapped(3)]), 2).seed_rows


class Lazy(list[Any]):
    """Indices of any type."""


@pytest.mark.parametrize(
    "indices",
    [
        *([0, 9], [0, -10], range(7, 10), range(-3, 0), np.array([2, 1], np.uint8), Lazy([3, 1])),
        *([0, True], [True, False], torch.tensor([True, False]), np.array([True])),
        *([0.0], np.array([1.0]), ["1"], [[1, 2]], torch.tensor([[1, 2]]), [None], [2**70]),
        *([torch.tensor(3)], [], (), np.array([], np.float64)),
    ],
    ids=str,
)
def test_odd_indices_give_what_torch_gives(indices: Any) -> None:
    for base in (Counting(0, 9), ConcatDataset([Counting(0, 4), Counting(4, 5)])):
        dataset: Any = Subset(base, indices)  # type: ignore[arg-type]
        found = flattened(dataset)
        if found is not None:
            assert row_by_row(found) == row_by_row(dataset)
        expected = outcome(lambda dataset=dataset: [dataset.__getitems__([i]) for i in range(len(dataset))])
        loader = yoga.DataLoader(dataset, 1, collate_fn=list, seed_rows=False)
        assert outcome(lambda loader=loader: list(loader)) == expected


@pytest.mark.slow("hdf5-*")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", FORMATS)
def test_batches_are_those_of_torch(tmp_path: Path, kind: str, format: str) -> None:
    storage, rows = yoga.Storage(tmp_path, format), KINDS[kind]
    schema = None
    if kind.startswith("ragged"):
        names = [c.name for c in yoga.Schema.of(rows[0]).columns if c.kind in ("ndarray", "tensor")]
        schema = yoga.Schema.of(rows[0], ragged=names)
    one = storage.submit(rows, "one", "1", schema=schema, progress=False)
    other = storage.submit(rows[::-1], "other", "1", schema=schema, progress=False)
    both: Any = ConcatDataset([one, other])
    shuffled: Any = Subset(both, np.random.default_rng(3).permutation(2 * N)[:9])
    for dataset in (both, shuffled, Subset(one, [4, 0, 0])):  # type: ignore[arg-type]
        found = flattened(dataset)
        assert found.schema == one.schema
        exact = row_by_row(dataset)
        assert_rows_equal(list(found), exact)
        assert_rows_equal(found[list(range(len(found)))], exact)
        expected = outcome(lambda exact=exact: default_collate(exact[:5]))
        loader = yoga.DataLoader(dataset, 5)
        if kind == "dates":  # torch has no tensors for arrays of times: ours count as single times do
            assert expected is TypeError
            assert next(iter(loader))[0].shape == (min(5, len(exact)), 1)
        elif isinstance(expected, type):
            assert outcome(lambda loader=loader: next(iter(loader))) is expected
        else:
            assert_rows_equal([next(iter(loader))], [expected])


def test_sources_that_differ_are_read_row_by_row(storage: yoga.Storage) -> None:
    one = storage.submit([{"x": i} for i in range(4)], "one", "1", progress=False)
    other = storage.submit([{"x": float(i)} for i in range(4)], "other", "1", progress=False)
    dataset: Any = ConcatDataset([one, other])
    found = flattened(dataset)
    assert found.schema is None
    assert_rows_equal(found[[0, 5, 1]], [{"x": 0}, {"x": 1.0}, {"x": 1}])
    assert_rows_equal(list(yoga.DataLoader(dataset, 8)), [default_collate([dataset[i] for i in range(8)])])


@pytest.mark.parametrize("format", FORMATS)
def test_versions_that_are_in_memory_are_one_read(tmp_path: Path, format: str) -> None:
    rows = [{"x": np.full(5, i), "t": np.arange(i % 4), "s": "ab" * (i % 3), "n": i} for i in range(90)]
    rows = [{**row, "empty": np.zeros(0, np.int8)} for row in rows]
    schema, storage = yoga.Schema.of(rows[0], ragged=["t"]), yoga.Storage(tmp_path, format)
    parts = []
    for number in range(3):
        storage.submit(rows[30 * number :][:20], str(number), "1", schema=schema, progress=False)
        storage.append(rows[30 * number + 20 :][:10], str(number), "2", after="1", progress=False)
        parts.append(storage.delete_rows(str(number), "2", rows=[3, 25], to="3"))
    kept = [row for number in range(3) for n, row in enumerate(rows[30 * number :][:30]) if n not in (3, 25)]
    views = [parts[0], parts[1][25:2:-3], parts[2].select(range(1, 27, 2)), parts[0][::-1]]
    expected = [*kept[:28], *kept[28:56][25:2:-3], *kept[56:][1:27:2], *kept[27::-1]]
    joined, rng = yoga.concat(views), np.random.default_rng(1)
    assert_rows_equal(list(joined), expected)  # all files are open and compared now
    opened = joined._versions._reader  # type: ignore[attr-defined]
    for some in (joined, joined.columns(["n", "t"]), pickle.loads(pickle.dumps(joined))):
        for _ in range(3):
            numbers = rng.integers(0, len(joined), 40)
            wanted = [expected[n] for n in numbers]
            found = some[numbers.tolist()]
            if some is not joined and "x" not in found[0]:
                wanted = [{"n": row["n"], "t": row["t"]} for row in wanted]
            assert_rows_equal(list(found), wanted)
    assert opened._made is not None


@pytest.mark.parametrize("collate", [yoga.jagged, yoga.padded(-1)])
@pytest.mark.parametrize("workers", [0, 2])
def test_ragged_rows_of_two_sources(storage: yoga.Storage, collate: Any, workers: int) -> None:
    rows = [{"t": np.arange(n, dtype=np.int32), "s": str(n)} for n in (3, 0, 2, 5, 1, 4)]
    schema = yoga.Schema.of(rows[0], ragged=["t"])
    refs: Any = [storage.submit(rows, name, "1", schema=schema, progress=False) for name in "ab"]
    dataset: Any = Subset(ConcatDataset(refs), [7, 0, 3, 11, 5, 6])
    expected = [collate(row_by_row(dataset)[i : i + 4]) for i in (0, 4)]
    assert_rows_equal(list(yoga.DataLoader(dataset, 4, collate_fn=collate, num_workers=workers)), expected)


@pytest.mark.parametrize("method", ["fork", *FRESH_STARTS])
def test_workers_and_resumes_deliver_the_same(method: str, storage: yoga.Storage) -> None:
    refs: Any = [
        storage.submit([{"x": np.full(9, i), "y": i} for i in range(23)], name, "1", progress=False)
        for name in "ab"
    ]
    dataset: Any = random_split(ConcatDataset(refs), [31, 15])[0]
    whole = list(yoga.DataLoader(dataset, 4, True, seed=3))
    loader = yoga.DataLoader(dataset, 4, True, seed=3, num_workers=2, multiprocessing_context=method)
    assert_rows_equal(list(loader), whole)
    assert_rows_equal(list(pickle.loads(pickle.dumps(yoga.DataLoader(dataset, 4, True, seed=3)))), whole)
    check_resume(lambda: yoga.DataLoader(dataset, 4, True, seed=3), most_stops=4)


def test_indices_that_change_are_followed() -> None:
    dataset: Any = Subset(Counting(0, 9), [1, 2, 3])  # type: ignore[arg-type]
    loader = yoga.DataLoader(dataset, 3)

    def rows() -> Any:
        return next(iter(loader)).tolist()

    before = flattened(dataset)
    assert flattened(dataset) is before
    for indices in ([4, 5, 6], np.array([1, 8, 1]), torch.tensor([3, 2, 1]), range(3), (7, 7, 7)):
        dataset.indices = indices
        loader.set_epoch(loader.state_dict()["epoch"] + 1)
        assert rows() == list(map(int, indices))
    for changing in ([0, 0, 0], np.array([2, 2, 2])):
        dataset.indices = changing
        assert rows() == list(changing)
        dataset.indices[1] = 5
        assert rows() == [changing[0], 5, changing[2]]
    dataset.indices[0] = 99
    with pytest.raises(IndexError):
        rows()
    assert list(before) == [1, 2, 3]


def test_fingerprints_depend_on_sources_and_rows() -> None:
    one, other, nameless = Counting(0, 9), Counting(9, 9), InFiles()

    def named(*made: Any) -> Any:
        found = flattened(Subset(ConcatDataset(made[:-1]), made[-1]))
        return found.fingerprint

    names = [
        named(one, [3, 1, 2]),
        named(one, [3, 2, 1]),
        named(other, [3, 1, 2]),
        named(one, other, [3, 1, 2]),
        named(one, other, [12, 1, 2]),
        named(other, one, [12, 1, 2]),
        named(one, range(3)),
        one.fingerprint,
    ]
    assert len(set(names)) == len(names)
    assert named(Counting(0, 9), [3, 1, 2]) == named(Counting(0, 9), torch.tensor([3, -8, 2])) == names[0]
    assert named(one, nameless, [3, 1]) is None
    assert flattened(ConcatDataset([one])) is one  # type: ignore[list-item]
    split: Any = Subset(one, [3, 1, 2])  # type: ignore[arg-type]
    assert yoga.ResumableSampler(split).state_dict()["fingerprint"] == names[0]


def test_a_block_shuffle_follows_the_files_of_the_sources() -> None:
    files = [Counting(0, 20), Counting(20, 20)]
    dataset: Any = Subset(ConcatDataset(files), [i for i in range(40) if i % 3])  # type: ignore[arg-type]
    rows = list(dataset)
    order = yoga.ResumableSampler(dataset, shuffle="block", shuffle_window=1)
    found = [rows[i] // 5 for i in order]
    assert sum(a != b for a, b in itertools.pairwise(found)) == 7  # each of 8 files once
    mixed: Any = flattened(random_split(ConcatDataset(files), [0.9, 0.1])[0])  # type: ignore[arg-type]
    assert mixed.file_starts.tolist() == [0, 36]


def test_announcements_reach_the_source_that_they_are_about() -> None:
    one, other = Counting(0, 9), Counting(9, 9)
    found = flattened(Subset(ConcatDataset([one, other]), [12, 1, 17, 2]))  # type: ignore[arg-type]
    prefetch = found._readahead.prefetch
    assert not found._readahead.is_cold
    one.is_cold = True
    assert found._readahead.is_cold
    prefetch.announce(np.array([0, 1, 3]), True)
    prefetch.probe()
    assert one.announced == [([1, 2], True), "probe"]
    assert other.announced == ["probe"]  # its rows are in memory
    assert found._row_bytes == (2 * 1 + 2 * 10) // 4
    assert found.is_thread_safe
    nameless = flattened(ConcatDataset([one, InFiles()]))  # type: ignore[list-item]
    assert not nameless.is_thread_safe
    assert nameless._row_bytes == 0


class Following(Counting):
    """A DataRef that follows the order on a thread, as a version in a store does."""

    def follow(self, order: Any, progress: Any) -> None:
        self.progress = progress
        self.thread = threading.Thread(target=super().follow, args=(order, progress))
        self.thread.start()


def test_each_source_follows_its_part_of_the_order() -> None:
    sources = [Following(0, 500), Following(500, 700), Counting(1200, 300)]
    dataset: Any = random_split(ConcatDataset(sources), [1400, 100])[0]  # type: ignore[arg-type]
    loader = yoga.DataLoader(dataset, 10, True, seed=2)
    iterator = iter(loader)
    next(iterator)
    rows = np.concatenate([loader.rows_in_step(step, epoch=0) for step in range(140)])
    given = row_by_row(Subset(dataset, rows))  # type: ignore[arg-type]
    for source in sources[:2]:
        source.thread.join(60)
        mine = [row - source.first for row in given if 0 <= row - source.first < source.count]
        assert [row for batches, _ in source.announced for rows in batches for row in rows] == mine
    taken = 1
    for step in (1, 7, 60, 140):
        for _ in range(step - taken):
            next(iterator)
        taken = step
        for source in sources[:2]:
            part = [row for row in given[: 10 * step] if 0 <= row - source.first < source.count]
            assert source.progress() == len(part)


def test_a_split_is_submitted_by_blocks(storage: yoga.Storage) -> None:
    ref: Any = storage.submit([{"x": i, "s": str(i)} for i in range(40)], "rows", "1", progress=False)
    split = random_split(ConcatDataset([ref, ref[::2]]), [0.5, 0.5])[0]
    kept = storage.submit(split, "split", "1", progress=False)
    assert_rows_equal(list(kept), row_by_row(split))


# -- row maps


FILES = np.array([0, 4, 4, 11, 20])
bounds, steps = st.integers(-21, 21), st.sampled_from([-3, -2, -1, 1, 2, 3])
slices = st.builds(slice, bounds, bounds, steps)
ranges = slices.map(lambda some: range(20)[some])
lists = st.lists(st.integers(0, 19), max_size=9).map(lambda rows: np.array(rows, np.int64))
pieces = st.one_of(ranges, lists)


def rows_of(found: RowMap) -> list[int]:
    return found.rows(np.arange(len(found))).tolist()


def flat(some: Any) -> list[int]:
    return [int(row) for row in some]


def check_runs(some: Any, file_starts: Any) -> None:
    starts, rows = RowMap(some).starts(file_starts), flat(some)
    assert (starts[0], starts[-1]) == (0, len(rows))
    if starts.tolist() == equal_runs(len(rows)).tolist():
        return
    files = np.searchsorted(file_starts, rows, side="right")
    for start, stop in zip(starts.tolist(), starts[1:].tolist(), strict=False):
        assert start < stop
        assert len(set(files[start:stop].tolist())) == 1


@given(pieces, slices, st.randoms(use_true_random=False))
def test_any_view_of_any_rows_equals_that_of_a_list(some: Any, cut: slice, random: Any) -> None:
    found, expected = RowMap(some), flat(some)
    assert rows_of(found) == expected
    assert rows_of(found.chosen(range(len(expected))[cut])) == expected[cut]
    if expected:
        picked = [random.randrange(len(expected)) for _ in range(5)]
        assert rows_of(found.chosen(np.array(picked))) == [expected[place] for place in picked]
    again = pickle.loads(pickle.dumps(found))
    assert (again.pin, rows_of(again)) == (found.pin, expected)
    counts = [sum(low <= row < high for row in expected) for low, high in itertools.pairwise(FILES)]
    assert found.counts(FILES).tolist() == counts
    check_runs(some, FILES)


@given(st.sets(st.integers(0, 19)) | slices.map(lambda some: set(range(20)[some])))
def test_ascending_rows_below_each_bound_are_counted(some: set[int]) -> None:
    expected = [sum(row < bound for row in some) for bound in range(21)]
    assert RowMap(np.array(sorted(some), np.uint32)).before(np.arange(21)).tolist() == expected


def test_long_runs_of_one_file_begin_where_it_says() -> None:
    """Of more rows than are looked at together, 65,536."""
    spread = np.sort(np.random.default_rng(0).integers(0, 400_000, 90_000))
    file_starts = np.array(FILES) * 20_000
    for some in (range(150_000), range(400_000, 100_000, -3), spread):
        check_runs(some, file_starts)
        changes = np.flatnonzero(np.diff(np.searchsorted(file_starts, some, side="right"))) + 1
        assert RowMap(some).starts(file_starts).tolist() == [0, *changes.tolist(), len(some)]


def test_files_are_known_while_their_rows_stay_together() -> None:
    files, rows = np.arange(0, 20_001, 100), np.random.default_rng(0).permutation(20_000)[:9_000]
    assert RowMap(rows).starts(files).tolist() == equal_runs(9_000).tolist()
    assert len(RowMap(np.sort(rows)).starts(files)) == 201
    assert RowMap(range(150, 350)).starts(files).tolist() == [0, 50, 150, 200]
    assert RowMap(range(349, 149, -1)).starts(files).tolist() == [0, 50, 150, 200]
    in_files = np.concatenate([np.arange(100 * file, 100 * file + 100) for file in (7, 3, 190)])
    assert RowMap(in_files).starts(files).tolist() == [0, 100, 200, 300]


def test_ranges_stay_ranges() -> None:
    assert RowMap(np.arange(10, 0, -3)).piece == range(10, -2, -3)
    assert RowMap(range(0, 10**15, 7)).chosen(range(5, 10**14, 3)).piece.step == 21  # type: ignore[union-attr]


def test_only_ranges_become_ranges() -> None:
    some = (0, 1, 2, 3, 128, 254, 255)  # differences of which wrap around
    for numbers in itertools.chain.from_iterable(itertools.product(some, repeat=n) for n in range(1, 5)):
        found = RowMap(np.array(numbers, np.uint8)).piece
        steps = {after - before for before, after in itertools.pairwise(numbers)}
        assert list(found) == list(numbers)
        assert isinstance(found, range) == (len(steps) < 2 and 0 not in steps)


def test_pins_differ_if_rows_or_their_order_differ() -> None:
    made = [range(0), range(5), range(4, -1, -1), range(6), *map(np.array, ([3, 1, 2], [1, 3, 2], [1, 1]))]
    assert len({RowMap(some).pin for some in made}) == len(made)
    assert RowMap(np.array([2, 0, 1])).pin == "8172ae6324337b566b39b99d40945659"
