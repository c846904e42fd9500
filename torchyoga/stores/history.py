"""The versions of an id in time: which is the newest, which names they have, and the log.

A version that another one was made from is not the newest.
Parents are compared by name and fingerprint, so one that was overwritten by other rows is nobody's parent.
All parents of a manifest count, not only the direct one: if that is removed, the one before it is still no
head.

Note 20. A tag is a chain of notes.
<root>/.tags/<id>/<tag>/00000001.json is the first, and the last one says what the tag names now. A move
creates the next number; if another process has just created it, the one after that. So there is no lock
around a tag, two moves at once are both in the history, and what was there before can always be seen and
named again.
"""

from __future__ import annotations

import getpass
import json
import math
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from typing import overload

from ..errors import CorruptError, NotFoundError, YogaError
from ..process.digests import json_digest
from ..process.messages import bytes_text, count_of, escaped, in_columns, short
from ..process.numbers import as_int
from ..rows.types import Json
from ..versions.file_entry import is_token
from ..versions.lineage import Lineage, Parent
from ..versions.manifest import Manifest, Outline
from ..versions.names import decoded, encoded, natural
from .contract import MOST_NAMED, Shown, Store, nearest, some
from .sharing import Sharing

_LOOKS = 3  # at versions that are removed or replaced meanwhile


def _is_parent(parent: Parent, of: Outline, nodes: Mapping[str, Outline]) -> bool:
    """True for a parent that is published, with the rows that it had."""
    found = nodes.get(parent.version)
    return found is not None and found.fingerprint == parent.fingerprint and found.version != of.version


def parent_of(node: Outline, nodes: Mapping[str, Outline]) -> str | None:
    """The nearest version that a version was made from and that is still published; None if there is none."""
    return next((p.version for p in reversed(node.parents) if _is_parent(p, node, nodes)), None)


def heads(nodes: Mapping[str, Outline]) -> list[str]:
    """The versions that no other one was made from, sorted."""
    below: set[str] = set()
    read: set[str] = set()
    for node in nodes.values():
        below |= {p.version for p in _line(node, read) if p is not None and _is_parent(p, node, nodes)}
    return sorted(nodes.keys() - below, key=natural)


def _line(node: Outline, read: set[str]) -> Iterator[Parent | None]:
    """The parents of a version, but None for those of each list that has been `read`, which notes its own."""
    for piece in node.parents.pieces:
        if isinstance(piece, Parent):
            yield piece
        elif piece.name in read:
            yield None
        else:
            read.add(piece.name)
            yield from node.parents.of_piece(piece)


def in_time(nodes: Mapping[str, Outline]) -> list[str]:
    """All versions, the oldest first: by when they were made, but each after what it was made from."""
    placed: dict[str, tuple[str, int]] = {}
    for start in sorted(nodes, key=natural):
        way: dict[str, None] = {}
        at: str | None = start
        while at is not None and at not in placed and at not in way:
            way[at] = None
            at = parent_of(nodes[at], nodes)
        for version in reversed(way):  # those before it first; a circle begins somewhere
            parent = parent_of(nodes[version], nodes)
            time, depth = placed.get(parent, ("", -1)) if parent is not None else ("", -1)
            own = nodes[version].created
            placed[version] = (own, 0) if own > time else (time, depth + 1)
    return sorted(nodes, key=lambda version: (placed[version], natural(version)))


def newest(store: Store, id: str) -> Outline:
    """The only version that no other one was made from.

    Raises:
        NotFoundError: there is none, or there are several; names them, and when they were made.
        CorruptError: a manifest is damaged, so that it is not known.
    """
    for left in reversed(range(_LOOKS)):
        try:
            nodes = _latest(store, id, _published(store, id))
            break
        except CorruptError:  # unless it was removed or replaced while its lists were read
            if not left:
                raise
    if not nodes:
        raise store.not_published(id)
    found = heads(nodes)
    if len(found) == 1:
        return nodes[found[0]]
    if not found:
        named = _dated(nodes, sorted(nodes, key=natural))
        raise NotFoundError(
            f"the newest version of {id!r} is not known: {named} were made from each other in a circle; name "
            "the version to read, or the one to append to"
        )
    raise NotFoundError(
        f"{id!r} has {len(found)} newest versions, none made from another: {_dated(nodes, found)}; name the "
        "version to read, or the one to append to; or give one a tag and fetch that"
    )


