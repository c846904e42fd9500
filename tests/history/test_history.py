"""The newest version, the log, and what `clean` keeps, against plain models."""

from __future__ import annotations

import functools
import itertools
import secrets
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from stored import store_of, told

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError, YogaError
from torchyoga.stores.history import LogEntry, heads, in_time, parent_of
from torchyoga.versions.file_entry import Listed
from torchyoga.versions.lineage import Lineage, Parent, sendable
from torchyoga.versions.manifest import Outline


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage")


TITLES = ("version", "parent", "rows", "+rows", "bytes", "when", "who", "tags", "code", "message")


def node(version: str, *parents: tuple[str, str], created: str = "", fingerprint: str = "f") -> Outline:
    made = tuple(Parent(name, found, 1, True) for name, found in parents)
    return Outline(version, fingerprint, "0" * 16, created, Listed(made))


def test_heads_of_all_small_forests() -> None:
    """Each of four versions has any parent, itself and a missing one included, with the right rows or not."""
    names = "abcd"
    choices = [(name, rows) for name in [*names, "gone"] for rows in "fx"] + [None]
    for parents in itertools.product(choices, repeat=3):
        nodes = {"a": node("a")} | {
            name: node(name, *([parent] if parent else []))
            for name, parent in zip(names[1:], parents, strict=True)
        }
        links = {
            (name, parent[0])
            for name, parent in zip(names[1:], parents, strict=True)
            if parent and parent[1] == "f" and parent[0] in nodes and parent[0] != name
        }
        assert heads(nodes) == [name for name in names if all(below != name for _, below in links)]
        order = in_time(nodes)
        assert sorted(order) == [*names]
        in_circle = (
            any((b, a) in links for a, b in links) or len({b for _, b in links} & {a for a, _ in links}) > 1
        )
        for name, below in links:
            assert parent_of(nodes[name], nodes) == below
            assert in_circle or order.index(below) < order.index(name)


def test_a_removed_version_between_leaves_one_head() -> None:
    nodes = {"1": node("1"), "3": node("3", ("1", "f"), ("2", "f"))}
    assert heads(nodes) == ["3"]
    assert parent_of(nodes["3"], nodes) == "1"


def test_order_is_by_time_but_after_parents() -> None:
    nodes = {
        "z": node("z", created="2026-01-02"),
        "b": node("b", ("z", "f"), created="2026-01-01"),  # by a clock that was behind
        "a": node("a", ("b", "f"), created="2026-01-02"),
        "c": node("c", created="2026-01-03"),
    }
    assert in_time(nodes) == ["z", "b", "a", "c"]


def published(
    storage: yoga.Storage, version: str, rows: list[int], parent: str | None, **lineage: Any
) -> None:
    """A version with a parent, as `append` makes one."""
    storage.submit(rows, "photos", version, overwrite=True, record=False)
    manifest = store_of(storage).manifest("photos", version)
    if parent is not None:
        one = store_of(storage).manifest("photos", parent)
        manifest = replace(manifest, parents=Listed([Parent(parent, one.fingerprint, one.num_rows, True)]))
    path = storage.path / "photos" / version / "manifest.json"
    path.write_bytes(replace(manifest, lineage=lineage).to_bytes())


def test_latest_is_the_only_head(storage: yoga.Storage) -> None:
    with pytest.raises(NotFoundError, match="holds nothing"):
        storage.fetch("photos", latest=True)
    published(storage, "1.0", [1], None)
    published(storage, "0.9", [1, 2], "1.0")
    assert len(storage.fetch("photos", latest=True)) == 2
    published(storage, "0.8", [1, 2, 3], "1.0")
    with pytest.raises(
        NotFoundError, match=r"2 newest versions.*('0.8'|'0.9') of 20\d\d-.* and|, ('0.8'|'0.9') of"
    ):
        storage.fetch("photos", latest=True)
    storage.remove("photos", "0.9")
    assert len(storage.fetch("photos", latest=True)) == 3
    published(storage, "1.0", [7], "0.8")  # overwritten by rows that nothing was made from
    assert list(storage.fetch("photos", latest=True)) == [7]


@pytest.mark.damages("a manifest is damaged")
def test_damage_is_shown_by_the_log_and_keeps_all(storage: yoga.Storage) -> None:
    for version in "123":
        published(storage, version, [int(version)], None)
    (storage.path / "photos" / "2" / "manifest.json").write_bytes(b'{"torchyoga": 1}')
    log = storage.log("photos")
    assert [entry.version for entry in log if entry.problem is not None] == ["2"]
    assert "damaged: " in str(log)
    with pytest.raises(CorruptError, match="newest version of 'photos' is not known"):
        storage.fetch("photos", latest=True)
    assert not storage.clean(0, keep_last=1)


