"""The manifests and tags of an id -> a table of what happened, the newest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from ..errors import CorruptError
from ..process.messages import bytes_text, count_of, in_columns, short
from ..process.numbers import as_int
from ..versions.lineage import Lineage, Parent
from ..versions.listed import pieces_of
from ..versions.names import natural
from .contract import Versions
from .graph import in_time, recent
from .sharing import Sharing
from .tags import moves_of

_TITLES = ("version", "parent", "rows", "+rows", "bytes", "when", "who", "tags", "code", "message")
RIGHT = ("rows", "+rows", "bytes")


@dataclass(frozen=True)
class LogEntry:
    """One version.

    Attributes:
        version: its name.
        parents: the versions that it was made from, the direct one last; of many, only the last ones.
        rows: how many it has; None if its manifest is damaged. `added`: how many more than its parent; None
            if it has none.
        nbytes: bytes of its files.
        created: when, in UTC.
        fingerprint: of its rows; `build`: of its files.
        tags: that name it, sorted.
        lineage: how it was made, as far as it says.
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

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self._entries)

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


def log_of(store: Versions, id: str, limit: int | None = None) -> VersionLog:
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
            store.manifest(id, "latest")  # its error lists what is published
        kept, count = (
            [*reversed(in_time(found)), *sorted(damaged, key=natural)][:most],
            len(found) + len(damaged),
        )

    def entry_of(version: str) -> LogEntry:
        if version in damaged:
            return LogEntry(version, problem=str(damaged[version]))
        one = found[version]
        return LogEntry(
            version=version,
            parents=tuple(piece.version for piece in pieces_of(one.parents) if isinstance(piece, Parent)),
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
