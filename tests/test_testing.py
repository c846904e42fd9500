"""The kits find the mistakes that they are made to find."""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from kits import check_export
from waiting import PATIENCE

import torchyoga
from torchyoga.errors import BusyError, CorruptError
from torchyoga.reading.readahead import ReadAhead
from torchyoga.rows.schema import Schema
from torchyoga.stores.cache import Cache
from torchyoga.stores.contract import Seen
from torchyoga.stores.local import LocalStore
from torchyoga.stores.objects import Objects
from torchyoga.stores.remote import RemoteStore
from torchyoga.testing import assert_rows_equal, check_dataref, check_source, check_store
from torchyoga.versions.location import Folder
from torchyoga.versions.manifest import Manifest, Outline

T = TypeVar("T")
Point = namedtuple("Point", "x y")
Other = namedtuple("Other", "x y")

DIFFERENT: list[Any] = [
    *(1, 1.0, True, "1", b"1", None, 0.0, -0.0, float("nan"), 0j, complex(0.0, -0.0)),
    *(np.float32(1), np.float64(1), np.array(1.0), np.array([1.0]), np.array([[1.0]]), np.array([-0.0])),
    *(np.array([1.0], ">f8"), torch.tensor(1.0), torch.tensor([1.0]), torch.tensor([0.0])),
    *(torch.tensor([-0.0]), torch.tensor([1.0]).bfloat16(), torch.zeros(0, 2), torch.zeros(2, 0)),
    *((1, 2), [1, 2], (1, 2, 3), Point(1, 2), Other(1, 2)),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}),
    {"a": {"b": [np.zeros(2)]}},
    {"a": {"b": [np.ones(2)]}},
]


def test_rows_are_equal_only_to_themselves() -> None:
    for a, b in itertools.product(range(len(DIFFERENT)), repeat=2):
        if a == b:
            assert_rows_equal(DIFFERENT[a], DIFFERENT[b])
        else:
            with pytest.raises(AssertionError, match=r"row: |row\["):
                assert_rows_equal(DIFFERENT[a], DIFFERENT[b])


def test_the_message_says_where_rows_differ() -> None:
    with pytest.raises(AssertionError, match=r"row 3\['a'\]\['b'\]\[0\]: found array\(\[1"):
        assert_rows_equal(DIFFERENT[-1], DIFFERENT[-2], "row 3")


def test_a_source_that_breaks_a_rule_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="found 2 rows, expected 3"):
        check_source(lambda: [1, 2], [1, 2, 3], tmp_path / "fewer")
    with pytest.raises(AssertionError, match="row 1: found 3, expected 2"):
        check_source(lambda: [1, 3], [1, 2], tmp_path / "others")
    with pytest.raises(AssertionError, match="row 0: found int, expected float"):
        check_source(lambda: [1], [1.0], tmp_path / "types")
    readings = iter([[1, 2], [1, 3]])
    with pytest.raises(AssertionError, match="twice gave two different contents"):
        check_source(lambda: next(readings), [1, 2], tmp_path / "changing")


def test_an_export_that_differs_from_the_stream_is_found() -> None:
    ref = torchyoga.from_arrays(np.arange(12))

    def forgets_the_last(stream: torchyoga.Stream) -> Any:
        return lambda: list(stream)[:-1]

    def repeats_the_epoch(stream: torchyoga.Stream) -> Any:
        rows = list(stream)
        return lambda: rows

    check_export(ref, lambda stream: lambda: list(stream))
    with pytest.raises(AssertionError, match=r"\{\}, epoch 0: found 11 rows, expected 12"):
        check_export(ref, forgets_the_last)
    with pytest.raises(AssertionError, match=r"'start_offset': 4\}, epoch 1: found 8 rows, expected 12"):
        check_export(ref, repeats_the_epoch)


# -- a dataset


class Numbers(torchyoga.DataRef[Any]):
    """A correct dataset of arrays of two numbers; each subclass breaks one rule."""

    is_thread_safe = True

    def __len__(self) -> int:
        return 40

    def take(self, rows: np.ndarray) -> list[Any]:
        return [np.array([row, row**2]) for row in rows.tolist()]

    @property
    def fingerprint(self) -> str | None:
        return "numbers"

    @property
    def schema(self) -> Schema | None:
        return Schema.of(np.arange(2))

    @property
    def _row_bytes(self) -> int:
        return 16