def test_the_log_is_a_table(storage: yoga.Storage) -> None:
    published(storage, "1.0", [1], None, user="ada", commit="ab" * 20, dirty=True, message="first")
    published(storage, "1.1", [1, 2, 3], "1.0", user="bob", commit="cd" * 20, dirty=False)
    storage.tag("photos", "prod", "1.0")
    log = storage.log("photos")
    lines = str(log).splitlines()
    assert lines[0].split() == [*TITLES]
    assert lines[1].split()[:4] == ["1.1", "1.0", "3", "+2"]
    assert lines[1].endswith("cdcdcdcd")
    assert lines[2].split()[-4:] == ["ada", "prod", "abababab+", "first"]
    assert (log[0].parents, log[0].added, log[1].tags, log[1].who) == (("1.0",), 2, ("prod",), "ada")
    assert len(storage.log("photos", limit=1)) == 1
    assert str(storage.log("photos", limit=1)).endswith("and 1 older version")
    assert str(storage.log("photos", limit=0)).endswith("and 2 older versions")
    assert log[:] == storage.log("photos")[:]
    with pytest.raises(ValueError, match="limit must be"):
        storage.log("photos", -1)
    with pytest.raises(NotFoundError, match="photos"):
        storage.log("photo")


def test_a_forged_lineage_does_no_harm(storage: yoga.Storage) -> None:
    evil = "\x1b[2J\r\n\u202e" + "x" * 1000
    forged: dict[str, Any] = {
        "user": evil[:90],
        "message": evil,
        "commit": "../..",
        "dirty": "no",
        "packages": {"torch": ["1"], evil: "1"},
        "seconds": 10**400,
        "source": "y" * 10**6,
        "host": {"a": 1},
        "function": None,
    }
    published(storage, "1.0", [1], None, **forged)
    log = storage.log("photos")
    assert all(line.isprintable() for line in str(log).splitlines())
    assert len(str(log).splitlines()) == 2
    found = log[0].lineage
    assert (found.commit, found.dirty, found.packages, found.seconds) == (None, None, {}, None)
    assert (found.source, found.host) == (None, None)
    for value in (None, True, 0, -1, 1.5, float("nan"), [], {}, "x" * 10**5, "\ud800", [[[]]]):
        Lineage.of(dict.fromkeys([*vars(Lineage())], value))
    assert max(map(len, LogEntry("v", created=evil).cells())) <= 61  # with the mark of what was cut


# -- clean


@pytest.mark.parametrize(
    ("last", "tagged"), [*itertools.product(range(4), [True]), *itertools.product(range(1, 4), [False])]
)
def test_what_is_kept_of_four_versions(storage: yoga.Storage, last: int, tagged: bool) -> None:
    for n in range(4):
        published(storage, str(n), [n], str(n - 1) if n else None)
    storage.submit([1], "others", "1.0")
    storage.tag("photos", "prod", "1")
    kept = {str(n) for n in range(4 - last, 4)} | ({"1"} if tagged else set())
    kept |= {str(int(v) - 1) for v in kept if int(v)}
    clean = functools.partial(storage.clean, keep_last=last, keep_tagged=tagged)
    gone = [f"photos/{v}" for v in map(str, range(4)) if v not in kept]
    planned = clean(0, id="photos", dry_run=True)
    assert [*planned] == gone
    assert all(nbytes > 0 for nbytes in planned.values())
    assert storage.versions("photos") == [*"0123"]
    assert clean(id="photos", dry_run=True) == {}  # younger than a day
    assert not clean()
    with store_of(storage).lock("photos", "2"):  # it is being built
        assert "photos/2" not in clean(0, id="photos")
    clean(0, id="photos")
    assert storage.versions("photos") == sorted(kept)
    assert storage.versions("others") == ["1.0"]


def test_what_to_keep_is_checked(storage: yoga.Storage) -> None:
    for wrong in (
        {"keep_last": -1},
        {"keep_last": 1.5},
        {"keep_last": 0, "keep_tagged": False},
        {"keep_tagged": False},
    ):
        with pytest.raises(ValueError, match=r"keep_last|no version at all"):
            storage.clean(0, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="keep_tagged must be True or False"):
        storage.clean(0, keep_last=1, keep_tagged=1)  # type: ignore[arg-type]


