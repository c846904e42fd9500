"""The plan that all builders of a version share, the parts that it names, and the notes of who builds what.

<store>/.builds/<id>/<version>/plan.json                  created once: whoever comes later takes it
<store>/.builds/<id>/<version>/planning.json              a builder makes it; written again as a sign of life
<store>/.builds/<id>/<version>/<plan>/done/00007.json     part 7 is done; the first such note counts
<store>/.builds/<id>/<version>/<plan>/claims/00007.json   a builder is at it; written again as a sign of life
<store>/.builds/<id>/<version>/<plan>/failed/00007-<attempt>.json
<store>/.builds/<id>/<version>/here/<caller>-<seconds>.json   written again by each builder within the seconds

A plan says where parts begin and how they are read and written. A part of a source is a source of its own.

Note 10. Claims save work, and nothing depends on them.
Two that build one part lose time and nothing else: each has files of its own, and the first note wins. So a
claim needs no lock, and one whose holder is silent is taken over without asking.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np

from ..errors import BusyError, CorruptError, SchemaError, YogaError
from ..process.lazy import cached_property
from ..process.messages import log
from ..process.numbers import spread
from ..process.seeding import GeneratorsPutBack, seeder
from ..process.threads import begin_thread
from ..rows.block import Block
from ..rows.collector import Collector, block_of
from ..rows.comparing import row_hashes
from ..rows.schema import Schema
from ..rows.types import Json, Row
from ..stores.contract import Notes, Seen, Store, at_work
from ..versions.file_entry import FileEntry, is_token
from ..versions.lineage import plain, sendable
from ..versions.location import sealed, unsealed
from ..versions.manifest import FunctionEntry
from ..versions.names import folder_of
from .sources import BlockSource, PlacedSource, RowSource, SeekableBlocks, Source

MOST_PARTS = 10_000
_LARGEST_BOUND = 2**62
_ROWS, _SECONDS = 256, 5.0  # at most, to learn a schema of; a slow source shows fewer, but some
_FEWEST = 16
_INPUTS, _ROWS_OF_ONE = 16, 32
_PLAN, _PLANNING = "plan.json", "planning.json"
_LARGEST = 256 * 2**20  # bytes of a plan or a note
_LONGEST = 4000  # characters of a message
_NAME = re.compile(r"([0-9a-f]{16})/(done|claims|failed)/([0-9]{5})(-[0-9a-f]{16})?\.json")
_READERS = 16  # of notes, at once
_TRIES = 5
_FIRST_POLL, _LONGEST_POLL = 0.05, 2.0  # seconds between two looks for the plan of another builder


@dataclass(frozen=True)
class Plan:
    """How a version is built in parts.

    Attributes:
        token: names the plan, and is the build of the version that comes of it.
        id: which dataset; `version`: which version of it.
        signature: plain data that says what is read and how files are written; all builders have the same.
        schema: what a row looks like; None if no row showed it, because there is none.
        bounds: where each part begins, and where the last one ends.
        of_rows: bounds count rows; False if they count inputs, each of which has any number of rows.
        looks: numbers and digests of some rows, which each builder compares with its own; empty if rows are
            others each time they are read.
        host: the machine that made the plan, and its process.
        info: kept with the version; `function`: what made the rows; `lineage`: how.
        replaces: the version that may be replaced; None if none may.
    """

    token: str
    id: str
    version: str
    signature: Sequence[object]
    schema: Schema | None
    bounds: tuple[int, ...]
    of_rows: bool
    looks: tuple[tuple[int, str], ...] = ()
    host: str = ""
    info: Json = field(default_factory=dict)
    function: FunctionEntry | None = None
    lineage: Json = field(default_factory=dict)
    replaces: Seen | None = None

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        return len(self.bounds) - 1

    def named(self, part: int) -> str:
        """A part, for messages."""
        start, stop = self.bounds[part], self.bounds[part + 1]
        what = "row" if self.of_rows else "input"
        which = f"{what} {start}" if stop - start == 1 else f"{what}s {start} to {stop - 1}"
        return f"part {part} ({which}) of {self.id!r} {self.version!r}"

    def to_json(self) -> Json:
        """Plain data."""
        schema, function = self.schema, self.function
        return {
            **vars(self),
            "schema": schema.to_json() if schema else None,
            "function": function.to_json() if function else None,
        }

    @staticmethod
    def from_json(data: Json) -> Plan:
        """The plan that `to_json` described; CorruptError if it is none."""
        try:
            kept = typed(
                data, token=str, id=str, version=str, host=str, signature=list, of_rows=bool, lineage=dict
            )
            bounds, looks = tuple(data["bounds"]), tuple((number, digest) for number, digest in data["looks"])
            rising = all(type(bound) is int and 0 <= bound < _LARGEST_BOUND for bound in bounds) and all(
                one < other for one, other in itertools.pairwise(bounds)
            )
            if not rising or bounds[:1] != (0,) or len(bounds) - 1 > MOST_PARTS:
                raise ValueError(f"its parts do not follow each other: {bounds!r:.80}")
            if not is_token(data["token"]):
                raise ValueError("it has no token")
            if not all(type(number) is int and isinstance(digest, str) for number, digest in looks):
                raise TypeError("it must compare numbered rows")
            replaces = None if data["replaces"] is None else Seen(*data["replaces"])
            if not all(value is None or isinstance(value, str) for value in replaces or ()):
                raise TypeError("what it replaces must be text")
            return Plan(
                **kept,
                schema=None if data["schema"] is None else Schema.from_json(data["schema"]),
                bounds=bounds,
                looks=looks,
                info=plain(data["info"]),
                function=None if data["function"] is None else FunctionEntry.from_json(data["function"]),
                replaces=replaces,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(f"the plan is damaged: {error}") from error


def typed(data: Json, **kinds: type) -> Json:
    """The entries of these names; TypeError or KeyError unless each is of exactly this type."""
    for name, kind in kinds.items():
        if type(data[name]) is not kind:
            raise TypeError(f"{name} must be a {kind.__name__}, found {data[name]!r:.40}")
    return {name: data[name] for name in kinds}


def digest_of(block: Block) -> str:
    """A digest of the rows of a block and of their types, whatever the memory is like that holds them."""
    return row_hashes(block).tobytes().hex()


class RowSlice(RowSource):
    """Some rows of a source, or the rows of some of its inputs.

    Attributes:
        number: the row that is being read, counted from the part's beginning.
    """

    def __init__(
        self,
        source: RowSource,
        ask: Callable[[], Iterator[Row]],
        start: int,
        length: int | None,
        schema: Schema,
    ) -> None:
        """The rows that `ask` begins with, as many as `length` says, or all."""
        self.name, self.schema, self.length = source.name, schema, length
        self.number = 0
        self._source, self._ask, self._start = source, ask, start

    @property
    def found(self) -> Json:
        """The entries that the source has found."""
        return self._source.found

    def rows(self, start: int) -> Iterator[Row]:
        """The rows."""
        with _closed(self._ask()) as given:
            for row in islice(given, self.length):
                yield row
                self.number += 1
        if self.length not in (None, self.number):
            raise ValueError(
                f"{self.name} gave {self.number} rows from row {self._start} on, but has {self.length} there "
                "by its length; correct its __len__ or __getitems__"
            )


class BlockSlice(BlockSource):
    """Rows of a source of blocks that can begin at any row; its attributes are those of `RowSlice`."""

    def __init__(self, source: SeekableBlocks, start: int, length: int) -> None:
        self.name, self.schema, self.length = source.name, source.schema, length
        self.number = 0
        self._source, self._start = source, start

    def blocks(self, nbytes: int) -> Iterator[Block]:
        """The rows, in blocks of about `nbytes` bytes."""
        assert self.length is not None
        for block in self._source.blocks_from(self._start, nbytes):
            cut = block.slice(0, min(block.num_rows, self.length - self.number))
            if cut.num_rows:
                self.number += cut.num_rows
                yield cut
            if self.number >= self.length:
                return
        if self.number < self.length:
            raise ValueError(
                f"{self.name} gave {self.number} rows from row {self._start} on, not {self.length}"
            )


Slice = RowSlice | BlockSlice


@dataclass(frozen=True)
class Splits:
    """A source that can be read in parts.

    Attributes:
        source: the source.
        count: how many rows it has, or inputs; `of_rows`: True for rows.
    """

    source: Source
    count: int
    of_rows: bool

    def slice(self, start: int, stop: int, schema: Schema) -> Slice:
        """Some of it, as a source of its own."""
        source = self.source
        if isinstance(source, SeekableBlocks):
            return BlockSlice(source, start, stop - start)
        assert isinstance(source, RowSource)
        if self.of_rows:
            return RowSlice(source, partial(source.rows, start), start, stop - start, schema)
        return RowSlice(source, partial(self._rows_of, start, stop), start, None, schema)

    def _rows_of(self, start: int, stop: int) -> Iterator[Row]:
        """The rows of some inputs."""
        assert isinstance(self.source, PlacedSource)
        return self.source.rows_of(start, stop)

    def learned(self, schema: Schema | None) -> tuple[Schema | None, float, float]:
        """A schema, if none is given, and the bytes and the seconds of a row or an input, as some show that
        are spread over the source."""
        source, started = self.source, time.monotonic()
        if isinstance(source, SeekableBlocks):
            block = source.some(spread(self.count, _FEWEST)) if self.count else None
            nbytes = block.nbytes / max(1, block.num_rows) if block else 1024.0
            return source.schema, nbytes, (time.monotonic() - started) / _FEWEST
        assert isinstance(source, RowSource)
        collector = Collector(schema or source.schema, lambda: source.meanings)
        nbytes, seen = 0, 0
        with GeneratorsPutBack():
            for number in spread(self.count, _ROWS if self.of_rows else _INPUTS).tolist():
                if seen >= _FEWEST and time.monotonic() - started > _SECONDS:
                    break
                for row in self._rows_at(number):
                    before = collector.nbytes
                    collector.add(row, number)
                    nbytes += max(1, collector.nbytes - before)
                seen += 1
        learned = collector.take().schema if len(collector) else schema or source.schema
        each = max(1, seen)
        return learned, nbytes / each, (time.monotonic() - started) / each

    def _rows_at(self, number: int) -> Iterator[Row]:
        """A row, or the first ones of an input."""
        if self.of_rows:
            assert isinstance(self.source, RowSource)
            yield self.source.row(number)
            return
        with _closed(self._rows_of(number, number + 1)) as rows:
            yield from islice(rows, _ROWS_OF_ONE)

    def digests(self, numbers: Sequence[int], schema: Schema | None, others: bool = False) -> list[str]:
        """Digests of rows of these numbers, as they are read now, of inputs of the first row from there on;
        empty strings where that says nothing.

        With `others` the generators of random numbers give others than before: this shows random rows.
        """
        with GeneratorsPutBack():
            if others:
                seeder()(secrets.randbelow(2**63))  # of which NumPy gets the upper half
            return [self._digest(number, schema) for number in numbers]

    def _digest(self, number: int, schema: Schema | None) -> str:
        if isinstance(self.source, SeekableBlocks):
            block = self.source.some(np.array([number], np.int64))
            return "" if block is None else digest_of(block)
        try:
            for one in range(number, number + 1 if self.of_rows else min(self.count, number + _INPUTS)):
                for row in self._rows_at(one):
                    return digest_of(block_of([row], schema))
        except SchemaError:
            return "it does not fit"
        return ""

    def differing(self, there: Iterable[tuple[int, str]], schema: Schema | None) -> int | None:
        """The first of these rows, given by number and digest, that differs here; None if there is none.

        Rows that differ each time they are read do not count.
        """
        known = [(number, digest) for number, digest in there if digest]
        digests = self.digests([number for number, _ in known], schema)
        for (number, digest), now in zip(known, digests, strict=True):
            if now not in ("", digest) and [now] == self.digests([number], schema, others=True):
                return number
        return None


def _closed(rows: Iterator[Row]) -> AbstractContextManager[Iterator[Row]]:
    """Rows, and what gives them is closed at the end."""
    return closing(rows) if isinstance(rows, Generator) else nullcontext(rows)


def splits_of(source: Source) -> Splits:
    """A source as one that can be read in parts.

    Raises:
        TypeError: it can only be read from its beginning.
    """
    if isinstance(source, SeekableBlocks) and source.length is not None:
        return Splits(source, source.length, True)
    if isinstance(source, RowSource) and source.seekable and source.length is not None:
        return Splits(source, source.length, True)
    if isinstance(source, PlacedSource):
        return Splits(source, source.num_inputs, False)
    raise TypeError(
        f"{source.name} can only be read from its beginning, so parts of it cannot be built by several: pass "
        "a map-style dataset, or yoga.flat_map(paths, read), whose paths are read one by one"
    )


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
                    log.warning("%s: no sign of life could be written: %s", self._what, error)

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
            log.warning("%s: the note %s stays: %s", self._what, name, problem)

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
            log.warning("%s: the note of part %d is damaged (%s); it is built again", self._what, part, error)
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
