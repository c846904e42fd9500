"""Builds in parts: the same version as one process builds, whatever happens to those who build."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest
from children import forked
from parted import Counted, Deadly, Plain, Planned, Random, read_lines
from stored import store_of
from torch.utils.data import IterableDataset
from waiting import at_once

import torchyoga as yoga
from torchyoga import Storage
from torchyoga.building.board import Board, PartFailure
from torchyoga.errors import BusyError, CorruptError, ExistsError, SchemaError, YogaError
from torchyoga.stores.contract import at_work

pytestmark = pytest.mark.usefixtures("unsynced")


def threads(count: int = 2) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


SOURCES = {
    "map-style": lambda: Plain(103),
    "numbers": lambda: list(range(50)),
    "arrays": lambda: {"x": np.arange(300).reshape(100, 3)},
    "view": lambda: yoga.from_arrays({"x": np.arange(100)}).select(list(range(90, 10, -1))),
    "inputs": lambda: yoga.flat_map(list(range(40)), read_lines),
    "function": lambda: make_plain,
}


def make_plain() -> Plain:
    return Plain(31)


@pytest.mark.quick("directory-lmdb-map-style", "directory-lmdb-view", "memory-lmdb-arrays", "memory-lmdb-f*")
@pytest.mark.parametrize("kind", list(SOURCES))
@pytest.mark.parametrize("format", ["lmdb", "hdf5"])
def test_a_build_by_many_is_that_of_one(kind, format, storage):
    one = storage.submit(SOURCES[kind](), "one", "1", format=format)
    with threads() as executor:
        many = storage.submit(SOURCES[kind](), "many", "1", format=format, executor=executor)
    assert many.fingerprint == one.fingerprint
    assert repr(many[len(many) - 1]) == repr(one[len(one) - 1])
    together = storage.submit(SOURCES[kind](), "together", "1", format=format, together=True)
    assert together.fingerprint == one.fingerprint
    plan = Planned(storage, SOURCES[kind](), "planned", "1", format=format)
    for part in reversed(plan.parts):
        plan.build(part)
    assert plan.publish().fingerprint == one.fingerprint
    for id in ("many", "together", "planned"):
        storage.check(id, "1")
    storage.remove("many", "1")
    assert storage.list() == [("one", "1"), ("planned", "1"), ("together", "1")]


def test_codecs_and_info_are_those_of_one(storage):
    rows = [{"image": np.full((8, 8, 3), n, np.uint8), "text": f"a text {n} " * 9} for n in range(24)]
    codecs = {"image": yoga.codecs.png(), "text": yoga.codecs.zstd()}
    one = storage.submit(rows, "one", "1", codecs=codecs, info={"a": 1})
    with threads() as executor:
        many = storage.submit(rows, "many", "1", codecs=codecs, info={"a": 1}, executor=executor)
    assert (many.fingerprint, many.info) == (one.fingerprint, {"a": 1})
    assert many.schema == one.schema
    assert many.decoded()[23]["text"] == rows[23]["text"]


def test_a_dataset_without_rows(storage):
    assert len(storage.submit([], "a", "1", together=True)) == 0
    assert len(storage.submit([], "a", "1", together=True)) == 0
    with threads() as executor:
        assert len(storage.submit([], "a", "2", executor=executor)) == 0


def test_the_first_note_counts_and_the_other_files_go(tmp_path):
    storage = Storage(tmp_path / "storage")
    plan = Planned(storage, Plain(20), "a", "1", parts=2)
    assert plan.build(0) > 0
    assert plan.build(0) == 0.0
    assert plan.missing == [1]
    assert plan.publish() is None
    at_once(*[lambda: plan.build(1)] * 2)
    ref = plan.publish()
    assert plan.publish().fingerprint == ref.fingerprint == storage.submit(Plain(20), "b", "1").fingerprint
    assert len(os.listdir(tmp_path / "storage" / "a" / "1")) == 3
    assert not (tmp_path / "storage" / ".builds" / "a").exists()
    assert not (tmp_path / "storage" / ".parts").is_dir() or not os.listdir(tmp_path / "storage" / ".parts")


def test_what_a_driver_has_left_is_not_built_again(storage, tmp_path):
    Planned(storage, Counted(60, tmp_path / "notes"), "a", "1", parts=6).built(4)
    (tmp_path / "notes").write_text("")
    with threads() as executor:
        ref = storage.submit(Counted(60, tmp_path / "notes"), "a", "1", executor=executor)
    read = [int(line) for line in (tmp_path / "notes").read_text().split()]
    assert len(set(read) & set(range(40))) < 25  # some rows are compared
    assert set(range(40, 60)) <= set(read)
    assert ref.fingerprint == storage.submit(Plain(60), "b", "1").fingerprint


def test_another_source_starts_over_unless_somebody_is_at_it(storage, caplog):
    plan = Planned(storage, Plain(60), "a", "1", parts=6).built(3)
    with threads() as executor:
        ref = storage.submit(Plain(60, add=1), "a", "1", executor=executor)
    assert "starting over" in caplog.text
    assert "row 0 of the source is another one" in caplog.text
    assert ref.fingerprint == storage.submit(Plain(60, add=1), "b", "1").fingerprint
    assert plan.publish() is None

    plan = Planned(storage, Plain(60), "c", "1", parts=6)
    store_of(storage).notes(".builds/c/1").create(f"{_token(storage, 'c')}/claims/00000.json", b"{}")
    with pytest.raises(BusyError, match="Give all builders the same data"):
        Planned(storage, Plain(61), "c", "1", parts=6)
    assert len(Planned(storage, Plain(60), "c", "1").parts) == 6
    with pytest.raises(BusyError, match="Give all builders the same data"):
        Planned(storage, Plain(60), "c", "1", format="hdf5")


def _token(storage: Storage, id: str) -> str:
    found = Board(store_of(storage), id, "1", 60.0).plan()
    assert found is not None
    return found.token


class Odd(Plain):
    def __getitem__(self, number: int) -> dict[str, object]:
        row = super().__getitem__(number)
        return {**row, "x": row["x"].astype(float)} if number == 39 else row  # type: ignore[attr-defined]


MANY = 1200  # rows, of which a schema is learned from 256, without rows 25 and 39


@pytest.fixture(params=["executor", "together"])
def way(request):
    """How to build by many."""
    with threads() as executor:
        yield {"executor": executor} if request.param == "executor" else {"together": True}


@pytest.mark.quick("executor-directory", "together-memory")
def test_a_part_of_another_schema_is_named(way, storage):
    with pytest.raises(SchemaError, match=r"of 'a' '1' failed on process \d+ on .*row 39"):
        storage.submit(Odd(MANY), "a", "1", **way)
    assert storage.list() == []
    ref = storage.submit(Plain(MANY), "a", "1", **way)
    assert ref.fingerprint == storage.submit(Plain(MANY), "b", "1").fingerprint


class Failing(Plain):
    """Fails at row 25, some times."""

    left = 0

    def __getitem__(self, number: int) -> dict[str, object]:
        if number == 25 and Failing.left > 0:
            Failing.left -= 1
            raise OSError(28, "No space left on device")
        return super().__getitem__(number)


@pytest.mark.quick("executor-directory", "together-memory")
def test_a_part_is_tried_three_times(way, storage):
    Failing.left = 2
    ref = storage.submit(Failing(MANY), "a", "1", **way)
    assert ref.fingerprint == storage.submit(Plain(MANY), "b", "1").fingerprint
    Failing.left = 10**6
    said = r"\(rows \d+ to \d+\) of .* failed 3 times on process .*, at row 25: OSError: .*No space"
    with pytest.raises(OSError, match=said):
        storage.submit(Failing(MANY), "c", "1", **way)
    assert 10**6 - Failing.left == 3
    Failing.left = 0
    assert storage.submit(Failing(MANY), "c", "1", **way).fingerprint == ref.fingerprint


def test_a_file_that_is_gone_is_built_again(tmp_path, caplog):
    storage = Storage(tmp_path / "storage")
    plan = Planned(storage, Plain(40), "a", "1", parts=4).built()
    files = sorted((tmp_path / "storage" / "a" / "1").iterdir())
    files[1].unlink()
    files[2].write_bytes(b"cut")
    assert plan.publish() is None
    assert len(plan.missing) == 2
    ref = storage.submit(Plain(40), "a", "1", together=True)
    assert ref.fingerprint == storage.submit(Plain(40), "b", "1").fingerprint
    assert "building them again" in caplog.text


@pytest.mark.quick("directory-*")
@pytest.mark.parametrize("text", [b"", b"{", b'{"plan": 1}', b"null", b'{"rows": 5, "checksum": "0"}'])
def test_a_damaged_note_is_no_note(text, storage, caplog):
    plan = Planned(storage, Plain(40), "a", "1", parts=4).built()
    store_of(storage).notes(".builds/a/1").write(f"{_token(storage, 'a')}/done/00002.json", text)
    assert plan.publish() is None
    assert plan.missing == [2]
    plan.build(plan.missing[0])
    assert len(plan.publish()) == 40
    assert "damaged" in caplog.text


def test_a_damaged_plan_is_an_error_that_names_it(storage):
    Planned(storage, Plain(40), "a", "1")
    store_of(storage).notes(".builds/a/1").write("plan.json", b'{"bounds": [0, 10]}')
    with pytest.raises(CorruptError, match=r"plan\.json: the plan is damaged.*remove it"):
        storage.submit(Plain(40), "a", "1", together=True)


@pytest.mark.slow("directory")
def test_clean_spares_builders_that_live(storage, tmp_path):
    rows = Counted(40, tmp_path / "notes", slow=0.01)
    notes = store_of(storage).notes(".builds/a/1")
    with threads() as pool:
        builds = [pool.submit(storage.submit, rows, "a", "1", together=True) for _ in range(2)]
        while not all(build.done() for build in builds):
            storage.clean(0)
            # A note that is half written (`.new-...`) may go, and is written again. The notes that a builder
            # is about to remove, for its version is published, are nobody's.
            assert ".builds/a/1" not in storage.clean(0, dry_run=True) or ("a", "1") in storage.list()
    assert [len(build.result()) for build in builds] == [40, 40]
    assert notes.find() == {}
    plan = Planned(storage, Plain(40), "b", "1", parts=4)
    left = store_of(storage).notes(".builds/b/1")
    left.write(at_work(60), b"")
    storage.clean(0)
    assert len(plan.missing) == 4
    left.delete([name for name in left.find() if name.startswith("here/")])
    left.write(at_work(0), b"")  # of a builder that was killed
    time.sleep(1.1)
    assert any(name.startswith(".builds/b/1") for name in storage.clean(0))


def test_overwrite_replaces_what_was_there_and_nothing_else(storage):
    storage.submit(Plain(5), "a", "1")
    plan = Planned(storage, Plain(9), "a", "1", overwrite=True, parts=2).built()
    assert len(storage.fetch("a", "1")) == 5
    assert len(plan.publish()) == 9
    plan = Planned(storage, Plain(7), "a", "1", overwrite=True, parts=2)
    storage.submit(Plain(6), "a", "1", overwrite=True)
    with pytest.raises(ExistsError, match="meanwhile"):
        plan.built().publish()
    assert len(storage.fetch("a", "1")) == 6
    plan = Planned(storage, Plain(7), "b", "1", parts=2)
    storage.submit(Plain(6), "b", "1")
    with pytest.raises(ExistsError, match="meanwhile"):
        plan.built().publish()


def test_cacheable_together(storage):
    calls = []

    @storage.cacheable("a-{count}", "1", together=True)
    def plain(count: int) -> Plain:
        calls.append(count)
        return Plain(count)

    with threads(4) as executor:
        found = list(executor.map(plain, [50] * 4))
    assert len({ref.fingerprint for ref in found}) == 1
    assert found[0].manifest.lineage["seconds"] > 0
    assert len(plain(50)) == 50
    assert set(calls) == {50}


def test_together_reads_few_rows_besides_however_many_build(tmp_path):
    def work() -> None:
        storage = Storage(tmp_path / "storage")
        storage.cacheable("a", "1", together=True)(lambda: Counted(400, tmp_path / "notes"))()

    waits = [forked(work) for _ in range(4)]
    assert [wait() for wait in waits] == [0] * 4
    read = (tmp_path / "notes").read_text().split()
    one_plans, each_compares = 256 + 2 * 8, 8
    assert len(read) <= 400 + one_plans + 3 * each_compares


def test_a_builder_whose_notes_another_one_takes_away_has_the_version(storage, monkeypatch):
    first, second = (Planned(storage, Plain(9), "a", "1") for _ in range(2))
    first.built()
    read_all, found = Board.read_all, []

    def later(board, *arguments):
        monkeypatch.setattr(Board, "read_all", read_all)
        found.append(first.publish())
        return read_all(board, *arguments)

    monkeypatch.setattr(Board, "read_all", later)
    assert second.publish().fingerprint == found[0].fingerprint


def test_together_where_no_plan_can_be_made(tmp_path):
    def work() -> None:
        with pytest.raises(SchemaError, match="have no rows"):
            Storage(tmp_path / "storage").submit(yoga.flat_map([1, 2], slow_nothing), "a", "1", together=True)

    began = time.monotonic()
    assert [wait() for wait in [forked(work) for _ in range(6)]] == [0] * 6
    assert time.monotonic() - began < 6  # a second for the first one, and one for all others


def slow_nothing(number: int) -> Iterator[object]:
    time.sleep(0.5)
    return iter(())


def test_together_by_processes_of_which_two_die(tmp_path):
    (tmp_path / "marks").mkdir()
    folder = tmp_path / "storage"

    def work() -> None:
        data = Deadly(60, tmp_path / "marks", (0, 31))  # whoever plans, and who plans then
        data.owner = 0
        Storage(folder, lease_seconds=1).submit(data, "a", "1", together=True)

    waits = [forked(work) for _ in range(4)]
    assert sorted(wait() for wait in waits) == [-signal.SIGKILL] * 2 + [0, 0]
    storage = Storage(folder)
    assert storage.fetch("a", "1").fingerprint == storage.submit(Plain(60), "b", "1").fingerprint


def test_a_pool_that_breaks_is_an_error_and_the_next_call_goes_on(tmp_path):
    (tmp_path / "marks").mkdir()
    data = Deadly(80, tmp_path / "marks", (45,))
    storage = Storage(tmp_path / "storage")
    with (
        ProcessPoolExecutor(2, get_context("fork")) as executor,
        pytest.raises(YogaError, match=r"workers of 'a' '1' have died .* parts that are done stay"),
    ):
        storage.submit(data, "a", "1", executor=executor)
    with ProcessPoolExecutor(2, get_context("fork")) as executor:
        ref = storage.submit(data, "a", "1", executor=executor)
    assert ref.fingerprint == storage.submit(Plain(80), "b", "1").fingerprint


class Acting(ThreadPoolExecutor):
    """Calls `act` with the number of each piece of work, and with a function that submits it."""

    def __init__(self, act) -> None:
        super().__init__(2)
        self._act, self._count = act, 0

    def submit(self, function, /, *args, **kwargs):
        self._count += 1
        return self._act(self._count, partial(super().submit, function, *args, **kwargs))


@pytest.mark.rest
def test_futures_that_never_come_are_not_waited_for(storage, monkeypatch):
    monkeypatch.setattr("torchyoga.caching.many._SHORTEST", 0.5)
    monkeypatch.setattr("torchyoga.caching.many._UNKNOWN", 0.5)
    with Acting(lambda number, begin: begin() if number % 3 else Future()) as executor:
        ref = Storage(storage.url, lease_seconds=1).submit(Plain(40), "a", "1", executor=executor)
    assert len(ref) == 40


def test_workers_that_do_not_share_the_files_are_named(storage):
    def elsewhere(*_: object) -> Future[tuple[float, str]]:
        found: Future[tuple[float, str]] = Future()
        found.set_result((1.0, "process 7 on the moon"))
        return found

    with pytest.raises(
        YogaError, match=r"built 3 times, last by process 7 on the moon, but process \d+ on .* sees"
    ):
        storage.submit(Plain(9), "a", "1", executor=Acting(elsewhere))


@pytest.mark.parametrize("seconds", [0.2, 1000])
def test_a_driver_ends_when_another_builder_has_published(seconds, storage, monkeypatch):
    """Which removes the plan; it is looked for after some seconds, or where parts are built and not seen."""
    monkeypatch.setattr("torchyoga.caching.many._CURRENT", seconds)

    def beside_a_rival(number, begin):
        if number == 3:
            storage.submit(Plain(40), "a", "1", together=True, progress=False)
        return begin()

    with Acting(beside_a_rival) as executor:
        assert len(storage.submit(Plain(40), "a", "1", executor=executor)) == 40


def test_other_inputs_are_another_build(storage):
    storage.submit(yoga.flat_map([1, 2, 3], read_lines), "a", "1", together=True)
    with pytest.raises(ExistsError, match="another first row"):
        storage.submit(yoga.flat_map([2, 3, 1], read_lines), "a", "1", together=True)
    plan = Planned(storage, yoga.flat_map([1, 2, 3], read_lines), "b", "1")
    plan.build(0)
    store_of(storage).notes(".builds/b/1").create(f"{_token(storage, 'b')}/claims/00001.json", b"{}")
    with pytest.raises(BusyError, match="its source, code or options are others"):
        Planned(storage, yoga.flat_map([1, 2, 7], read_lines), "b", "1")


class Drawn(Plain):
    """Rows that follow from the generator of the process."""

    def __getitem__(self, number: int) -> dict[str, object]:
        return {**super().__getitem__(number), "noise": float(np.random.random())}


@pytest.mark.quick("directory-Random", "memory-Drawn")
@pytest.mark.parametrize("kind", [Random, Drawn])
def test_rows_that_differ_each_time_are_kept_once_with_a_warning(kind, storage):
    with threads() as executor, pytest.warns(UserWarning, match="differ when they are read again"):
        assert len(storage.submit(kind(30), "a", "1", executor=executor)) == 30
    assert len(storage.submit(kind(30), "a", "1", together=True)) == 30


def test_a_failure_of_no_part_is_forged(storage):
    plan = Planned(storage, Plain(40), "a", "1", parts=4)
    board = Board(store_of(storage), "a", "1", 60.0)
    found = board.plan()
    assert found is not None

    def forging(_, begin):
        forged = PartFailure(99, "SchemaError", "no", "nobody", is_final=True)
        board.fail(found, secrets.token_hex(8), forged)
        return begin()

    with Acting(forging) as executor:
        assert len(storage.submit(Plain(40), "a", "1", executor=executor)) == 40
    assert len(plan.parts) == 4


def test_an_executor_that_is_broken_or_does_nothing_is_an_error(storage, monkeypatch):
    def broken(*_):
        raise BrokenExecutor("it is broken")

    with pytest.raises(YogaError, match=r"workers of 'a' '1' have died \(it is broken\)"):
        storage.submit(Plain(9), "a", "1", executor=Acting(broken))
    monkeypatch.setattr("torchyoga.caching.many._LONGEST_SILENCE", 0.3)
    monkeypatch.setattr("torchyoga.caching.many._ENDING", 0.3)
    with pytest.raises(YogaError, match="no worker of the executor began a part of 'a' '1'"):
        storage.submit(Plain(9), "a", "1", executor=Acting(lambda *_: Future()))


class Rows(IterableDataset):
    def __iter__(self):
        return iter(range(5))


class Locked(Plain):
    def __init__(self) -> None:
        super().__init__(5)
        self.handle = threading.Lock()


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"data": Rows(), "together": True}, TypeError, "can only be read from its beginning.*flat_map"),
        ({"data": (n for n in range(3)), "together": True}, TypeError, "can only be read from its beginning"),
        ({"executor": 3}, TypeError, "executor must have a method submit"),
        ({"executor": threads}, TypeError, "have; found a function, so pass what it makes"),
        ({"executor": threads(), "together": True}, ValueError, "pass one of them"),
        ({"executor": threads(), "num_workers": 2}, ValueError, "pass one of them"),
        ({"together": True, "overwrite": True}, ValueError, "cannot overwrite"),
        ({"data": Locked(), "executor": threads()}, TypeError, r"Locked\.handle, a lock, cannot be sent"),
        ({"executor": threads(), "max_rows": 3}, ValueError, "more than max_rows=3"),
        ({"data": yoga.flat_map([0, 4], read_lines), "together": True}, SchemaError, "pass schema="),
    ],
)
def test_bad_input(arguments, error, match, storage):
    with pytest.raises(error, match=match):
        storage.submit(**{"data": Plain(9), "id": "a", "version": "1", **arguments})
    assert storage.list() == []


def test_a_version_that_is_there_is_returned_only_if_it_is_the_same(storage):
    storage.submit(Plain(9), "a", "1", together=True)
    assert len(storage.submit(Plain(9), "a", "1", together=True)) == 9
    with pytest.raises(ExistsError, match="has 9 rows, not 8"):
        storage.submit(Plain(8), "a", "1", together=True)
    with pytest.raises(ExistsError, match="has another row"):
        storage.submit(Plain(9, add=1), "a", "1", together=True)
    with pytest.raises(ExistsError, match="published already"):
        storage.submit(Plain(9), "a", "1", executor=threads())