def broken_ref(**members: object) -> type[Numbers]:
    """Numbers with these members in place of their own."""
    return type("Broken", (Numbers,), members)


def taking(change: Callable[[Any], Any]) -> type[Numbers]:
    """Numbers that take other rows than they are asked for."""
    return broken_ref(take=lambda self, rows: Numbers.take(self, change(rows)))


def indexing(kind: type, change: Callable[[Any], Any]) -> type[Numbers]:
    """Numbers that take an index of a kind for another."""

    def getitem(self: Numbers, index: Any) -> Any:
        return Numbers.__getitem__(self, change(index) if isinstance(index, kind) else index)

    return broken_ref(__getitem__=getitem)


class SpoilsItsArgument(Numbers):
    def take(self, rows: np.ndarray) -> list[Any]:
        found = super().take(rows)
        rows[:] = 0
        return found


class Reuses(Numbers):
    """Its rows are views of one buffer."""

    _buffer = np.zeros((1000, 2), np.int64)

    def take(self, rows: np.ndarray) -> list[Any]:
        for i, row in enumerate(super().take(rows)):
            self._buffer[i] = row
        return [*self._buffer[: len(rows)]]


class NamedByAddress(Numbers):
    fingerprint = property(lambda self: str(id(self)))


class HoldsAFile(Numbers):
    def __init__(self) -> None:
        self.open = (i for i in range(3))


class ForgetsRows(Numbers):
    def __init__(self, length: int = 40) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __reduce__(self) -> tuple[Any, ...]:
        return ForgetsRows, (39,)


class ReadsAhead(Numbers):
    def __init__(self, kind: type[ReadAhead]) -> None:
        self.kind = kind

    @property
    def _readahead(self) -> ReadAhead:  # type: ignore[override]
        self.__dict__.setdefault("made", self.kind(16))
        found: ReadAhead = self.__dict__["made"]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadsAhead, (self.kind,)


class GuessesRows(ReadAhead):
    def rows(self, indices: list[int], take: Any) -> Any:
        return take(np.sort(np.array(indices, np.int64)))


class HandsOutFewer(ReadAhead):
    def handed_out(self, wanted: list[int], numbers: np.ndarray) -> Iterator[list[int]]:
        yield wanted[:-1]


class AnnouncesBackwards(ReadAhead):
    def announced(self, windows: Iterable[np.ndarray], read_here: bool = True) -> Iterator[np.ndarray]:
        return reversed([*windows])


class NewReadAhead(Numbers):
    _readahead = property(lambda self: ReadAhead(16))  # type: ignore[assignment]


class OneAtATime(Numbers):
    """A dataset whose `take` fails if another thread calls it meanwhile."""

    interrupted = threading.Event()  # on the class, because the check pickles the ref

    def __init__(self) -> None:
        self.is_taking = False

    def take(self, rows: np.ndarray) -> list[Any]:
        if self.is_taking:
            self.interrupted.set()
            raise RuntimeError("two at once")
        self.is_taking = True
        try:
            if threading.current_thread() is not threading.main_thread():
                self.interrupted.wait(PATIENCE / 10)  # so that another thread gets its turn on any machine
            return super().take(rows)
        finally:
            self.is_taking = False


