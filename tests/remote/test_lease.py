"""One holder at a time, also if holders die, are paused, or disagree about the time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
from stored import Watched
from waiting import PATIENCE

from torchyoga.errors import BusyError
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


def test_a_forked_child_leaves_a_lease_to_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = memory()
    with Lease(remote, "l", "work", 5, 0) as lease:
        with monkeypatch.context() as in_child:
            in_child.setattr("os.getpid", lambda: 0)
            lease.__exit__(None, None, None)
        with pytest.raises(BusyError, match="is still held"):
            Lease(remote, "l", "work", 5, 0).__enter__()