def test_a_version_tagged_meanwhile_stays(storage: yoga.Storage) -> None:
    for version in "12":
        published(storage, version, [int(version)], None)
    started = threading.Event()

    def late(lock: Any, id: str, version: str, *args: Any, deletes: bool = False) -> Any:
        if deletes and not started.is_set():
            started.set()
            storage.tag("photos", "prod", version)
        return lock(id, version, *args, deletes=deletes)

    told(storage, lock=late)
    assert not storage.clean(0, keep_last=1)
    assert list(storage.fetch("photos", tag="prod")) == [1]


def test_files_of_one_id_only(storage: yoga.Storage) -> None:
    for id in ("one", "two"):
        storage.submit([1], id, "1")
        (storage.path / id / "1" / f"{'0' * 16}-00000.mdb").write_bytes(b"left")
    assert storage.clean(0, id="one", dry_run=True) == {f"one/1/{'0' * 16}-00000.mdb": 4}
    assert len(storage.clean(0, dry_run=True)) == 2
    assert [*storage.clean(0, id="one")] == [f"one/1/{'0' * 16}-00000.mdb"]
    assert [*storage.clean(0)] == [f"two/1/{'0' * 16}-00000.mdb"]


def test_source_and_host_stay_here(tmp_path: Path) -> None:
    local = yoga.Storage(tmp_path / "storage")
    away = yoga.Storage(f"memory://{secrets.token_hex(8)}", cache_dir=tmp_path / "cache")

    def numbers() -> list[int]:
        return [1, 2]

    here = local.submit(numbers, "photos", "1", message="why")
    there, copied = away.submit(numbers, "photos", "2"), local.copy("photos", "1", to=away)
    assert local.copy("photos", "1", to=away).fingerprint == copied.fingerprint
    for ref in (there, copied):
        lineage = ref.manifest.lineage  # type: ignore[attr-defined]
        assert lineage.keys() & {"source", "host"} == set()
    lineage = here.manifest.lineage  # type: ignore[attr-defined]
    assert lineage["source"].startswith("def numbers()")
    assert lineage["message"] == "why"
    assert lineage["function"].endswith("numbers")
    assert {"python", "torch", "numpy", "torchyoga"} <= lineage["packages"].keys()
    assert str(tmp_path) not in str(lineage)
    assert local.submit([1], "photos", "none", record=False).manifest.lineage == {}  # type: ignore[attr-defined]
    assert sendable({"host": "a", "source": "b", "user": "c"}) == {"user": "c"}
    with pytest.raises(ValueError, match="record must be"):
        local.submit([1], "photos", "x", record="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="record=False leaves out"):
        local.submit([1], "photos", "x", record=False, message="why")


def test_a_converted_version_has_a_parent(storage: yoga.Storage) -> None:
    storage.submit([1, 2], "photos", "1", message="first")
    storage.convert("photos", "1", format="hdf5", to="2", message="as HDF5")
    assert [(entry.version, entry.parents, entry.message) for entry in storage.log("photos")] == [
        ("2", ("1",), "as HDF5"),
        ("1", (), "first"),
    ]
    assert storage.fetch("photos", latest=True).fingerprint == storage.fetch("photos", "1").fingerprint


# -- all together

VERSIONS, TAGS = ["a", "b", "c"], ["prod", "test"]


class History(RuleBasedStateMachine):
    """Calls of a storage beside a dict of versions and a list of moves."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.storage = self.make()
        self.rows: dict[str, list[int]] = {}
        self.made: dict[str, str] = {}
        self.moves: dict[str, list[tuple[str, list[int]] | None]] = {tag: [] for tag in TAGS}

    def make(self) -> yoga.Storage:
        return yoga.Storage(Path(self.folder.name) / "storage")

    def teardown(self) -> None:
        self.folder.cleanup()

    def named(self, tag: str) -> tuple[str, list[int]] | None:
        return self.moves[tag][-1] if self.moves[tag] else None

    @rule(version=st.sampled_from(VERSIONS), row=st.integers(0, 2))
    def submit(self, version: str, row: int) -> None:
        ref: Any = self.storage.submit([row], "x", version, overwrite=True, record=False)
        self.rows[version], self.made[version] = [row], ref.manifest.created

    @rule(version=st.sampled_from(VERSIONS), force=st.booleans())
    def remove(self, version: str, force: bool) -> None:
        if version not in self.rows:
            with pytest.raises(NotFoundError):
                self.storage.remove("x", version, force=force)
        elif not force and version in {found[0] for tag in TAGS if (found := self.named(tag))}:
            with pytest.raises(YogaError, match=r"has the tags \['.*'\], so it was not removed.*force=True"):
                self.storage.remove("x", version)
        else:
            self.storage.remove("x", version, force=force)
            del self.rows[version]

    @rule(tag=st.sampled_from(TAGS), version=st.sampled_from(VERSIONS))
    def tag(self, tag: str, version: str) -> None:
        if version in self.rows:
            self.storage.tag("x", tag, version)
            self.moves[tag].append((version, self.rows[version]))
        else:
            with pytest.raises(NotFoundError):
                self.storage.tag("x", tag, version)

    @rule(tag=st.sampled_from(TAGS))
    def untag(self, tag: str) -> None:
        if self.named(tag) is None:
            with pytest.raises(NotFoundError, match=f"no tag '{tag}'"):
                self.storage.tag("x", tag, None)
        else:
            self.storage.tag("x", tag, None)
            self.moves[tag].append(None)

    @rule(last=st.integers(1, 2), tagged=st.booleans())
    def clean(self, last: int, tagged: bool) -> None:
        # Of those of one second, the last by name.
        kept = {*sorted(self.rows, key=lambda version: (self.made[version], version))[-last:]}
        clean = functools.partial(self.storage.clean, 0, keep_last=last, keep_tagged=tagged)
        if tagged:
            kept |= {found[0] for tag in TAGS if (found := self.named(tag))}
        gone = sorted(f"x/{version}" for version in self.rows.keys() - kept)
        assert [name for name in clean(dry_run=True) if name in gone] == gone
        assert set(gone) <= set(clean())
        self.rows = {version: rows for version, rows in self.rows.items() if version in kept}

    @rule()
    def latest(self) -> None:
        if len(self.rows) == 1:
            assert list(self.storage.fetch("x", latest=True)) == next(iter(self.rows.values()))
        else:
            with pytest.raises(NotFoundError):
                self.storage.fetch("x", latest=True)

    @invariant()
    def is_as_expected(self) -> None:
        assert self.storage.versions("x") == sorted(self.rows)
        named = {tag: found[0] for tag in TAGS if (found := self.named(tag))}
        assert self.storage.tags("x") == named
        for tag in TAGS:
            found = self.named(tag)
            if found is not None and self.rows.get(found[0]) == found[1]:
                assert list(self.storage.fetch("x", tag=tag)) == found[1]
            else:
                said = f"no tag '{tag}'"
                if found is not None:
                    gone = "overwritten by other rows" if found[0] in self.rows else "has been removed"
                    said = f"names version '{found[0]}' .*{gone}"
                with pytest.raises(NotFoundError, match=said):
                    self.storage.fetch("x", tag=tag)
            if self.moves[tag]:
                history = [entry.version for entry in self.storage.tags("x", tag)]
                assert history == [move[0] if move else None for move in self.moves[tag]]


class HistoryInAStore(History):
    """The same behind a URL."""

    def make(self) -> yoga.Storage:
        return yoga.Storage(f"memory://{secrets.token_hex(8)}", cache_dir=self.folder.name)


History.TestCase.settings = settings(max_examples=15, stateful_step_count=12)
HistoryInAStore.TestCase.settings = settings(max_examples=6, stateful_step_count=10)
TestHistory = History.TestCase
TestHistoryInAStore = HistoryInAStore.TestCase


def test_files_that_kept_versions_name_are_not_counted(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit([{"x": n} for n in range(50)], "a", "1")
    storage.append([{"x": 1}], "a", "2", after="1")
    storage.append([{"x": 2}], "a", "3", after="2")
    alone = storage.convert("a", "3", to="4")
    storage.append([{"x": 3}], "a", "5", after="4")
    before = sum(path.stat().st_size for path in tmp_path.rglob("*.mdb"))
    told = storage.clean(0, keep_last=1, dry_run=True)
    assert {"a/1", "a/2", "a/3"} >= told.keys() >= {"a/1", "a/2"}
    storage.clean(0, keep_last=1)
    storage.clean(0)
    after = sum(path.stat().st_size for path in tmp_path.rglob("*.mdb"))
    assert sum(told.values()) == before - after
    assert len(alone) == 52