BROKEN_REFS: list[tuple[Callable[[], torchyoga.DataRef[Any]], str]] = [
    (
        broken_ref(take=lambda self, rows: Numbers.take(self, rows)[:20]),
        "take: Broken.take was asked for 40 rows, .* returned 20",
    ),
    (taking(np.sort), "take, last row first: row 39: found"),
    (
        taking(lambda rows: np.array([*dict.fromkeys(rows.tolist())], np.int64)),
        "take, with repeated rows: Broken.take was asked for 40 rows, .* returned 20",
    ),
    (SpoilsItsArgument, "changed the array of row numbers"),
    (Reuses, "row 0, after others were taken"),
    (
        broken_ref(take=lambda self, rows: [*np.random.default_rng().random((len(rows), 2))]),
        "take: row 0: found",
    ),
    (
        taking(lambda rows: np.array(rows.tolist() or [0])),
        "take of nothing: .* was asked for 0 rows, .* returned 1",
    ),
    (indexing(int, abs), r"ref\[-40\] of 40 rows: IndexError"),
    (indexing(int, lambda index: index % 40), r"ref\[40\] raised no IndexError"),
    (indexing(slice, lambda index: slice(index.start, index.stop)), r"slice\(None, None, -1\)"),
    (broken_ref(__iter__=lambda self: iter(self.take(np.arange(40)[::-1]))), "row 0 of the iteration"),
    (
        broken_ref(__iter__=lambda self: itertools.islice(Numbers.__iter__(self), 30)),
        "the iteration gives another number of rows than 40",
    ),
    (broken_ref(file_starts=np.array([10, 40])), "file_starts is"),
    (broken_ref(file_starts=np.array([0, 10, 30])), "file_starts is"),
    (broken_ref(file_starts=np.array([0, 20, 10, 40])), "file_starts is"),
    (broken_ref(fingerprint=property(lambda self: uuid.uuid4().hex)), "fingerprint is '.*', and then"),
    (NamedByAddress, "pickled, its fingerprint is"),
    (broken_ref(_row_bytes=-1), "row_bytes is -1"),
    (broken_ref(info={}), "info is not a copy"),
    (broken_ref(schema=Schema.of(np.arange(3))), "the rows are not as schema says: row 0"),
    (HoldsAFile, "it cannot be pickled"),
    (ForgetsRows, "pickled, it has 39 rows, and 40 before"),
    (lambda: ReadsAhead(GuessesRows), "rows (read ahead|not announced): row"),
    (lambda: ReadsAhead(HandsOutFewer), "hands out other rows"),
    (lambda: ReadsAhead(AnnouncesBackwards), "announces other windows"),
    (NewReadAhead, "another object each time"),
    (OneAtATime, "is_thread_safe, but in four threads: two at once"),
]


