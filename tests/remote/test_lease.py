"""One holder at a time, also if holders die, are paused, or disagree about the time."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, running
from servers import S3
from stored import Watched
from waiting import PATIENCE, eventually

from torchyoga.errors import BusyError, LostError
from torchyoga.stores.lease import Lease
from torchyoga.stores.objects import Objects


def memory() -> Objects:
    return Objects(f"memory://{uuid.uuid4().hex}")


def claims(remote: Objects) -> list[str]:
    return sorted(name for name in remote.find("l") if name.endswith(".json"))


def test_holders_come_one_after_the_other() -> None:
    remote = memory()
    for number in (1, 2, 3):
        with Lease(remote, "l", "work", 5, 0) as lease:
            lease.check()
            assert claims(remote) == [f"{number:08d}.json"]
            with pytest.raises(BusyError, match=r"work is still held by process \d+ on .*, since .* 0 s"):
                Lease(remote, "l", "work", 5, 0).__enter__()
    assert claims(remote) == ["00000003.json"]
    assert list(remote.find("l")) == ["00000003.json"]
    assert list(remote.find(".leases")) == []  # an object from which it reads the time


def test_threads_take_turns() -> None:
    remote, inside, most, turns = memory(), 0, 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most, turns
        for _ in range(5):
            with Lease(remote, "l", "work", 20, 60):
                with lock:
                    inside, turns = inside + 1, turns + 1
                    most = max(most, inside)
                time.sleep(0.002)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (most, turns) == (1, 30)


def dead(remote: Objects, number: int, **content: object) -> None:
    text = json.dumps(
        {"holder": "process 7 on mars", "given_up": False, "deleter": number, "beat": "x", **content}
    )
    remote.write(f"l/{number:08d}.json", text.encode())


def test_a_silent_holder_is_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    remote = memory()
    dead(remote, 4)
    started = time.monotonic()
    with Lease(remote, "l", "work", 1, PATIENCE):
        assert claims(remote) == ["00000005.json"]
    assert time.monotonic() - started > 0.9
    assert "taking over from process 7 on mars, which is silent" in caplog.text


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"holder": 1}', b"\xff" * 9000, b"[" * 4000],
    ids=["empty", "cut", "list", "few", "long", "deep"],
)
def test_a_damaged_claim_counts_as_silent_after_a_while(text: bytes) -> None:
    remote = memory()
    remote.write("l/00000001.json", text)
    with pytest.raises(BusyError, match="damaged"):
        Lease(remote, "l", "work", 30, 0.1).__enter__()
    with Lease(remote, "l", "work", 1, 30):
        assert claims(remote) == ["00000002.json"]


def test_names_that_are_not_claims_do_not_count() -> None:
    remote = memory()
    for name in ("9" * 5000, "000000007", "7", "\u0660" * 8, "0000000x", "00000003.json"):
        remote.write(f"l/{name}.json", b"{}")
    with Lease(remote, "l", "work", 1, 30):
        assert "00000001.json" in claims(remote)


def other_view(remote: Objects, is_silent: bool = False) -> Watched:
    """The same store, as another machine sees it; what holds a lease by it may stand still."""
    return Watched(remote.url, None, is_silent)


class Enough(Exception):
    """A test has seen enough."""


def test_a_holder_that_shows_life_is_not_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    """For longer than the lease; on a machine that stalls it would count as dead, so each look waits for a
    new beat."""
    remote, beats = memory(), [""]

    def beat() -> str:
        return str(json.loads(remote.read("l/00000001.json", 999))["beat"])

    def look_at_a_new_beat(find: Callable[[str], Any], folder: str) -> Any:
        eventually(lambda: beat() != beats[-1], 60)
        beats.append(beat())
        if len(beats) > 15:  # fourteen times a quarter of the lease
            raise Enough
        return find(folder)

    with Lease(remote, "l", "work", 2, 0) as lease:
        view = other_view(remote)
        view.instead["find"] = look_at_a_new_beat
        with pytest.raises(Enough):
            Lease(view, "l", "work", 2, PATIENCE).__enter__()
        lease.check()
    assert "taking over" not in caplog.text


def test_a_holder_that_slept_notices_that_it_was_taken_over() -> None:
    remote = memory()
    first = Lease(other_view(remote, is_silent=True), "l", "work", 1, 0)
    with first, Lease(remote, "l", "work", 1, 30), pytest.raises(LostError, match="taken over by process"):
        first.check()
    assert claims(remote) == ["00000002.json"]  # the first did not touch what is another's
    assert json.loads(remote.read("l/00000002.json", 999))["given_up"] is True


def test_only_claims_after_ones_own_can_delete_what_one_has_published() -> None:
    """A process that was killed long ago while it deleted has not listed anything that came since."""
    remote = other_view(memory(), is_silent=True)
    killed = Lease(remote, "l", "removing", 1, PATIENCE, deletes=True)
    killed.__enter__()
    with Lease(remote, "l", "building", 1, PATIENCE) as first:
        assert (first.number, first.deleter, first.may_be_deleted) == (2, 1, True)
        with Lease(remote, "l", "building", 1, PATIENCE) as second:
            assert (second.number, second.deleter) == (3, 1)
            assert not first.is_another_deleting()
            with Lease(remote, "l", "removing", 1, PATIENCE, deletes=True) as third:
                assert third.deleter == 1
                assert first.is_another_deleting()
                assert second.is_another_deleting()
            assert not first.is_another_deleting()  # the deleting process has ended


def test_an_outdated_look_at_a_claim_does_not_make_two_holders() -> None:
    """A waiter saw claim 1 given up; before it can take claim 2, others have had that one, and deleted it."""
    remote = memory()
    for _ in range(2):
        with Lease(remote, "l", "work", 60, 0):
            pass
    with Lease(remote, "l", "work", 60, 0) as holder:
        view, looks = other_view(remote), iter([{"00000001.json": None}])
        view.instead["find"] = lambda find, folder: next(looks, None) or find(folder)
        with pytest.raises(BusyError, match="still held"):
            Lease(view, "l", "work", 60, 0.3).__enter__()
        holder.check()
        assert claims(remote) == ["00000003.json"]


def test_a_waiter_that_slept_does_not_take_the_holder_for_dead() -> None:
    """It has looked at a claim; before it reads the time, the holder has shown life many times."""
    remote = memory()
    with Lease(remote, "l", "work", 60, 0) as holder:
        view = other_view(remote)

        def asked_late(now: Callable[[], float]) -> float:
            alive = json.loads(remote.read("l/00000001.json", 999))
            remote.write("l/00000001.json", json.dumps({**alive, "beat": "another"}).encode())
            return now() + 100

        view.instead["now"] = asked_late
        with pytest.raises(BusyError, match="still held"):
            Lease(view, "l", "work", 60, 0).__enter__()
        holder.check()


HOLDER = """
import sys, time
from torchyoga.stores.lease import Lease
from torchyoga.stores.objects import Objects
if sys.argv[3] != "0":
    real = time.time
    time.time = lambda: real() + float(sys.argv[3])  # a clock that is wrong
