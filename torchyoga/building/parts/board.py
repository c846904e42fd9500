"""The notes of a plan in its store: what is done, who is at work, what failed.

<store>/.builds/<id>/<version>/plan.json                  created once: whoever comes later takes it
<store>/.builds/<id>/<version>/<plan>/done/00007.json     part 7 is done; the first such note counts
<store>/.builds/<id>/<version>/<plan>/claims/00007.json   somebody is at it; written again as a sign of life
<store>/.builds/<id>/<version>/<plan>/failed/00007-<attempt>.json

Note 106. Claims save work, and nothing depends on them.
Two that build one part lose time and nothing else: each has files of its own, and the first note wins. So a
claim needs no lock, and one whose holder is silent is taken over without asking.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...errors import BusyError, CorruptError, YogaError
from ...stores.contract import Versions
from ...stores.remote_notes import RemoteNotes
from ...versions.lineage import sendable
from ...versions.names import encoded
from ...versions.seal import sealed, unsealed
from .note import Failure, PartNote
from .plan import Plan

__all__ = ["Board", "Look", "here"]

_log = logging.getLogger("torchyoga")
_PLAN = "plan.json"
_LARGEST = 256 * 2**20  # bytes of a plan or a note
_NAME = re.compile(r"([0-9a-f]{16})/(done|claims|failed)/([0-9]{5})(-[0-9a-f]{16})?\.json")
_READERS = 16  # of notes, at once
_TRIES = 5


def here() -> str:
    """This process, for messages."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@dataclass(frozen=True)
class Look:
    """What a listing shows.

    Attributes:
        done: parts that are done.
        alive: parts at which somebody is, who has shown a sign of life.
        silent: parts whose holder has not.
        failed: names of the notes of failures.
    """

    done: set[int] = field(default_factory=set)
    alive: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