@pytest.mark.parametrize(("make", "said"), BROKEN_REFS, ids=[said for _, said in BROKEN_REFS])
def test_a_dataset_that_breaks_a_rule_is_found(make: Callable[[], torchyoga.DataRef[Any]], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_dataref(make())


# -- a store


class OneLockStore(LocalStore):
    @contextlib.contextmanager
    def lock(self, id: str, version: str, timeout: float = -1, deletes: bool = False) -> Iterator[None]:
        with super().lock("all", "1", timeout):
            yield


class StoreThatKeepsLocks(LocalStore):
    """A store that keeps the lock of a holder that failed."""

    @contextlib.contextmanager
    def lock(self, id: str, version: str, timeout: float = -1, deletes: bool = False) -> Iterator[None]:
        if (self.root / "kept").exists():
            raise BusyError("kept")
        try:
            with super().lock(id, version, timeout):
                yield
        except KeyError as error:
            if type(error) is KeyError:  # no NotFoundError
                (self.root / "kept").touch()
            raise


class StoreThatDrops(LocalStore):
    def publish(self, staging: Any, manifest: Manifest, progress: bool | None = None) -> Manifest:
        found = super().publish(staging, manifest, progress)
        (self.directory(manifest.id, manifest.version) / "manifest.json").unlink()
        return found


class OverwritesInPlace(LocalStore):
    """Puts new rows into the files of the old version."""

    def publish(self, staging: Any, manifest: Manifest, progress: bool | None = None) -> Manifest:
        for path in self.directory(manifest.id, manifest.version).glob("*.mdb"):
            with open(path, "r+b") as file:
                file.write(bytes(path.stat().st_size))
        return super().publish(staging, manifest, progress)


class PublishesHalves(LocalStore):
    """A store that publishes a build that has failed."""

    def stage(self, id: str, version: str, replaces: Seen | None = None) -> Any:
        found = super().stage(id, version, replaces)
        if id == "new" and self.find(id, version) is None:
            folder = self.directory(id, version)
            folder.mkdir(parents=True, exist_ok=True)
            text = self.read_manifest("a", "1")
            assert text is not None
            (folder / "manifest.json").write_bytes(text)
        return found


class CopiesNothing(LocalStore):
    def receive(self, manifest: Manifest, *_: object) -> Manifest:
        raise CorruptError("nothing came")


class RemovesNothing(LocalStore):
    def unpublish(self, id: str, version: str, known: Outline | None) -> list[str]:
        self.manifest(id, version)
        return []


class RemovesMore(LocalStore):
    def unpublish(self, id: str, version: str, known: Outline | None) -> list[str]:
        for other in [pair for pair in self.published() if pair[0] != id][:1]:
            super().unpublish(*other, None)
        return super().unpublish(id, version, known)


class CleansTooMuch(LocalStore):
    def clean(self, grace: float) -> dict[str, int]:
        for path in self.directory("a", "1").glob("*.mdb"):
            path.unlink()
        return {}


def broken(**members: object) -> type[LocalStore]:
    """A directory with these members in place of its own."""
    return type("Broken", (LocalStore,), members)


BROKEN_STORES: list[tuple[type[LocalStore], str]] = [
    (broken(published=lambda self: LocalStore.published(self)[::-1]), "published: found"),
    (broken(versions=lambda self, id: LocalStore.versions(self, id)[:1]), "versions of|published: found"),
    (
        broken(seen=lambda self, *of: LocalStore.seen(self, *of) or Seen(None)),
        "a version that does not exist was seen",
    ),
    (broken(seen=lambda self, *of: LocalStore.seen(self, *of) and Seen("same")), "looks unchanged"),
    (broken(refuse_existing=lambda *_: None), "publishing twice: expected ExistsError"),
    (
        broken(sizes=lambda self, of: {name: n + 1 for name, n in LocalStore.sizes(self, of).items()}),
        "is missing or damaged|sizes: found",
    ),
    (broken(clean=lambda *_: {"b": 1, "a": 1}), "in no order"),
    # The files of another version than the one requested.
    (broken(files=lambda self, _: Folder(self.where("a", "1"))), "publishing: |is missing or damaged"),
    (
        broken(lock=lambda *_, **__: contextlib.nullcontext()),
        "a lock that is held: found held, expected a BusyError",
    ),
    (OneLockStore, "the lock of another version: found busy"),
    (StoreThatKeepsLocks, "a lock whose holder failed is not free"),
    (StoreThatDrops, "published"),
    (OverwritesInPlace, "open while it was overwritten"),
    (PublishesHalves, "a build that failed"),
    (CopiesNothing, "copying: .*nothing came"),
    (RemovesNothing, "a version that was removed has a manifest"),
    (RemovesMore, "removing a version removes others"),
    (CleansTooMuch, "after clean: 'a' '1' is missing or damaged"),
]


@pytest.mark.slow(
    "in no order", "a lock whose*", "the lock of*", "copying: *", "after clean*", "*has a manifest"
)
@pytest.mark.parametrize(("kind", "said"), BROKEN_STORES, ids=[said for _, said in BROKEN_STORES])
@pytest.mark.damages("the stores break rules")
def test_a_store_that_breaks_a_rule_is_found(kind: type[LocalStore], said: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=said):
        check_store(lambda: kind(tmp_path / "root"), tmp_path / "else")


class Replacing(MemoryFileSystem):
    """A store that says that it creates objects once, and does not."""

    protocol = "replacing"
    creates_once = True

    def pipe_file(self, path: str, value: bytes, mode: str = "create", **kwargs: Any) -> None:
        super().pipe_file(path, value)


def test_a_store_of_ones_own_that_replaces_what_it_creates_is_found(tmp_path: Path) -> None:
    fsspec.register_implementation("replacing", Replacing)
    with pytest.raises(AssertionError, match="a note that is there was created again"):
        check_store(
            lambda: torchyoga.Storage("replacing://p", cache_dir=tmp_path / "cache"), tmp_path / "else"
        )


def test_a_directory_keeps_the_rules(tmp_path: Path) -> None:
    check_store(lambda: LocalStore(tmp_path / "root"), tmp_path / "else")


def test_a_store_behind_a_url_keeps_the_rules(tmp_path: Path) -> None:
    url, cache = f"memory://{uuid.uuid4().hex}/p", Cache(tmp_path / "cache", None)
    check_store(lambda: RemoteStore(Objects(url, None), cache, 60.0), tmp_path / "else")