def _published(store: Store, id: str) -> dict[str, Shown]:
    return {version: place for version, place in store.places(id).items() if place.is_published}


def _latest(store: Store, id: str, places: Mapping[str, Shown]) -> dict[str, Outline]:
    """The published versions of an id but for those that one of these was made from.

    They are read from the one on that was written last. Parents that are in line, each older than the next,
    have not been overwritten since, so they need not be read.

    Raises:
        CorruptError: a manifest is damaged.
    """
    times = {v: place.written for v, place in places.items() if place.written is not None}
    nodes: dict[str, Outline] = {}
    below: set[str] = set()
    read: set[str] = set()
    for version in sorted(places, key=lambda version: (-times.get(version, math.inf), natural(version))):
        if version in below:
            continue
        try:
            text = store.read_manifest(id, version)
            if text is None:  # removed just now
                continue
            nodes[version] = node = store.parsed(id, version, text, Outline)
            line = [*(parent and parent.version for parent in _line(node, read)), version]
            below |= {
                parent
                for parent, child in pairwise(line)
                if parent in times and child in times and times[parent] < times[child]
            }
        except CorruptError as error:
            raise CorruptError(
                f"the newest version of {id!r} is not known, since that of {version!r} cannot be read: "
                f"{error}"
            ) from error
    return nodes


def recent(store: Store, id: str, most: int) -> tuple[list[Outline], int] | None:
    """The newest versions of an id, the newest first, and how many there are in all, without reading others.

    None if that takes all of them: they are not in one line, or one is damaged.
    """
    places = _published(store, id)
    if not 0 < most < len(places):
        return None
    try:
        nodes = _latest(store, id, places)
        if len(found := heads(nodes)) != 1:
            return None
        node = nodes[found[0]]
        line = [parent.version for parent in reversed(node.parents) if parent.version in places]
        if sorted([*line, node.version]) != sorted(places):
            return None
        texts = store.each(line[: most - 1], partial(store.read_manifest, id))
        below = [store.parsed(id, v, text or b"", Outline) for v, text in zip(line, texts, strict=False)]
    except (CorruptError, NotFoundError, FileNotFoundError):
        return None
    for child, parent in pairwise([node, *below]):
        direct = child.parents[-1] if child.parents else None
        if direct is None or (direct.version, direct.fingerprint) != (parent.version, parent.fingerprint):
            return None
    return [node, *below][:most], len(places)


def _dated(nodes: Mapping[str, Outline], versions: Sequence[str]) -> str:
    latest = sorted(versions, key=lambda version: nodes[version].created, reverse=True)
    shown = [f"{version!r} of {escaped(nodes[version].created)[:40]}" for version in latest[:MOST_NAMED]]
    more = f" and {len(latest) - MOST_NAMED} more" if len(latest) > MOST_NAMED else ""
    return ", ".join(shown) + more


MOST_MESSAGE = 4096  # characters of a message
_FOLDER = ".tags"
_LARGEST = 64 * 2**10  # bytes of a note
_NAME = re.compile(r"([0-9]{8})\.json")
_MOST = 10**8 - 1  # notes of a tag
_DIGEST = re.compile(r"[0-9a-f]{32}")
_PATIENCE = 60.0  # seconds to wait for a builder or a remover of the version


