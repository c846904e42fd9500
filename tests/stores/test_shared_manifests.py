"""A manifest is read once for a job, and sent once to a node, whatever becomes of who reads it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from waiting import PATIENCE

from torchyoga.errors import RemoteError
from torchyoga.stores import job
from torchyoga.stores.cache import Cache
from torchyoga.stores.job import note_written, read_by_node, read_by_one
from torchyoga.stores.patience import first_pause, num_starting, pause_after

RANKS, LIMIT = 3, 10**7


class Store:
    """What a store has under a name, and how often it sent it, and how often it was asked."""

    def __init__(self, text: bytes | None = b"one") -> None:
        self.text, self.sent, self.asked = text, 0, 0

    def read(self, tag: str | None) -> tuple[bytes | None, str | None]:
        self.asked += 1
        if self.text is None:
            raise FileNotFoundError("nothing is there")
        if tag == str(hash(self.text)):
            return None, tag
        self.sent += 1
        return self.text, str(hash(self.text))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", None)


def test_a_node_is_sent_what_it_does_not_have(cache: Cache) -> None:
    store = Store()
    assert [read_by_node(cache, "a", LIMIT, store.read) for _ in range(3)] == [b"one"] * 3
    assert (store.sent, store.asked) == (1, 3)
    store.text = b"two"
    assert read_by_node(cache, "a", LIMIT, store.read) == b"two"
    assert read_by_node(cache, "b", LIMIT, store.read) == b"two"
    assert store.sent == 3
    store.text = None
    with pytest.raises(FileNotFoundError):
        read_by_node(cache, "a", LIMIT, store.read)


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1] + b"X", lambda data: b"", lambda data: b"{" * 9999]
)
def test_what_is_kept_and_damaged_is_read_again(
    cache: Cache, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    store = Store()
    read_by_node(cache, "a", LIMIT, store.read)
    (path,) = (tmp_path / "cache" / "manifests").glob("*.json")
    path.write_bytes(change(path.read_bytes()))
    assert read_by_node(cache, "a", LIMIT, store.read) == b"one"
    assert store.sent == 2


def test_a_cache_that_cannot_be_written_is_no_hindrance(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache" / "manifests").write_text("a file")
    store = Store()
    assert [read_by_node(cache, "a", LIMIT, store.read) for _ in range(2)] == [b"one"] * 2
    assert store.asked == 2


def test_errors_of_the_store_are_passed_on_once(cache: Cache) -> None:
    asked = []

    def fails(tag: str | None) -> tuple[bytes | None, str | None]:
        asked.append(tag)
        raise RemoteError("it is gone")

    with pytest.raises(RemoteError, match="it is gone"):
        read_by_node(cache, "a", LIMIT, fails)
    assert asked == [None]


def test_pauses() -> None:
    for chance in (0.0, 0.3, 1.0):
        assert 0 <= pause_after(1, chance, True) <= 0.2
        assert 4 <= pause_after(50, chance, False) <= 8
        assert first_pause(1, chance) == 0
        assert 0 <= first_pause(10**9, chance) <= 10
    assert [pause_after(tries, 1.0, True) for tries in range(1, 99)] == sorted(
        pause_after(tries, 1.0, False) for tries in range(1, 99)
    )


def test_how_many_start_is_what_launchers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert num_starting() == 1
    for text, count in (("64", 64), ("x", 1), ("0", 1), ("-3", 1), ("9" * 9, 2**20), ("9" * 99, 1)):
        monkeypatch.setenv("SLURM_NTASKS", text)
        assert num_starting() == count


def place() -> tuple[str, int]:
    """Where the store of this job is."""
    found = job._place()
    assert found is not None
    return found


class Ranks:
    """What one rank sees: what is read is counted in a file that all share."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder = rank, folder

    def read(self, name: str, text: bytes | None = b"text") -> bytes | None:
        with open(self.folder / f"{name}.count", "ab") as file:
            file.write(b"1")
        return text

    def count(self, name: str) -> int:
        return (self.folder / f"{name}.count").stat().st_size

    def meet(self, name: str) -> None:
        """Waits until all are there."""
        (self.folder / f"{name}.{self.rank}.met").touch()
        end = time.monotonic() + 20
        while len(list(self.folder.glob(f"{name}.*.met"))) < RANKS:
            assert time.monotonic() < end
            time.sleep(0.01)


def together(ranks: Ranks) -> None:
    """All read at once: one does."""
    ranks.meet("begin")
    large = os.urandom(3 * 2**20) if ranks.rank == 9 else bytes(range(256)) * 20_000
    assert read_by_one("large", LIMIT, lambda: ranks.read("large", large)) == large
    ranks.meet("large")
    assert ranks.count("large") == 1
    ranks.meet("counted")
    # The second time they read anew, again one for all.
    assert read_by_one("large", LIMIT, lambda: ranks.read("large", b"newer")) == b"newer"
    ranks.meet("again")
    assert ranks.count("large") == 2


def alone(ranks: Ranks) -> None:
    """One of them reads, and others read other things in another order: nobody waits for anybody."""
    if ranks.rank == 1:
        assert read_by_one("alone", LIMIT, lambda: ranks.read("alone")) == b"text"
    names = ["p", "q"] if ranks.rank else ["q", "p"]
    for name in names:
        assert read_by_one(name, LIMIT, lambda name=name: ranks.read(name, name.encode())) == name.encode()  # type: ignore[misc]
    ranks.meet("alone")


