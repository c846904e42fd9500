"""A store against its contract, and what goes in and comes out against the rows that it was made of."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..building.build import BuildOptions, Target
from ..caching.many import submitted
from ..errors import BusyError, ExistsError, NotFoundError, YogaError
from ..reading.dataref import DataRef
from ..rows.block import exact_rows
from ..rows.types import Row
from ..storage import Storage, store_of
from ..stores.contract import Store
from ..stores.local import LocalStore
from ..stores.refs import fetched
from ..stores.sharing import Sharing
from ..stores.transfer import check, copied
from ..versions.manifest import Manifest
from .rows import PATIENCE, assert_rows_equal, compare_rows, expect, expect_raised, run_all

_NAMES = ("a", "a/b", "..", "Ä", "a b%c", "con")  # of ids and versions


def check_source(
    make_data: Callable[[], object], expected: Sequence[Row], directory: Path, **options: Any
) -> None:
    """Checks that a source goes into a storage and comes back: all rows, in order, of the same types.

    Args:
        make_data: makes data that `Storage.submit` takes; called each time the data is read.
        expected: its rows.
        directory: an empty directory that the check may fill.
        options: for `Storage.submit`.
    """
    storage = Storage(directory)
    ref = storage.submit(make_data(), "source", "1", progress=False, **options)
    expect(len(ref) == len(expected), f"found {len(ref)} rows, expected {len(expected)}")
    for i, row in enumerate(expected):
        assert_rows_equal(ref[i], row, f"row {i}")
    for i, (found, row) in enumerate(zip(ref, expected, strict=True)):
        assert_rows_equal(found, row, f"row {i} of the iteration")
    storage.check("source", "1")
    again = storage.submit(make_data(), "source", "2", progress=False, **options)
    expect(again.fingerprint == ref.fingerprint, "reading the source twice gave two different contents")


def check_store(make_store: Callable[[], Storage | Store], directory: Path) -> None:
    """Checks that a store publishes versions once and whole, keeps writers apart, and removes what it should.

    Args:
        make_store: opens the store again, as another program would; it is empty at first. One for a store of
            one's own is in docs/remote.md.
        directory: an empty directory that the check may fill.
    """

    def open_store() -> Store:
        store = make_store()
        return store_of(store) if isinstance(store, Storage) else store

    rules: dict[str, Callable[[], None]] = {
        "an empty store": lambda: _check_nothing_there(open_store()),
        "notes": lambda: _check_notes(open_store),
        "publishing": lambda: _check_publishing(open_store),
        "overwriting": lambda: _check_overwriting(open_store),
        "locking": lambda: _check_locks(open_store),
        "a build that failed": lambda: _check_interruption(open_store),
        "copying": lambda: _check_copies(open_store, LocalStore(directory / "other")),
        "removing": lambda: _check_removal(open_store),
    }
    for what, rule in rules.items():
        try:
            rule()
        except YogaError as error:
            raise AssertionError(f"{what}: {error!r}") from error


_OLD = [{"x": np.arange(4) + n, "text": "t" * n} for n in range(20)]
_NEW = [{"x": np.arange(4) - n, "text": "n" * n} for n in range(30)]


def _publish(store: Store, id: str, version: str, rows: Sequence[Row]) -> DataRef:
    """Builds a version, in place of the one that is there."""
    with store.lock(id, version, PATIENCE):
        store.check_place(id, version)
        target = Target(store, id, version, store.seen(id, version))
        return submitted(rows, target, BuildOptions(progress=False))


def _compare_version(store: Store, id: str, version: str, rows: Sequence[Row], how: str) -> None:
    try:
        ref = fetched(store, id, version)
        check(store, id, version)
    except YogaError as error:
        raise AssertionError(f"{how}: {id!r} {version!r} is missing or damaged: {error}") from error
    compare_rows(exact_rows(ref.take(np.arange(len(ref)))), range(len(rows)), dict(enumerate(rows)), how)


def _expect_error(kind: type[YogaError], how: str, call: Callable[[], object]) -> None:
    expect_raised(kind, f"{how}: expected {kind.__name__}, and nothing was raised", call)


def _check_nothing_there(store: Store) -> None:
    expect(store.published() == [], f"the store is not empty at first: {store.published()}")
    expect(store.versions("a") == [], "an id without versions has some")
    expect(store.read_manifest("a", "1") is None, "a version that does not exist has a manifest")
    expect(store.seen("a", "1") is None, "a version that does not exist was seen")
    _expect_error(NotFoundError, "a manifest that does not exist", lambda: store.manifest("a", "1"))
    _expect_error(
        NotFoundError,
        "removing a version that does not exist",
        lambda: Sharing(store, "a").remove_one("1", PATIENCE, None),
    )


def _check_notes(make_store: Callable[[], Store]) -> None:
    one, other = make_store().notes(".tags/kit"), make_store().notes(".tags/kit")
    expect(one.create("1.json", b"first"), "a new note is said to be there already")
    expect(not other.create("1.json", b"second"), "a note that is there was created again")
    expect(other.read("1.json", 99) == b"first", "a note was replaced by one that was created later")
    other.write("1.json", b"third")
    expect(one.read("1.json", 99) == b"third", "a note that was written over is as it was")
    expect(set(one.find()) == {"1.json"}, f"the notes that are there: found {sorted(one.find())}")
    one.delete(["1.json", "2.json"])
    expect(not other.find(), "a note that was deleted is listed")
    expect_raised(FileNotFoundError, "a note that was deleted is there", lambda: other.read("1.json", 99))


def _check_publishing(make_store: Callable[[], Store]) -> None:
    pairs = sorted([("a", "1"), *zip(_NAMES, _NAMES, strict=True)])
    for id, version in pairs:
        _publish(make_store(), id, version, _OLD)
    store = make_store()
    expect(store.published() == pairs, f"published: found {store.published()}")
    for name in _NAMES:
        versions = sorted(version for id, version in pairs if id == name)
        expect(store.versions(name) == versions, f"versions of {name!r}: found {store.versions(name)}")
    for id, version in pairs:
        _compare_version(store, id, version, _OLD, "published")
    manifest = store.manifest("a", "1")
    expect(
        {file.name: file.nbytes for file in manifest.files} == store.sizes(manifest),
        f"sizes: found {store.sizes(manifest)}, the manifest names {[file.name for file in manifest.files]}",
    )
    _expect_error(ExistsError, "publishing twice", lambda: make_store().refuse_existing("a", "1"))
    ref = pickle.loads(pickle.dumps(fetched(store, "a", "1")))
    compare_rows(ref.take(np.arange(len(_OLD))), range(len(_OLD)), dict(enumerate(_OLD)), "pickled")


def _check_overwriting(make_store: Callable[[], Store]) -> None:
    before = make_store()
    ref, seen = fetched(before, "a", "1"), before.seen("a", "1")
    ref.take(np.arange(len(ref)))
    _publish(make_store(), "a", "1", _NEW)
    _compare_version(before, "a", "1", _NEW, "overwritten")
    expect(
        before.seen("a", "1") != seen,
        "a version that was overwritten looks unchanged, so other processes may replace it",
    )
    opened = ref.take(np.arange(len(ref)))
    compare_rows(opened, range(len(_OLD)), dict(enumerate(_OLD)), "open while it was overwritten")
    _publish(make_store(), "a", "1", _OLD)


def _check_locks(make_store: Callable[[], Store]) -> None:
    found: list[str] = []

    def lock(id: str, version: str) -> None:
        try:
            with make_store().lock(id, version, 0.05):
                found.append("held")
        except BusyError:
            found.append("busy")
        except Exception as error:
            found.append(repr(error))

    def in_a_thread(id: str, version: str) -> str:
        run_all([threading.Thread(target=lock, args=(id, version), daemon=True)])
        return found.pop()

    with make_store().lock("a", "1", PATIENCE):
        other = in_a_thread("a", "1")
        expect(other == "busy", f"a lock that is held: found {other}, expected a BusyError")
        for id, version in (("a", "2"), ("b", "1")):
            other = in_a_thread(id, version)
            expect(other == "held", f"the lock of another version: found {other}, expected it to be free")
    expect(in_a_thread("a", "1") == "held", "a lock that was released is not free")
    with contextlib.suppress(KeyError), make_store().lock("a", "1", PATIENCE):
        raise KeyError("the holder failed")
    expect(in_a_thread("a", "1") == "held", "a lock whose holder failed is not free")


def _check_interruption(make_store: Callable[[], Store]) -> None:
    def rows() -> Iterator[Row]:
        yield from _NEW
        raise KeyError("the source failed")

    for id, version in (("new", "1"), ("a", "1")):
        with contextlib.suppress(KeyError):
            _publish(make_store(), id, version, rows())  # type: ignore[arg-type]
    store = make_store()
    expect(store.find("new", "1") is None, "a build that failed was published")
    expect(("new", "1") not in store.published(), "a build that failed is listed")
    _compare_version(store, "a", "1", _OLD, "after a build that failed")
    _publish(make_store(), "new", "1", _NEW)
    _compare_version(store, "new", "1", _NEW, "after a build that failed and another that did not")


def _check_copies(make_store: Callable[[], Store], other: LocalStore) -> None:
    def copy_version(source: Store, to: Store) -> DataRef:
        with to.lock("new", "1", PATIENCE):
            return copied(source, to, source.manifest("new", "1"), overwrite=False, progress=False)

    elsewhere = copy_version(make_store(), other)
    Sharing(make_store(), "new").remove_one("1", PATIENCE, None)
    here = copy_version(other, make_store())
    expect(here.fingerprint == elsewhere.fingerprint, "a copy has another fingerprint than the original")
    _compare_version(make_store(), "new", "1", _NEW, "copied")


def _check_removal(make_store: Callable[[], Store]) -> None:
    before = make_store().published()
    Sharing(make_store(), "new").remove_one("1", PATIENCE, None)
    store = make_store()
    expect(store.read_manifest("new", "1") is None, "a version that was removed has a manifest")
    expect(
        store.published() == [pair for pair in before if pair != ("new", "1")],
        "removing a version removes others",
    )
    _expect_error(NotFoundError, "a version that was removed", lambda: fetched(store, "new", "1"))
    cleaned = store.clean(0.0)
    expect([*cleaned] == sorted(cleaned), f"clean names what it removes in no order: {[*cleaned]}")
    for id, version in store.published():
        _compare_version(store, id, version, _OLD, "after clean")
        expect(Manifest.from_bytes(store.read_manifest(id, version) or b"").id == id, "another's manifest")
