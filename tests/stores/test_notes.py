"""Notes: created once by one of many, in a directory and in a store."""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from children import status_of_child
from fsspec.implementations.memory import MemoryFileSystem

from torchyoga.errors import CorruptError
from torchyoga.files.root import Root
from torchyoga.stores.contract import Notes
from torchyoga.stores.kinds import Memory
from torchyoga.stores.objects import Objects


@pytest.fixture(params=["directory", "memory"])
def notes(request, tmp_path, monkeypatch) -> Notes | Objects:
    if request.param == "directory":
        return Notes(Root(tmp_path).at(".notes/a"))
    exists = MemoryFileSystem.exists  # after which others run
    monkeypatch.setattr(MemoryFileSystem, "exists", lambda *given: (exists(*given), time.sleep(0.01))[0])
    return Objects(f"memory://{secrets.token_hex(4)}").at(".notes/a")


def test_of_many_that_create_a_note_one_succeeds(notes):
    barrier = threading.Barrier(8)

    def create(number: int) -> bool:
        barrier.wait(20)
        return notes.create("k/7.json", b'{"by": %d}' % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert won.count(True) == 1
    assert notes.read("k/7.json", 100) == b'{"by": %d}' % won.index(True)


def test_a_child_forked_while_a_thread_uses_memory_reads_it():
    notes = Objects(f"memory://{secrets.token_hex(4)}")
    notes.create("a", b"1")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(Memory.lock.acquire).result()
        status = status_of_child(lambda: notes.read("a", 10) == b"1" or 1 / 0)
        pool.submit(Memory.lock.release).result()
    assert status == 0


def test_names_are_all_notes_below_and_their_times(notes):
    assert notes.find() == {}
    notes.create("1.json", b"one")
    notes.write("k/2.json", b"two")
    notes.write("k/2.json", b"2")
    found = notes.find()
    assert sorted(found) == ["1.json", "k/2.json"]
    now = notes.now()
    assert now is not None
    assert all(note.written is not None and abs(now - note.written) < 60 for note in found.values())
    assert notes.read("k/2.json", 1) == b"2"
    with pytest.raises(CorruptError, match=r"1\.json"):
        notes.read("1.json", 2)  # it is longer
    notes.delete(["1.json", "k/2.json", "k/3.json"])
    assert notes.find() == {}
    with pytest.raises(FileNotFoundError):
        notes.read("1.json", 10)


def test_what_killed_writers_have_left_goes_and_living_writers_begin_again(tmp_path: Path):
    folder, cleaned = tmp_path / ".notes" / "k", []

    class Cleaned(Root):
        def fill(self, name: str, data: bytes) -> None:
            super().fill(name, data)
            if len(cleaned) < 3 and name.rpartition("/")[2].startswith(".new-"):
                cleaned.append(notes.unfinished(time.time() + 1))
                notes.delete(cleaned[-1])

    notes = Notes(Root(tmp_path).at(".notes"))
    notes.create("k/1.json", b"1")
    (folder / ".new-0123456789abcdef").write_bytes(b"half")
    assert notes.unfinished(0) == {}
    assert notes.unfinished(time.time() + 1) == {"k/.new-0123456789abcdef": 4}
    notes = Notes(Cleaned(tmp_path).at(".notes"))
    assert notes.create("k/2.json", b"2")
    assert not notes.create("k/2.json", b"3")
    notes.write("l/3.json", b"3")
    assert [len(names) for names in cleaned] == [2, 1, 1]
    assert sorted(notes.find()) == ["k/1.json", "k/2.json", "l/3.json"]
    assert notes.read("k/2.json", 10) == b"2"
    assert sorted(path.name for path in folder.iterdir()) == ["1.json", "2.json"]
    notes.delete(notes.find())
    assert list(tmp_path.iterdir()) == []
