"""A claim on work, as objects in a store: one builder at a time, and none that died blocks the others.

<folder>/00000007.json          the claim number 7: who, since when; written anew as a sign of life

Whoever wants the work creates the claim after the last one, once that is given up or has shown no sign of
life for some time; creation is exclusive, so one gets it. Nobody ever writes to another's claim. Time is told
by the store's own clock, or where it has none by how long a claim is seen unchanged.

A holder that was taken over may go on at any time. One that deletes may then delete what it has seen, so
claims hand on that there was one: see `Lease.may_be_deleted`.

Note 46. A claim on a lease is never written by another builder.
Its number is created after the last one's, so claims form a chain. A holder that slept finds a higher number,
and its sign of life harms nobody.

Note 47. Time is the store's.
To find out whether a claim is old, a builder writes an object and compares what the store says of both. The
clocks of machines may be wrong by days.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
import threading
import time
from typing import NamedTuple

from ..errors import BusyError, LostError, RemoteError
from .objects import Remote

__all__ = ["Lease"]

_log = logging.getLogger("torchyoga")
_LARGEST = 4096  # bytes of a claim
_CLAIM = re.compile(r"[0-9]{8}\.json")
_FIRST_POLL, _LONGEST_POLL = 0.1, 2.0  # seconds
_NOTICE_SECONDS = 5.0  # how long to wait in silence


class _Claim(NamedTuple):
    number: int
    holder: str  # for people
    is_given_up: bool
    may_delete: bool  # it, or one before it that was taken over, may be about to delete what it has seen
    beat: str  # changes with every sign of life
    written: float | None  # by the store's clock


class Lease:
    """The right to do some work, held in a `with` statement; waits while another holds it.

    Args:
        remote: the store.
        folder: where its claims lie.
        what: the work, for messages.
        seconds: without a sign of life for so long, a holder counts as dead.
        timeout: seconds to wait for others.
        deletes: the work deletes what it finds.

    Attributes:
        may_be_deleted: what lay there when the work began may be deleted at any time, by one who was taken
            over.

    Raises:
        BusyError: another still held it after `timeout`; says who, and since when.
        RemoteError: the store cannot be reached or written.
    """

    may_be_deleted = False

    def __init__(
        self,
        remote: Remote,
        folder: str,
        what: str,
        seconds: float,
        timeout: float,
        *,
        deletes: bool = False,
    ) -> None:
        self._remote = remote
        self._folder = folder
        self._what = what
        self._seconds = seconds
        self._timeout = timeout
        self._deletes = deletes
        self._token = secrets.token_hex(8)
        self._holder = f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}"
        self._number = 0
        self._stop = threading.Event()
        self._life: threading.Thread | None = None
        self._is_lost = False
        self._asked = -seconds  # when the store was last asked what time it is

    def __enter__(self) -> Lease:
        self._acquire()
        self._life = threading.Thread(target=self._live, name="torchyoga lease", daemon=True)
        self._life.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        if self._life is not None:
            self._life.join(self._seconds)
        if isinstance(error, RemoteError):
            # A request to delete that was given up may arrive yet.
            self.may_be_deleted |= self._deletes
        if not self._is_lost:
            try:
                self._remote.write(self._name(self._number), self._text(is_given_up=True))
            except RemoteError as failure:
                _log.warning("%s: others will wait %.0f s: %s", self._what, self._seconds, failure)

    def check(self) -> None:
        """LostError if another has taken over, because this process gave no sign of life for too long."""
        claim = self._later()
        if claim is not None:
            self._is_lost = True
            raise LostError(
                f"{self._what} was taken over by {claim.holder}, because this process gave no "
                f"sign of life for {self._seconds:.0f} s; let that one finish"
            )

    def is_another_deleting(self) -> bool:
        """True if others have taken over, of whom one may have begun to delete and not ended."""
        claim = self._later()
        return claim is not None and claim.may_delete

    def again(self, deletes: bool) -> Lease:
        """The same work, once others that have taken over are done."""
        self._is_lost = True
        return Lease(self._remote, self._folder, self._what, self._seconds, self._timeout, deletes=deletes)

    def _later(self) -> _Claim | None:
        """The last claim, if it is another's."""
        last = max(self._claims(), default=0)
        return self._read(last) if last > self._number else None

    # -- getting it

    def _acquire(self) -> None:
        started, notice, poll = time.monotonic(), _NOTICE_SECONDS, _FIRST_POLL
        seen: tuple[str, float] = ("", 0.0)  # the last sign of life, and when it was first seen here
        while True:
            claims = self._claims()
            last = max(claims, default=0)
            claim = self._read(last) if last else None
            if (
                claim is None
                or claim.is_given_up
                # Once more, for between its look and the clock's it may be this process that slept.
                or (self._is_dead(claim, seen) and self._read(last) == claim)
            ):
                self.may_be_deleted = claim is not None and claim.may_delete
                if claim is not None and not claim.is_given_up:
                    _log.warning("%s: taking over from %s, which is silent", self._what, claim.holder)
                if self._claim(last + 1):
                    self._remote.delete(self._name(number) for number in claims)
                    return
                claim = self._read(last + 1)  # of whoever was faster
            if claim.beat != seen[0]:
                seen = claim.beat, time.monotonic()
            waited = time.monotonic() - started
            if waited >= self._timeout:
                raise BusyError(
                    f"{self._what} is still held by {claim.holder} after {waited:.0f} s of waiting; wait "
                    "longer (timeout=), or stop that process"
                )
            if waited >= notice:
                _log.warning("waiting for %s: %s (%.0f s so far)", claim.holder, self._what, waited)
                notice = min(2 * notice, notice + 60.0)
            time.sleep(min(poll, max(0.0, self._timeout - waited)))
            poll = min(2 * poll, _LONGEST_POLL, self._seconds / 4)

    def _claim(self, number: int) -> bool:
        name, text = self._name(number), self._text()
        try:
            self._remote.create(name, text)
        except FileExistsError:
            return False
        self._remote.check_conditional(name, text)
        self._number = number
        # Somebody whose look was old may have created a number that had been tidied away.
        if max(self._claims(), default=0) > number:
            self._remote.delete([self._name(number)])
            return False
        return True

    def _is_dead(self, claim: _Claim, seen: tuple[str, float]) -> bool:
        if claim.beat == seen[0] and time.monotonic() - seen[1] > self._seconds:
            return True
        if claim.written is None or time.monotonic() - self._asked < self._seconds / 2:
            return False
        self._asked = time.monotonic()
        now = self._remote.now()
        return now is not None and now - claim.written > self._seconds + 1  # stores count whole seconds

    # -- showing life

    def _live(self) -> None:
        while not self._stop.wait(self._seconds / 4):
            try:
                self._remote.write(self._name(self._number), self._text())
            except Exception as error:
                _log.warning("%s: no sign of life could be given: %s", self._what, error)

    # -- claims

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number:08d}.json"

    def _text(self, is_given_up: bool = False) -> bytes:
        beat = f"{self._token}-{time.monotonic_ns()}"
        may_delete = self.may_be_deleted or (self._deletes and not is_given_up)
        content = {"holder": self._holder, "given_up": is_given_up, "deletes": may_delete, "beat": beat}
        return json.dumps(content).encode()

    def _claims(self) -> list[int]:
        return [int(name[:8]) for name in self._remote.find(self._folder) if _CLAIM.fullmatch(name)]

    def _read(self, number: int) -> _Claim:
        name = self._name(number)
        try:
            found = self._remote.find_one(name)
            content = json.loads(self._remote.read(name, _LARGEST))
            holder, beat = str(content["holder"])[:200], str(content["beat"])[:100]
            is_given_up = content["given_up"] is True
            may_delete = content.get("deletes", not is_given_up) is not False  # older ones do not say
            written = found.written if found else None
            return _Claim(number, holder, is_given_up, may_delete, beat, written)
        except FileNotFoundError:
            return _Claim(number, "nobody", True, False, "", None)  # tidied away: a later one is there
        except (ValueError, KeyError, TypeError, RecursionError):
            holder = f"somebody ({self._remote.where(name)} is damaged)"
            return _Claim(number, holder, False, True, "damaged", None)
