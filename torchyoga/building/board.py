"""The notes of a plan in its store: what is done, who is at work, what failed.

<store>/.builds/<id>/<version>/plan.json                  created once: whoever comes later takes it
<store>/.builds/<id>/<version>/planning.json              a builder makes it; written again as a sign of life
<store>/.builds/<id>/<version>/<plan>/done/00007.json     part 7 is done; the first such note counts
<store>/.builds/<id>/<version>/<plan>/claims/00007.json   a builder is at it; written again as a sign of life
<store>/.builds/<id>/<version>/<plan>/failed/00007-<attempt>.json
<store>/.builds/<id>/<version>/here/<caller>-<seconds>.json   written again by each builder within the seconds

Note 10. Claims save work, and nothing depends on them.
Two that build one part lose time and nothing else: each has files of its own, and the first note wins. So a
claim needs no lock, and one whose holder is silent is taken over without asking.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from ..errors import BusyError, CorruptError, SchemaError, YogaError
from ..process.lazy import cached_property
from ..process.threads import begin_thread
from ..rows.types import Json
from ..stores.contract import Store
from ..stores.notes import Notes, at_work
from ..versions.file_entry import FileEntry
from ..versions.lineage import sendable
from ..versions.location import sealed, unsealed
from ..versions.names import folder_of
from .plan import Plan, typed

_log = logging.getLogger("torchyoga")
_PLAN, _PLANNING = "plan.json", "planning.json"
_LARGEST = 256 * 2**20  # bytes of a plan or a note
_LONGEST = 4000  # characters of a message
_NAME = re.compile(r"([0-9a-f]{16})/(done|claims|failed)/([0-9]{5})(-[0-9a-f]{16})?\.json")
_READERS = 16  # of notes, at once
_TRIES = 5
_FIRST_POLL, _LONGEST_POLL = 0.05, 2.0  # seconds between two looks for the plan of another builder


def here() -> str:
    """This process, for messages."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@dataclass(frozen=True)
class PartNote:
    """A part that is done.

    Attributes:
        files: its files.
        seconds: how long it took.
        found: what the info of the version is to say besides.
        stats: statistics of its columns, to be merged with those of others; empty if they are not wanted.
    """

    files: tuple[FileEntry, ...]
    seconds: float = 0.0
    found: Json = field(default_factory=dict)
    stats: Json = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(file.rows for file in self.files)

    def to_json(self) -> Json:
        """Plain data."""
        return {**vars(self), "files": [file.to_json() for file in self.files]}

    @staticmethod
    def from_json(data: Json) -> PartNote:
        """The note that `to_json` described; ValueError, TypeError or KeyError if it is none."""
        kept = typed(data, seconds=float, found=dict, stats=dict)
        if not 0 <= kept["seconds"] < 1e9:
            raise ValueError("its seconds must be a time")
        return PartNote(tuple(map(FileEntry.from_json, data["files"])), **kept)


@dataclass(frozen=True)
class PartFailure:
    """An attempt at a part that ended with an error.

    Attributes:
        part: which part; `row`: the row at which the source failed, None if that is unknown.
        kind: the class of the error; `text`: its message; `trace`: where it came from.
        is_final: another attempt would end alike, as with a row that does not fit.
        host: the machine and the process.
    """

    part: int
    kind: str
    text: str
    host: str
    row: int | None = None
    is_final: bool = False
    trace: str = ""

    @staticmethod
    def of(part: int, error: BaseException, row: int | None = None) -> PartFailure:
        """The failure of an attempt in this process."""
        trace = "".join(traceback.format_exception(error))[-_LONGEST:]
        text, is_final = str(error)[:_LONGEST], isinstance(error, SchemaError)
        return PartFailure(part, type(error).__name__, text, here(), row, is_final, trace)

    @staticmethod
    def from_json(data: Json) -> PartFailure:
        """The failure whose entries these are; TypeError or KeyError if they are not."""
        kept = typed(data, part=int, kind=str, text=str, host=str, is_final=bool, trace=str)
        if data["row"] is not None:
            typed(data, row=int)
        return PartFailure(row=data["row"], **kept)