options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": sys.argv[2]}}
with Lease(Objects(sys.argv[1], options), "l", "work", 8, PATIENCE):
    print("held", flush=True)
    time.sleep(float(sys.argv[4]))
print("ended", flush=True)
""".replace("PATIENCE", str(PATIENCE))


def test_machines_whose_clocks_are_wrong(s3: S3, bucket: str, tmp_path: Path) -> None:
    """The holder is alive for longer than its lease, then killed; whoever waits takes over only then.

    With a clock that is a day ahead, and one that is a day behind: at once, for most of it is waiting.
    """

    def holder(name: str, skew: str, seconds: str) -> Machine:
        url = f"s3://{bucket}/{name[:-2]}"
        return stack.enter_context(running(HOLDER, tmp_path / name, url, s3.endpoint, skew, seconds))

    with contextlib.ExitStack() as stack:
        first = [holder("ahead-a", "86400", "600"), holder("behind-a", "-86400", "600")]
        for one in first:
            one.says("held")
        second = [holder("ahead-b", "0", "0"), holder("behind-b", "0", "0")]
        for one, two in zip(first, second, strict=True):
            # It says so after 5 s of waiting, and after 10.
            eventually(
                lambda two=two: (
                    not two.is_running
                    or len(re.findall(r"waiting for process \d+ on .*, since ", two.stderr)) >= 2
                )
            )
            assert two.is_running
            assert "held" not in two.stdout
            one.kill()
        for two in second:
            assert two.check().split() == ["held", "ended"]
            assert "taking over from process" in two.stderr