def failing(ranks: Ranks) -> None:
    """Who reads fails, or finds nothing: the others read by themselves."""

    def read() -> bytes | None:
        if ranks.rank == 0:
            raise RemoteError("only here")
        return ranks.read("failing")

    if ranks.rank == 0:
        with pytest.raises(RemoteError, match="only here"):
            read_by_one("failing", LIMIT, read)
    ranks.meet("failed")
    if ranks.rank:
        assert read_by_one("failing", LIMIT, read) == b"text"
    ranks.meet("nothing")
    assert read_by_one("nothing", LIMIT, lambda: ranks.read("nothing", None)) is None


def connected() -> Any:
    """A connection to the store of the job."""
    host, port = place()
    return dist.TCPStore(host, port, None, False, timedelta(seconds=PATIENCE), False)


def dying(ranks: Ranks) -> None:
    """Who reads never comes back: after a while another one reads."""
    if ranks.rank == 0:
        store = connected()
        store.compare_set(f"{job._key('dying')}/head", "", "1:somebody")
    ranks.meet("died")
    assert read_by_one("dying", LIMIT, lambda: ranks.read("dying")) == b"text"


def overwritten(ranks: Ranks) -> None:
    """What a rank of the job has written is what all read from then on."""
    assert read_by_one("w", LIMIT, lambda: ranks.read("w", b"old")) == b"old"
    ranks.meet("old")
    if ranks.rank == 2:
        note_written("w")
    ranks.meet("written")
    assert read_by_one("w", LIMIT, lambda: ranks.read("w", b"new")) == b"new"


def forged(ranks: Ranks) -> None:
    """What is in the store and is none of ours, or of a clock that is wrong, is not taken."""
    if ranks.rank == 0:
        store = connected()
        for name, head, about in (
            ("f1", b"\xff\xfe", "{}"),
            ("f2", b"7:x", "[[[["),
            ("f3", b"7:x", json.dumps({"written": 0, "began": time.time(), "pieces": 1})),
            ("f4", b"7:x", json.dumps({"written": 0, "began": "never", "pieces": 1})),
            ("f5", b"7:x", json.dumps({"written": 0, "began": time.time(), "pieces": 10**11})),
            ("f6", b"7:x", "[]"),
            ("early", b"7:x", json.dumps({"written": 0, "began": time.time() - 3600, "pieces": 1})),
            ("late", b"7:x", json.dumps({"written": 0, "began": time.time() + 3600, "pieces": 1})),
        ):
            store.set(f"{job._key(name)}/head", head)  # type: ignore[arg-type]
            store.set(f"{job._key(name)}/7/about", about)
            piece = "not compressed" if name[0] == "f" else zlib.compress(b"of another time")
            store.set(f"{job._key(name)}/7/0", piece)  # type: ignore[arg-type]
    ranks.meet("forged")
    for name in ("f1", "f2", "f3", "f4", "f5", "f6", "early", "late"):
        assert read_by_one(name, LIMIT, lambda name=name: ranks.read(name, name.encode())) == name.encode()  # type: ignore[misc]


def _on_rank(rank: int, port: int, folder: str) -> None:
    said = "ok"
    try:
        store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=PATIENCE), False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        job._WAIT = 1.0
        ranks = Ranks(rank, Path(folder))
        for story in (together, alone, failing, dying, overwritten, forged):
            ranks.meet(story.__name__ + " begins")
            story(ranks)
    except BaseException:
        said = traceback.format_exc()
    (Path(folder) / f"{rank}.said").write_text(said)


@pytest.mark.rest
def test_stories_of_a_job() -> None:
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=PATIENCE), False)
        processes: list[Any] = [
            context.Process(target=_on_rank, args=(rank, store.port, folder)) for rank in range(RANKS)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            process.kill()
        assert [(Path(folder) / f"{rank}.said").read_text() for rank in range(RANKS)] == ["ok"] * RANKS


def _serve(ports: Any) -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=PATIENCE), False)
    ports.put(store.port)
    time.sleep(5 * PATIENCE)


def meet_at(where: Any, patch: pytest.MonkeyPatch) -> None:
    """The store of the job is said to be there."""
    patch.setattr(job, "_place", lambda: where)


def await_answers(seconds: float, patch: pytest.MonkeyPatch) -> None:
    """The store of the job has so long to answer."""
    patch.setattr(job, "_ANSWER", seconds)


def test_a_store_that_falls_silent_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is stopped, or its machine hangs: torch's own timeouts do not see that."""
    context = multiprocessing.get_context("forkserver")
    ports: Any = context.Queue()
    server: Any = context.Process(target=_serve, args=(ports,))
    server.start()
    try:
        where = ("127.0.0.1", ports.get(timeout=60))
        meet_at(where, monkeypatch)
        assert read_by_one("a", LIMIT, lambda: b"first") == b"first"
        await_answers(0.5, monkeypatch)
        monkeypatch.setattr(job, "_WAIT", 0.5)

        def stops() -> bytes:
            os.kill(server.pid, signal.SIGSTOP)
            for _ in range(600):  # on a busy machine its threads answer for a while
                if "T" in subprocess.check_output(["ps", "-o", "stat=", "-p", str(server.pid)], text=True):
                    return b"second"
                time.sleep(0.1)
            raise TimeoutError("the server does not stop")

        assert read_by_one("a", LIMIT, stops) == b"second"  # it cannot be sent to the others
        assert read_by_one("b", LIMIT, lambda: b"third") == b"third"  # nothing answers the connection
        note_written("b")
        await_answers(10 * PATIENCE, monkeypatch)  # it is not asked again
        assert read_by_one("b", LIMIT, lambda: b"fourth") == b"fourth"
    finally:
        server.kill()
        server.join()


def test_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        where = bound.getsockname()
    meet_at(where, monkeypatch)
    assert read_by_one("a", LIMIT, lambda: b"x") == b"x"
    note_written("a")


def test_without_a_job_it_is_read() -> None:
    assert read_by_one("a", LIMIT, lambda: b"x") == b"x"
    note_written("a")
