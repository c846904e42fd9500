"""A claim on work, as objects in a store: one builder at a time, and one that died does not block the others.

<folder>/00000007.json          the claim number 7: its holder, since when; rewritten as a sign of life

A builder that wants the work creates the next claim, once the last one is given up or has shown no sign of
life for some time; creation is exclusive, so only one succeeds. No builder ever writes to another's claim.
Times are those of the store's own clock; if it has none, a claim is as old as it has been seen unchanged.

Note 19. A holder that was taken over may continue at any time.
If its work deletes files, it may then delete those that it has listed, so later claims record that there was
such a holder (`Lease.may_be_deleted`), and new files get names that it cannot have listed. A builder looks at
the last claim once more after it has published, since the holder may have listed before the manifest was
there. If there is such a claim, it sends the files again, under a new claim. It does not take the manifest
back, because the version that it has replaced would be lost.

Note 19. A claim on a lease is never written by another builder.
A new claim takes the next number, so claims form a chain. The last one always stays, so no number comes
twice. A holder that slept finds a higher number, and its own sign of life does no harm.

Only the store's clock counts.
To find out whether a claim is old, a builder writes an object and compares the times that the store gives for
both. The clocks of machines may be wrong by days.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import threading
import time
from typing import NamedTuple

from ..errors import BusyError, LostError, RemoteError
from ..process.messages import log
from ..process.threads import begin_thread
from .objects import Objects

_LARGEST = 4096  # bytes of a claim
_CLAIM = re.compile(r"[0-9]{8}\.json")
_FIRST_POLL, _LONGEST_POLL = 0.1, 2.0  # seconds
_NOTICE_SECONDS = 5.0  # how long to wait without a message


class _Claim(NamedTuple):
    number: int
    holder: str  # a description of the process, for messages
    is_given_up: bool
    deleter: int  # the last claim up to this one whose holder may still delete what it has listed; or 0
    beat: str  # changes with every sign of life
    written: float | None  # by the store's clock


class Lease:
    """The right to do some work, held within a `with` statement; waits while another process holds it.

    Args:
        remote: the store.
        folder: the folder of the claims.
        what: the work, for messages.
        seconds: a holder that shows no sign of life for this long counts as dead.
        timeout: seconds to wait for other holders.
        deletes: the work deletes files that it has listed.

    Attributes:
        number: the number of its claim.
        deleter: the last claim before it whose holder was taken over, and may still delete what it has
            listed; 0 if there is none.

    Raises:
        BusyError: another process still held it after `timeout`; says which, and since when.
        RemoteError: the store cannot be reached or written.
    """

    number = deleter = 0

    def __init__(
        self,
        remote: Objects,
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
        self._token, self._process = secrets.token_hex(8), os.getpid()
        self._holder = f"process {os.getpid()} on {socket.gethostname()}, since {time.ctime()}"
        self._stop = threading.Event()
        self._life: threading.Thread | None = None
        self._is_lost = False
        self._asked = -seconds  # when the store was last asked for its time

    def __enter__(self) -> Lease:
        self._acquire()
        self._life = begin_thread("torchyoga lease", self._live, stop=self._stop.set)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if os.getpid() != self._process:
            return  # a forked child, whose parent holds it
        self._stop.set()
        if self._life is not None:
            self._life.join(self._seconds)
        if isinstance(error, RemoteError):
            # A request to delete that was given up may still arrive.
            self.deleter = self.number if self._deletes else self.deleter
        if not self._is_lost:
            try:
                self._remote.write(self._name(self.number), self._text(self.number, is_given_up=True))
            except RemoteError as failure:
                log.warning("%s: other builders will wait %.0f s: %s", self._what, self._seconds, failure)

    def check(self) -> None:
        """Raises LostError if another holder has taken over, because this one gave no sign of life."""
        claim = self._later()
        if claim is not None:
            self._is_lost = True
            raise LostError(
                f"{self._what} was taken over by {claim.holder}, because this process gave no "
                f"sign of life for {self._seconds:.0f} s; let that process finish"
            )

    @property
    def may_be_deleted(self) -> bool:
        """True if files that existed when the work began may be deleted at any time."""
        return self.deleter > 0

    def is_another_deleting(self) -> bool:
        """True if other holders have taken over, and one of them may have begun to delete and not ended."""
        claim = self._later()
        return claim is not None and claim.deleter > self.number

    def again(self) -> Lease:
        """A lease for the same work, to be taken once others that have taken over are done."""
        self._is_lost = True
        return Lease(self._remote, self._folder, self._what, self._seconds, self._timeout)

    def _later(self) -> _Claim | None:
        """The last claim, if another holder made it."""
        last = max(self._claims(), default=0)
        return self._read(last) if last > self.number else None

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
                # Look again: between reading the claim and the clock, this process may itself have slept.
                or (self._is_dead(claim, seen) and self._read(last) == claim)
            ):
                self.deleter = 0 if claim is None else claim.deleter
                if claim is not None and not claim.is_given_up:
                    log.warning("%s: taking over from %s, which is silent", self._what, claim.holder)
                if self._claim(last + 1):
                    self._remote.delete(self._name(number) for number in claims)
                    return
                claim = self._read(last + 1)  # of the builder that was faster
            if claim.beat != seen[0]:
                seen = claim.beat, time.monotonic()
            waited = time.monotonic() - started
            if waited >= self._timeout:
                raise BusyError(
                    f"{self._what} is still held by {claim.holder} after {waited:.0f} s of waiting; wait "
                    "longer (timeout=), or stop that process"
                )
            if waited >= notice:
                log.warning("waiting for %s: %s (%.0f s so far)", claim.holder, self._what, waited)
                notice = min(2 * notice, notice + 60.0)
            time.sleep(min(poll, max(0.0, self._timeout - waited)))
            poll = min(2 * poll, _LONGEST_POLL, self._seconds / 4)

    def _claim(self, number: int) -> bool:
        name, text = self._name(number), self._text(number)
        if not self._remote.create(name, text):
            return False
        self._remote.check_conditional(name, text)
        self.number = number
        # A builder that listed the claims earlier may have created a number that has been deleted since.
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
                self._remote.write(self._name(self.number), self._text(self.number))
            except Exception as error:
                log.warning("%s: no sign of life could be written: %s", self._what, error)

    # -- claims

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number:08d}.json"

    def _text(self, number: int, is_given_up: bool = False) -> bytes:
        beat = f"{self._token}-{time.monotonic_ns()}"
        deleter = number if self._deletes and not is_given_up else self.deleter
        content = {"holder": self._holder, "given_up": is_given_up, "deleter": deleter, "beat": beat}
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
            deleter = content["deleter"]
            if type(deleter) is not int or not 0 <= deleter <= number:
                raise ValueError
            written = found.written if found else None
            return _Claim(number, holder, is_given_up, deleter, beat, written)
        except FileNotFoundError:
            return _Claim(number, "nobody", True, 0, "", None)  # deleted: there is a later one
        except (ValueError, KeyError, TypeError, RecursionError):
            holder = f"an unknown process ({self._remote.where(name)} is damaged)"
            return _Claim(number, holder, False, number, "damaged", None)
