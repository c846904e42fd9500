"""Tags: chains of notes that many processes write, and what they name."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest
from becoming import leave
from children import in_processes, status_of_child
from damaged import resealed
from waiting import running

import torchyoga as yoga
from torchyoga.errors import CorruptError, NotFoundError


@pytest.fixture
def local(tmp_path: Path) -> yoga.Storage:
    found = yoga.Storage(tmp_path / "storage")
    for version in ("1.0", "1.1"):
        found.submit([1, 2, 3, int(version[-1])], "photos", version)
    return found


def note(storage: yoga.Storage, number: int, tag: str = "prod") -> Path:
    return storage.path / ".tags" / "photos" / tag / f"{number:08d}.json"


def test_a_tag_moves_and_its_history_stays(storage: yoga.Storage) -> None:
    first, _ = storage.submit([1], "photos", "1.0"), storage.submit([2, 3], "photos", "1.1")
    entry = storage.tag("photos", "prod", "1.0", message="naïve\n")
    storage.tag("photos", "a/b ü", "1.0")
    storage.tag("photos", "prod", "1.1")
    assert storage.tags("photos") == {"a/b ü": "1.0", "prod": "1.1"}
    storage.tag("photos", "prod", None, message="wrong")
    assert storage.tags("photos") == {"a/b ü": "1.0"}
    with pytest.raises(NotFoundError, match=r"no tag 'prod' .*its tags are \['a/b ü'\]"):
        storage.fetch("photos", tag="prod")
    found = storage.tags("photos", "prod")
    assert [(entry.number, entry.version, entry.message) for entry in found] == [
        (1, "1.0", "naïve\n"),
        (2, "1.1", None),
        (3, None, "wrong"),
    ]
    assert found[0] == entry
    assert "\\n" in str(entry)
    assert entry.fingerprint == first.fingerprint
    assert all(entry.when.tzinfo is not None for entry in found)
    assert storage.list() == [("photos", "1.0"), ("photos", "1.1")]
    assert not storage.clean(0)
    assert len(storage.tags("photos", "prod")) == 3


def test_exactly_one_way_to_choose(local: yoga.Storage) -> None:
    local.tag("photos", "prod", "1.0")
    for given in ({}, {"version": "1.0", "tag": "prod"}, {"tag": "prod", "latest": True}):
        with pytest.raises(TypeError, match=r"exactly one of version=, tag= and latest=True"):
            local.fetch("photos", **given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="latest must be"):
        local.fetch("photos", latest=1)  # type: ignore[arg-type]


def test_bad_names_messages_and_versions_are_refused(local: yoga.Storage) -> None:
    for name in ("", 3, "x" * 300, "\ud800"):
        with pytest.raises(ValueError, match=r"^tag "):
            local.tag("photos", name, "1.0")  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match=r"no version '1.2' .*\['1.0', '1.1'\]"):
        local.tag("photos", "prod", "1.2")
    with pytest.raises(ValueError, match="4097 characters"):
        local.tag("photos", "prod", "1.0", message="x" * 4097)
    with pytest.raises(TypeError, match="must be a str"):
        local.tag("photos", "prod", "1.0", message=3)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="no tag 'prod'"):
        local.tags("photos", "prod")
    assert not (local.path / ".tags").exists()


@pytest.mark.damages("notes of a tag are damaged and forged")
def test_damaged_and_forged_notes(local: yoga.Storage) -> None:
    for version in ("1.0", "1.1", "1.0"):
        local.tag("photos", "prod", version)
    sound = note(local, 3).read_bytes()
    content = json.loads(sound)
    forged = []
    for change in (
        {"number": 2},
        {"tag": "other"},
        *({"version": value} for value in (7, "")),
        {"fingerprint": "x"},
        {"build": None},
        *({"when": value} for value in ("2026", "2026-01-01T00:00:00")),
        *({"when": value} for value in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")),
        {"torchyoga_tag": 2},
        {"who": ["a"]},
    ):
        forged.append(resealed({**content, **change}))
    cut = [sound[:length] for length in range(0, len(sound), 7)]
    others = [b"[" * 60_000, b"{}", b"null", b"\xff", b" " * 70_000, sound.replace(b'"1.0"', b'"1.1"')]
    for text in forged + cut + others:
        note(local, 3).write_bytes(text)
        for call in (local.fetch, local.tags):
            with pytest.raises(CorruptError, match=r"00000003\.json of the tag 'prod' is damaged"):
                call("photos", tag="prod")
        with pytest.raises(CorruptError):
            local.tags("photos")
    assert len(local.log("photos")) == 2  # which shows the other tags
    local.tag("photos", "prod", "1.1")
    assert local.fetch("photos", tag="prod").fingerprint == local.fetch("photos", "1.1").fingerprint
    note(local, 3).write_bytes(sound)
    note(local, 2).unlink()
    with pytest.raises(CorruptError, match=r"00000002\.json"):
        local.tags("photos", "prod")
    note(local, 99_999_999).write_bytes(sound)  # is not read for each number before it
    with pytest.raises(CorruptError, match=r"00000002\.json"):
        local.tags("photos", "prod")
    with pytest.raises(CorruptError, match="more than a tag can have"):
        local.tag("photos", "prod", "1.1")


def _tag_often(url: str, cache: str | None, name: str) -> None:
    storage = yoga.Storage(url, cache_dir=cache)
    for number in range(5):
        storage.tag("photos", "prod", "1.0" if number % 2 else "1.1", message=f"{name} {number}")


def test_processes_and_threads_at_once_lose_no_move(storage: yoga.Storage, tmp_path: Path) -> None:
    """In a store behind a URL, threads whose storages have caches of their own."""
    is_store = storage.url.startswith("memory")
    every = [f"{kind} {n}" for kind in ("process", "thread") for n in range(4)]
    caches = [str(tmp_path / name) if is_store else None for name in every]
    works = [partial(_tag_often, storage.url, *one) for one in zip(caches, every, strict=True)]
    for version in ("1.0", "1.1"):
        storage.submit([version], "photos", version)
    with running(*works[0 if is_store else 4 :]):
        in_processes("forkserver", *works[: 0 if is_store else 4])
    found = [entry.message for entry in storage.tags("photos", "prod")]
    assert [entry.number for entry in storage.tags("photos", "prod")] == list(range(1, 41))
    assert sorted(str(m) for m in found) == sorted(f"{name} {n}" for name in every for n in range(5))
    for name in every:  # each in its own order
        own = [message for message in found if str(message).startswith(name)]
        assert own == sorted(own, key=str)


def _die_while_tagging(folder: str, step: int) -> None:
    calls = iter(range(step))
    link = os.link

    def dying(*args: object, **kwargs: object) -> None:
        if next(calls, None) is None:
            leave(9)
        link(*args, **kwargs)  # type: ignore[arg-type]

    os.link = dying  # type: ignore[assignment]
    for number in range(4):
        yoga.Storage(folder).tag("photos", "prod", "1.0", message=str(number))


@pytest.mark.parametrize("step", range(3))
def test_a_kill_leaves_a_whole_chain(local: yoga.Storage, step: int) -> None:
    assert status_of_child(partial(_die_while_tagging, str(local.path), step)) == 9
    entry = local.tag("photos", "prod", "1.1")
    assert entry.number == step + 1
    assert [one.number for one in local.tags("photos", "prod")] == list(range(1, step + 2))
    assert local.fetch("photos", tag="prod").fingerprint == local.fetch("photos", "1.1").fingerprint
    (left,) = local.path.rglob(".new-*")  # which the killed one was writing
    name = left.relative_to(local.path).as_posix()
    assert local.clean() == local.clean(0, id="others") == {}
    assert local.clean(0, dry_run=True) == {name: left.stat().st_size}
    assert [*local.clean(0, id="photos")] == [name]
    assert [*local.path.rglob(".new-*")] == []