@dataclass(frozen=True)
class Look:
    """The contents of a listing.

    Attributes:
        done: parts that are done.
        alive: parts whose builder has shown a sign of life.
        silent: parts whose builder has not.
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

    def __init__(self, store: Store, id: str, version: str, lease_seconds: float) -> None:
        self._notes = store.notes(f".builds/{folder_of(id, version)}")
        self._what = f"{id!r} {version!r} in {store.name}"
        self._seconds = lease_seconds
        # By part, or name of the claim: when it was written, and when it was seen.
        self._seen: dict[int | str, tuple[float | None, float]] = {}

    @property
    def place(self) -> str:
        """Where the notes are, for messages."""
        return self._notes.where("")

    # -- the plan

    def plan(self) -> Plan | None:
        """The plan that is there; None if there is none, CorruptError if it is damaged."""
        try:
            return Plan.from_json(unsealed(self._notes.read(_PLAN, _LARGEST)))
        except FileNotFoundError:
            return None
        except CorruptError as error:
            raise CorruptError(f"{self._notes.where(_PLAN)}: {error}; remove it to begin anew") from error

    def agreed(self, make: Callable[[], Plan], timeout: float) -> Plan:
        """The plan that is there, or the one that `make` makes.

        To make it reads rows, so one builder does that. The others wait as long as it lives, for `timeout`
        seconds at most. If it fails, each makes a plan, so that they fail at the same time and not in turn.
        """
        deadline, poll, has_waited = time.monotonic() + timeout, _FIRST_POLL, False
        claim = sealed({"holder": here(), "attempt": secrets.token_hex(8)})
        while True:
            notes = self._notes.find()  # before the plan, which is there before its claim goes
            plan = self.plan()
            if plan is not None:
                return plan
            is_claimed = _PLANNING in notes
            if is_claimed and not self._lives(_PLANNING, notes[_PLANNING].written):
                self._notes.delete([_PLANNING])
                is_claimed = has_waited = False
            if has_waited and (not is_claimed or time.monotonic() > deadline):
                return self._created(make())
            if not is_claimed and self._notes.create(_PLANNING, claim):
                with self._shown(_PLANNING):
                    return self._created(make())
            has_waited = True
            time.sleep(poll)
            poll = min(_LONGEST_POLL, 1.5 * poll)

    def _created(self, plan: Plan) -> Plan:
        """This plan, or the one that another builder has made meanwhile."""
        if not isinstance(self._notes, Notes):
            plan = replace(plan, lineage=sendable(plan.lineage))
        for _ in range(_TRIES):
            if self._notes.create(_PLAN, sealed(plan.to_json())):
                return plan
            other = self.plan()
            if other is not None:
                return other
        raise BusyError(f"the plan of {self._what} is removed again and again; is another process cleaning?")

    def is_current(self, plan: Plan) -> bool:
        """True unless the plan has been removed, as when its version is published, or replaced."""
        now = self.plan()
        return now is not None and now.token == plan.token

    def clear(self) -> None:
        """Removes the plan, and all notes."""
        self._notes.delete([_PLAN])  # first, so that no builder counts on the others
        self._notes.delete(self._notes.find())

    # -- the parts

    def look(self, plan: Plan) -> Look:
        """The work done, and who is at work; costs one listing."""
        look = Look()
        claims: dict[int, float | None] = {}
        for name, note in self._notes.find().items():
            match = _NAME.fullmatch(name)
            if match is None or match[1] != plan.token or int(match[3]) >= plan.num_parts:
                continue
            if match[2] == "done":
                look.done.add(int(match[3]))
            elif match[2] == "claims":
                claims[int(match[3])] = note.written
            else:
                look.failed.add(name)
        for part in claims.keys() - look.done:
            (look.alive if self._lives(part, claims[part]) else look.silent).add(part)
        return look

    @cached_property
    def _ahead(self) -> float | None:
        """Seconds of the store's clock before this machine's steady one; None if it has no clock."""
        now = self._notes.now()
        return None if now is None else now - time.monotonic()

    def _lives(self, claim: int | str, written: float | None) -> bool:
        """True for a claim that was written, or has changed, within the seconds."""
        steady = time.monotonic()
        if written is not None and self._ahead is not None:
            return self._ahead + steady - written <= self._seconds + 1  # stores count whole seconds
        if self._seen.setdefault(claim, (written, steady))[0] != written:
            self._seen[claim] = written, steady
        return steady - self._seen[claim][1] <= self._seconds

    def begin(self, plan: Plan, part: int, attempt: str, is_taken: bool) -> bool:
        """Claims a part, in place of another claim if it `is_taken`; False if another builder was faster."""
        name, text = _note_name(plan, "claims", part), sealed({"holder": here(), "attempt": attempt})
        if is_taken:
            self._notes.write(name, text)
            return True
        return self._notes.create(name, text)

    @contextmanager
    def working(
        self, plan: Plan, part: int, attempt: str, row: Callable[[], int | None] = lambda: None
    ) -> Iterator[None]:
        """Shows life while a part is built. An error is noted, with the row that it came at, and the claim is
        given up, so that others need not wait."""
        with self._living(lambda: self.begin(plan, part, attempt, is_taken=True)) as end:
            try:
                yield
            except BaseException as error:
                end()
                if isinstance(error, Exception):  # not for Ctrl-C
                    with suppress(OSError, YogaError):  # the error itself says more
                        self.fail(plan, attempt, PartFailure.of(part, error, row()))
                self._give_up(_note_name(plan, "claims", part))
                raise

    @contextmanager
    def present(self) -> Iterator[None]:
        """Shows that a builder is at work on the version, so that `clean` spares plans of it."""
        name = at_work(self._seconds)
        self._notes.write(name, sealed({"holder": here()}))
        with self._shown(name):
            yield

    @contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        """Writes a note again from time to time, and removes it at the end."""
        with self._living(lambda: self._notes.write(name, sealed({"holder": here()}))) as end:
            try:
                yield
            finally:
                end()
                self._give_up(name)

    @contextmanager
    def _living(self, show: Callable[[], object]) -> Iterator[Callable[[], None]]:
        """Shows life from time to time; gives what ends that."""
        stop = threading.Event()

        def live() -> None:
            while not stop.wait(self._seconds / 4):
                try:
                    show()
                except Exception as error:
                    _log.warning("%s: no sign of life could be written: %s", self._what, error)

        def end() -> None:
            stop.set()
            thread.join(self._seconds)

        thread = begin_thread("torchyoga part", live, stop=stop.set)
        try:
            yield end
        finally:
            end()

    def _give_up(self, name: str) -> None:
        try:
            self._notes.delete([name])
        except (OSError, YogaError) as problem:
            _log.warning("%s: the note %s stays: %s", self._what, name, problem)

    def note(self, plan: Plan, part: int, note: PartNote) -> bool:
        """Notes that a part is done; False if another builder has done so before."""
        return self._notes.create(_note_name(plan, "done", part), sealed(note.to_json()))

    def read_all(self, plan: Plan, parts: Iterable[int]) -> list[PartNote | None]:
        """The notes of parts, several read at once: None for one that is not done, or whose note is damaged,
        which then is removed."""
        with ThreadPoolExecutor(_READERS, "torchyoga notes") as pool:
            return list(pool.map(lambda part: self._read(plan, part), parts))

    def _read(self, plan: Plan, part: int) -> PartNote | None:
        try:
            note = PartNote.from_json(unsealed(self._notes.read(_note_name(plan, "done", part), _LARGEST)))
            if plan.of_rows and note.rows != plan.bounds[part + 1] - plan.bounds[part]:
                raise ValueError(f"it has {note.rows} rows, which is not what the plan says")
            return note
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            _log.warning(
                "%s: the note of part %d is damaged (%s); it is built again", self._what, part, error
            )
            self.forget(plan, [part])
            return None

    def forget(self, plan: Plan, parts: Iterable[int]) -> None:
        """Removes the notes of parts, which are then built again."""
        for part in parts:
            self._notes.delete([_note_name(plan, kind, part) for kind in ("done", "claims")])

    # -- failures

    def fail(self, plan: Plan, attempt: str, failure: PartFailure) -> None:
        """Notes an attempt that ended with an error."""
        self._notes.write(_note_name(plan, "failed", failure.part, f"-{attempt}"), sealed(vars(failure)))

    def failures(self, names: Sequence[str]) -> list[PartFailure]:
        """The failures of these names, as far as they can be read."""
        failures = []
        for name in names:
            with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
                failures.append(PartFailure.from_json(unsealed(self._notes.read(name, _LARGEST))))
        return failures


def _note_name(plan: Plan, kind: str, part: int, attempt: str = "") -> str:
    return f"{plan.token}/{kind}/{part:05d}{attempt}.json"