@dataclass(frozen=True)
class TagEntry:
    """One move of a tag.

    Attributes:
        id: the dataset; `tag`: the name of the tag.
        number: 1 for the first move.
        version: the version that the tag names from then on; None if the tag was taken away.
        fingerprint: the fingerprint of that version's rows; `build`: of its files.
        who: the user name.
        when: the time in UTC, by the clock of that user's machine.
        message: what the user said about it.

    Example:
        >>> ref = storage.submit([1, 2], "tagged", "1.0")
        >>> entry = storage.tag("tagged", "prod", "1.0", message="the first one")
        >>> entry.number, entry.version, entry.message
        (1, '1.0', 'the first one')
    """

    id: str
    tag: str
    number: int
    version: str | None
    fingerprint: str | None
    build: str | None
    who: str | None
    when: datetime
    message: str | None = None

    def to_bytes(self) -> bytes:
        """The text of its note, which no other writer would write."""
        content = {**vars(self), "torchyoga_tag": 1, "when": self.when.isoformat()}
        content["salt"] = secrets.token_hex(8)
        return json.dumps({**content, "checksum": json_digest(content)}, indent=1, sort_keys=True).encode()

    @staticmethod
    def from_bytes(text: bytes) -> TagEntry:
        """The move that a note describes; ValueError, TypeError or KeyError if it is not one."""
        content = json.loads(text.decode())
        if not isinstance(content, dict) or type(content.get("torchyoga_tag")) is not int:
            raise ValueError("it is not a note of a tag")
        if content["torchyoga_tag"] != 1:
            raise ValueError("it is of a later format; update torchyoga")
        if content.pop("checksum", None) != json_digest(content):
            raise ValueError("its checksum does not match its content")
        return _entry(content)

    def __str__(self) -> str:
        what = f"-> {self.version!r}" if self.version is not None else "taken away"
        return f"{self.tag!r} {what}, {self.when:%Y-%m-%d %H:%M} by {self.who!r}: {self.message!r}"


def _entry(content: Json) -> TagEntry:
    texts = {key: content[key] for key in ("id", "tag", "when")}
    optional = {key: content[key] for key in ("version", "fingerprint", "build", "who", "message")}
    if not all(isinstance(text, str) and text for text in texts.values()):
        raise TypeError("id, tag and when must be text")
    if not all(text is None or isinstance(text, str) for text in optional.values()):
        raise TypeError("version, fingerprint, build, who and message must be text or null")
    number, version = content["number"], optional["version"]
    if type(number) is not int or not 1 <= number <= _MOST:
        raise ValueError(f"not the number of a note: {number!r:.40}")
    if version is not None:
        encoded("version", version)
        if not _DIGEST.fullmatch(optional["fingerprint"] or "") or not is_token(optional["build"]):
            raise ValueError("its fingerprint or its build is not one")
    when = datetime.fromisoformat(texts.pop("when"))
    if when.tzinfo is None:
        raise ValueError("its time has no time zone")
    try:
        when = when.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"its time is out of range in UTC: {when}") from None
    return TagEntry(number=number, when=when, **texts, **optional)


def check_message(message: object) -> str | None:
    """A message that may be kept; TypeError or ValueError if it may not."""
    if message is None:
        return None
    if not isinstance(message, str):
        raise TypeError(f"message must be a str, found a {type(message).__name__}")
    if len(message) > MOST_MESSAGE:
        raise ValueError(f"message has {len(message)} characters, {MOST_MESSAGE} are allowed; shorten it")
    try:
        message.encode()
    except UnicodeEncodeError:
        raise ValueError("message is not valid text; leave out the lone surrogates") from None
    return message


def user_name() -> str | None:
    """The name of the user; None if the system does not say it."""
    try:
        found = getpass.getuser()[:100]
        found.encode()
    except (OSError, KeyError, ImportError, UnicodeEncodeError):
        return None
    return found or None