class Board:
    """The notes of one build.

    Args:
        store: where the version is to be published.
        id: which dataset.
        version: which version of it.
        lease_seconds: who gives no sign of life for this long counts as dead.
    """

    def __init__(self, store: Versions, id: str, version: str, lease_seconds: float) -> None:
        self._notes = store.notes(f".builds/{encoded('id', id)}/{encoded('version', version)}")
        self._is_remote = isinstance(self._notes, RemoteNotes)
        self._what = f"{id!r} {version!r} in {store.name}"
        self._seconds = lease_seconds
        self._seen: dict[int, tuple[float | None, float]] = {}  # by part, when its claim was written and seen
        self._ahead: float | None = None  # of the store's clock, before this machine's steady one
        self._is_known = False

    @property
    def place(self) -> str:
        """Where the notes are, for messages."""
        return self._notes.where("")

    # -- the plan

    def plan(self) -> Plan | None:
        """The plan that is there; None if there is none, CorruptError if it is damaged."""
        text = self._notes.read(_PLAN, _LARGEST)
        if text is None:
            return None
        try:
            return Plan.from_json(unsealed(text))
        except CorruptError as error:
            raise CorruptError(f"{self._notes.where(_PLAN)}: {error}; remove it to begin anew") from error

    def agreed(self, plan: Plan) -> Plan:
        """This plan, or the one that another builder has made meanwhile."""
        if self._is_remote:
            plan = replace(plan, lineage=sendable(plan.lineage))
        for _ in range(_TRIES):
            if self._notes.create(_PLAN, sealed(plan.to_json())):
                return plan
            found = self.plan()
            if found is not None:
                return found
        raise BusyError(f"the plan of {self._what} is removed again and again; is another process cleaning?")

    def is_current(self, plan: Plan) -> bool:
        """True unless the plan has been removed, as when its version is published, or replaced."""
        found = self.plan()
        return found is not None and found.token == plan.token

    def clear(self) -> None:
        """Removes the plan, and all notes."""
        self._notes.delete([_PLAN])  # first, so that nobody counts on the others
        self._notes.delete(self._notes.names())

    # -- the parts

    def look(self, plan: Plan) -> Look:
        """What is done, and who is at work; costs one listing."""
        found = Look()
        claims: dict[int, float | None] = {}
        for name, written in self._notes.names().items():
            match = _NAME.fullmatch(name)
            if match is None or match[1] != plan.token or int(match[3]) >= plan.num_parts:
                continue
            if match[2] == "done":
                found.done.add(int(match[3]))
            elif match[2] == "claims":
                claims[int(match[3])] = written
            else:
                found.failed.add(name)
        now = self._now() if claims else None
        for part, written in claims.items():
            if part not in found.done:
                (found.alive if self._lives(part, written, now) else found.silent).add(part)
        return found

    def _now(self) -> float | None:
        """The time of the store's clock, which is asked once; None if it has none."""
        if not self._is_known:
            asked = self._notes.now()
            self._ahead = None if asked is None else asked - time.monotonic()
            self._is_known = True
        return None if self._ahead is None else self._ahead + time.monotonic()

    def _lives(self, part: int, written: float | None, now: float | None) -> bool:
        """True for a claim that was written, or has changed, within the seconds."""
        steady = time.monotonic()
        if part not in self._seen or self._seen[part][0] != written:
            self._seen[part] = written, steady
        if written is not None and now is not None:
            return now - written <= self._seconds + 1  # stores count whole seconds
        return steady - self._seen[part][1] <= self._seconds

    def begin(self, plan: Plan, part: int, attempt: str, is_taken: bool) -> bool:
        """Claims a part, in place of another claim if it `is_taken`; False if another builder was faster."""
        name, text = self._claim(plan, part), self._text(attempt)
        if is_taken:
            self._notes.write(name, text)
            return True
        return self._notes.create(name, text)

    @contextmanager
    def working(self, plan: Plan, part: int, attempt: str) -> Iterator[None]:
        """Shows life while a part is built; gives the claim up at the end."""
        stop = threading.Event()
        name = self._claim(plan, part)

        def live() -> None:
            while not stop.wait(self._seconds / 4):
                try:
                    self._notes.write(name, self._text(attempt))
                except Exception as error:
                    _log.warning("%s: no sign of life could be written: %s", self._what, error)

        thread = threading.Thread(target=live, name="torchyoga part", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(self._seconds)

    def give_up(self, plan: Plan, part: int) -> None:
        """Removes the claim on a part, so that others need not wait."""
        try:
            self._notes.delete([self._claim(plan, part)])
        except (OSError, YogaError) as error:
            _log.warning("%s: the claim on part %d stays: %s", self._what, part, error)

    def note(self, plan: Plan, part: int, note: PartNote) -> bool:
        """Notes that a part is done; False if another builder has done so before."""
        return self._notes.create(self._done(plan, part), sealed(note.to_json()))

    def read(self, plan: Plan, part: int) -> PartNote | None:
        """The note of a part; None if it is not done, or the note is damaged, which then is removed."""
        text = self._notes.read(self._done(plan, part), _LARGEST)
        if text is None:
            return None
        try:
            found = PartNote.from_json(unsealed(text))
            if found.plan != plan.token:
                raise ValueError("it is of another plan")
            if plan.of_rows and found.rows != plan.bounds[part + 1] - plan.bounds[part]:
                raise ValueError(f"it has {found.rows} rows, which is not what the plan says")
            return found
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            _log.warning(
                "%s: the note of part %d is damaged (%s); it is built again", self._what, part, error
            )
            self.forget(plan, [part])
            return None

    def read_all(self, plan: Plan, parts: Iterable[int]) -> list[PartNote | None]:
        """The notes of parts, several read at once."""
        with ThreadPoolExecutor(_READERS, "torchyoga notes") as pool:
            return list(pool.map(lambda part: self.read(plan, part), parts))

    def forget(self, plan: Plan, parts: Iterable[int]) -> None:
        """Removes the notes of parts, which are then built again."""
        for part in parts:
            self._notes.delete([self._done(plan, part), self._claim(plan, part)])

    # -- failures

    def fail(self, plan: Plan, attempt: str, failure: Failure) -> None:
        """Notes an attempt that ended with an error."""
        self._notes.write(f"{plan.token}/failed/{failure.part:05d}-{attempt}.json", sealed(failure.to_json()))

    def failures(self, names: Sequence[str]) -> list[Failure]:
        """The failures of these names, as far as they can be read."""
        found = []
        for name in names:
            text = self._notes.read(name, _LARGEST)
            try:
                found.append(Failure.from_json(unsealed(text or b"")))
            except (ValueError, TypeError, KeyError):
                continue
        return found

    # -- names

    def _done(self, plan: Plan, part: int) -> str:
        return f"{plan.token}/done/{part:05d}.json"

    def _claim(self, plan: Plan, part: int) -> str:
        return f"{plan.token}/claims/{part:05d}.json"

    def _text(self, attempt: str) -> bytes:
        return sealed({"holder": here(), "attempt": attempt})