class _Chain:
    """The notes of one tag."""

    def __init__(self, store: Store, id: str, tag: str) -> None:
        self.store, self.id, self.tag = store, id, tag
        self.notes = store.notes(f"{_FOLDER}/{encoded('id', id)}/{encoded('tag', tag)}")

    def read(self, number: int) -> TagEntry:
        """One move."""
        where = self.notes.where(_name(number))
        try:
            entry = TagEntry.from_bytes(self.notes.read(_name(number), _LARGEST))
            if (entry.id, entry.tag, entry.number) != (self.id, self.tag, number):
                raise ValueError(f"it is of {entry.id!r:.80} {entry.tag!r:.80}, number {entry.number}")
            return entry
        except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError) as error:
            why = "it is missing" if isinstance(error, FileNotFoundError) else error
            raise CorruptError(
                f"the note {where} of the tag {self.tag!r} is damaged: {why}. Tag a version again to name "
                "one from now on; for its history, put the note back from a copy"
            ) from error

    def last(self) -> TagEntry | None:
        """The last move; None if there was none."""
        last = _last(self.notes.find())
        return self.read(last) if last else None

    def all(self) -> list[TagEntry]:
        """All moves, the first one first."""
        # None may be missing; a listing may leave out one that is written meanwhile.
        return [*self.store.each(range(1, _last(self.notes.find()) + 1), self.read)]

    def add(self, manifest: Manifest | None, message: str | None) -> TagEntry:
        """Writes the next move."""
        entry = TagEntry(
            id=self.id,
            tag=self.tag,
            number=_last(self.notes.find()) + 1,
            version=manifest.version if manifest else None,
            fingerprint=manifest.fingerprint if manifest else None,
            build=manifest.build if manifest else None,
            who=user_name(),
            when=datetime.fromtimestamp(round(time.time(), 3), timezone.utc),
            message=message,
        )
        while entry.number <= _MOST:
            if self.notes.create(_name(entry.number), entry.to_bytes()):
                return entry
            entry = replace(entry, number=entry.number + 1)
        raise CorruptError(
            f"{self.notes.where('')} has notes up to {_MOST}, more than a tag can have; move it away"
        )


def _name(number: int) -> str:
    return f"{number:08d}.json"


def _last(names: Iterable[str]) -> int:
    """The number of the last note; 0 if there is none."""
    return max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0)


def tagged(store: Store, id: str, tag: str, version: str, message: str | None, timeout: float) -> TagEntry:
    """Makes a tag name a version from now on, as `Storage.tag` describes it."""
    check_message(message)
    chain = _Chain(store, id, tag)
    store.manifest(id, version)  # its error lists what is published
    if tag in store.versions(id):
        raise ValueError(
            f"{tag!r} is a version of {id!r}, so no tag may be called so: {id}@{tag} would mean both; choose "
            "another name for the tag"
        )
    # While it is held, `clean` does not remove the version.
    with store.lock(id, version, min(timeout, _PATIENCE)):
        return chain.add(store.manifest(id, version), message)


def untagged(store: Store, id: str, tag: str, message: str | None) -> TagEntry:
    """Takes a tag away, as `Storage.tag` describes it."""
    check_message(message)
    chain = _Chain(store, id, tag)
    try:
        last = chain.last()
    except CorruptError:
        return chain.add(None, message)
    if last is None or last.version is None:
        raise _no_tag(store, id, tag)
    return chain.add(None, message)


def moves_of(store: Store, id: str, damaged: list[str] | None = None) -> dict[str, TagEntry]:
    """The last move of each tag of an id that names a version, by tag.

    Args:
        store: the versions.
        id: which dataset.
        damaged: tags whose last note is damaged are put here; None to raise the error.

    Raises:
        CorruptError: the last note of a tag is damaged.
    """
    chains = _chains(store, id)

    def last(tag: str) -> TagEntry | None:
        if not (number := _last(chains[tag])):
            return None
        try:
            return _Chain(store, id, tag).read(number)
        except CorruptError:
            if damaged is None:
                raise
            damaged.append(tag)
            return None

    names = sorted(chains)
    entries = zip(names, store.each(names, last), strict=True)
    return {tag: entry for tag, entry in entries if entry is not None and entry.version is not None}


def _chains(store: Store, id: str) -> dict[str, set[str]]:
    """The names of the notes of each tag of an id."""
    chains: dict[str, set[str]] = {}
    for name in store.notes(f"{_FOLDER}/{encoded('id', id)}").find():
        folder, _, file = name.partition("/")
        if (tag := decoded(folder)) is not None and _NAME.fullmatch(file):
            chains.setdefault(tag, set()).add(file)
    return chains


def tags_of(store: Store, id: str) -> dict[str, str]:
    """The version that each tag of an id names.

    Raises:
        CorruptError: the last note of a tag is damaged.
    """
    return {tag: str(entry.version) for tag, entry in moves_of(store, id).items()}


def refuse_tagged(store: Store, id: str, version: str) -> None:
    """Raises YogaError if tags name a published version; names them. Hold its lock, so that none is made."""
    tags = sorted(tag for tag, named in tags_of(store, id).items() if named == version)
    if tags and version in store.versions(id):
        raise YogaError(
            f"{id!r} {version!r} in {store.name} has the tags {some(tags)}, so it was not removed; tag "
            "another version, take them away, or pass force=True"
        )


def tag_history(store: Store, id: str, tag: str) -> list[TagEntry]:
    """All moves of a tag, the first one first.

    Raises:
        NotFoundError: there never was such a tag.
        CorruptError: a note is damaged or missing.
    """
    found = _Chain(store, id, tag).all()
    if not found:
        raise _no_tag(store, id, tag)
    return found


def tagged_manifest(store: Store, id: str, tag: str) -> Manifest:
    """The version that a tag names.

    Raises:
        NotFoundError: it names none, or one that was removed, or overwritten by other rows.
        CorruptError: its last note is damaged.
    """
    entry = _Chain(store, id, tag).last()
    if entry is None or entry.version is None:
        raise _no_tag(store, id, tag)
    manifest = store.find(id, entry.version)
    if manifest is not None and manifest.fingerprint == entry.fingerprint:
        return manifest
    raise NotFoundError(
        f"the tag {entry.tag!r} of {entry.id!r} names version {entry.version!r} since "
        f"{entry.when:%Y-%m-%d %H:%M} UTC, which has been "
        f"{'removed' if manifest is None else 'overwritten by other rows'} since then; tag another version, "
        "or fetch one by version="
    )


def _no_tag(store: Store, id: str, tag: str) -> NotFoundError:
    tags = moves_of(store, id, [])
    if tags:
        what = f"its tags are {some(nearest(tag, tags))}"
    elif similar := store.ids_like(id):
        what = "it has no tags" if id in similar else f"it has no tags; the storage holds {some(similar)}"
    else:
        what = "the storage holds nothing"
    return NotFoundError(f"{id!r} has no tag {tag!r} in {store.name}: {what}. Make it with storage.tag")


_TITLES = ("version", "parent", "rows", "+rows", "bytes", "when", "who", "tags", "code", "message")
RIGHT = ("rows", "+rows", "bytes")


@dataclass(frozen=True)
class LogEntry:
    """One version.

    Attributes:
        version: its name.
        parents: the versions that it was made from, the direct one last; of many, only the last ones.
        rows: the number of its rows; None if its manifest is damaged. `added`: how many more than its parent
            has; None without a parent.
        nbytes: the bytes of its files.
        created: the time of its creation, in UTC.
        fingerprint: the fingerprint of its rows; `build`: of its files.
        tags: the tags that name it, sorted.
        lineage: how it was made, as far as that is recorded.
        problem: why its manifest cannot be read; None if it can.
    """

    version: str
    parents: tuple[str, ...] = ()
    rows: int | None = None
    added: int | None = None
    nbytes: int | None = None
    created: str = ""
    fingerprint: str | None = None
    build: str | None = None
    tags: tuple[str, ...] = ()
    lineage: Lineage = field(default_factory=Lineage)
    problem: str | None = None

    @property
    def who(self) -> str | None:
        """The user name."""
        return self.lineage.user

    @property
    def message(self) -> str | None:
        """The user's message about it."""
        return self.lineage.message

    @property
    def code(self) -> str | None:
        """The beginning of the git commit, with a "+" if files had changed since."""
        if self.lineage.commit is None:
            return None
        return self.lineage.commit[:8] + ("+" if self.lineage.dirty else "")

    def cells(self) -> tuple[str, ...]:
        """The cells of its row in the table."""
        message = self.message or "" if self.problem is None else f"damaged: {self.problem}"
        found = (
            self.version,
            self.parents[-1] if self.parents else "",
            "" if self.rows is None else f"{self.rows:,}",
            "" if self.added is None else f"{self.added:+,}",
            "" if self.nbytes is None else bytes_text(self.nbytes),
            self.created.replace("T", " ").removesuffix("Z"),
            self.who or "",
            ", ".join(self.tags),
            self.code or "",
            message,
        )
        return tuple(map(short, found))


class VersionLog(Sequence[LogEntry]):
    """The versions of an id, the newest first; `print` shows a table.

    Args:
        id: which dataset.
        entries: its versions.
        left_out: how many older ones there are.

    Example:
        >>> ref = storage.submit([1, 2, 3], "logged", "1.0", message="the first one")
        >>> log = storage.log("logged")
        >>> len(log), log[0].version, log[0].rows, log[0].message
        (1, '1.0', 3, 'the first one')
    """

    def __init__(self, id: str, entries: Sequence[LogEntry], left_out: int = 0) -> None:
        self.id = id
        self._entries = tuple(entries)
        self.left_out = left_out

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> LogEntry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LogEntry, ...]: ...
    def __getitem__(self, index: int | slice) -> LogEntry | tuple[LogEntry, ...]:
        return self._entries[index]

    def __repr__(self) -> str:
        return f"VersionLog({self.id!r}, {len(self)} versions)"

    def table(self, titles: Sequence[str] = _TITLES) -> tuple[list[str], list[list[str]]]:
        """The titles and the cells of those columns in which some version has something.

        Args:
            titles: of all columns.
        """
        rows = [entry.cells() for entry in self]
        used = [n for n in range(len(titles)) if n == 0 or any(row[n] for row in rows)]
        return [titles[n] for n in used], [[row[n] for n in used] for row in rows]

    def __str__(self) -> str:
        titles, rows = self.table()
        lines = in_columns([titles, *rows], [n for n, title in enumerate(titles) if title in RIGHT])
        return "\n".join(
            [*lines, *([f"and {count_of(self.left_out, 'older version')}"] if self.left_out else [])]
        )


def log_of(store: Store, id: str, limit: int | None = None) -> VersionLog:
    """The log of an id, as `Storage.log` describes it."""
    most = None if limit is None else as_int("limit", limit, low=0)

    tags: dict[tuple[str | None, str | None], list[str]] = {}
    for tag, entry in moves_of(store, id, []).items():
        tags.setdefault((entry.version, entry.fingerprint), []).append(tag)
    damaged: dict[str, CorruptError] = {}
    some = None if most is None else recent(store, id, most)
    if some is not None:
        found, count = {one.version: one for one in some[0]}, some[1]
        kept = [*found]
    else:
        found, damaged = Sharing(store, id).outlines()
        if not found and not damaged:
            raise store.not_published(id)
        kept = [*reversed(in_time(found)), *sorted(damaged, key=natural)][:most]
        count = len(found) + len(damaged)

    def entry_of(version: str) -> LogEntry:
        if version in damaged:
            return LogEntry(version, problem=str(damaged[version]))
        one = found[version]
        return LogEntry(
            version=version,
            parents=tuple(piece.version for piece in one.parents.pieces if isinstance(piece, Parent)),
            rows=one.num_rows,
            added=one.num_rows - one.parents[-1].rows if one.parents else None,
            nbytes=one.nbytes,
            created=one.created,
            fingerprint=one.fingerprint,
            build=one.build,
            tags=tuple(tags.get((version, one.fingerprint), ())),
            lineage=Lineage.of(one.lineage),
        )

    return VersionLog(id, [*map(entry_of, kept)], count - len(kept))
