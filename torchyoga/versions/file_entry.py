"""What a manifest names: the data files of its version, and lists of files that versions share.

A version that grew writes little besides its rows.
A manifest names the last few files and parents itself, and all before them by lists, which are files of the
version that wrote them and are shared, counted and deleted as those with rows are. Small lists are written
into larger ones now and then, so that there are few, and each entry is written a few times only. What
counts of a list without reading it (its entries, rows, bytes and checks) stands in the manifest, so a version
is made from another without reading either's lists. They are flat, so no list leads to another.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, NoReturn, TypeVar, overload

from ..process.digests import hexdigest, json_digest
from ..process.lazy import cached_property, np
from ..rows.types import Ints, Json
from .names import SUFFIXES, encoded

T = TypeVar("T")
# When entries are written into lists, as `grouped` takes it.
SIZES = {"files": (4, 64, 1200), "parents": (8, 128, 1024)}
LIST = "list"  # the format and the suffix of these files
MOST_LISTED = 2**16  # entries of one
LARGEST_LIST = 256 * 2**20  # bytes when it is unpacked


def _unread(piece: FileEntry) -> NoReturn:
    raise AssertionError(f"{piece.name} was not given a place to be read from")


class Listed(Sequence[T], Generic[T]):
    """Entries, in order, some of them in lists that are read when an entry is wanted.

    Args:
        pieces: entries, and lists in place of some of them.
        read: the entries of a list.
    """

    __slots__ = ("_read", "_whole", "pieces")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, pieces: Iterable[Any] = (), read: Callable[[Any], Sequence[T]] = _unread) -> None:
        self.pieces = tuple(pieces)
        self._read = read
        self._whole: tuple[T, ...] | None = None

    def with_pieces(self, pieces: Iterable[Any]) -> Listed[T]:
        """Other pieces, whose lists are read in the same way."""
        return Listed(pieces, self._read)

    def with_more(self, more: Iterable[T]) -> Listed[T]:
        """These entries and more behind them."""
        return self.with_pieces((*self.pieces, *more))

    def of_piece(self, piece: Any) -> Sequence[T]:
        """The entries of a list; else the entry itself."""
        return self._read(piece) if _count(piece) else (piece,)

    @property
    def whole(self) -> tuple[T, ...]:
        """All entries."""
        if self._whole is None:
            self._whole = tuple(chain.from_iterable(map(self.of_piece, self.pieces)))
        return self._whole

    def __len__(self) -> int:
        return sum(_count(piece) or 1 for piece in self.pieces)

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...

    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        if at == -1 and self.pieces and not _count(self.pieces[-1]):
            last: T = self.pieces[-1]
            return last
        return self.whole[at]

    def __iter__(self) -> Iterator[T]:
        return iter(self.whole)

    def __reversed__(self) -> Iterator[T]:
        for piece in reversed(self.pieces):  # a list is read when it is come to
            yield from reversed(self.of_piece(piece))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Listed) and self.pieces == other.pieces:
            return True
        return isinstance(other, (Listed, tuple)) and self.whole == tuple(other)

    def __repr__(self) -> str:
        return f"Listed({len(self)} entries in {len(self.pieces)} pieces)"


def _count(piece: object) -> int:
    """The entries of a list; 0 for an entry."""
    found: int = getattr(piece, "num_listed", 0)
    return found


def grouped(pieces: Sequence[object], few: int, some: int, most: int) -> int:
    """The first of the pieces that are to be written into a list together; `len(pieces)` if none are.

    Args:
        pieces: lists, then entries.
        few: entries that stay as they are.
        some: a list of fewer entries takes in those few; then one of fewer than `most` takes in it.
        most: entries of a list that stays for good.
    """
    start = len(pieces)
    while start and not _count(pieces[start - 1]):
        start -= 1
    total = len(pieces) - start
    if total < few:
        return len(pieces)
    for size in (some, most):
        if start and _count(pieces[start - 1]) < size:
            start -= 1
            total += _count(pieces[start])
        if total < size:
            break
    return start


def text_of(id: str, kind: str, entries: Sequence[Json]) -> tuple[bytes, str]:
    """The bytes of a list of entries of an id, and their digest; ValueError if they are too many."""
    plain = json.dumps({"id": id, kind: entries}, sort_keys=True, separators=(",", ":")).encode()
    if len(plain) > LARGEST_LIST:
        raise ValueError(
            f"the deleted rows of {id!r} need more than {LARGEST_LIST} bytes; convert the version first"
        )
    text = zlib.compress(plain, 9)
    return text, hexdigest(text)


def entries_of(piece: FileEntry, text: bytes, id: str, kind: str) -> list[Json]:
    """The entries of a list, as `text_of` wrote them; ValueError if it is another one, or damaged."""
    if hexdigest(text) != piece.index["digest"]:
        raise ValueError("its bytes are not those that its digest was made of")
    unpacked = zlib.decompressobj()
    try:
        plain = unpacked.decompress(text, LARGEST_LIST)
        if not unpacked.eof or unpacked.unused_data:
            raise ValueError(f"it is cut, or larger than {LARGEST_LIST} bytes")
        content = json.loads(plain)
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
    found = content.get(kind) if isinstance(content, dict) and content.get("id") == id else None
    if not isinstance(found, list) or len(found) != piece.num_listed:
        raise ValueError(f"it is no list of {piece.num_listed} {kind} of {id!r:.80}")
    return found


DIGEST = re.compile(r"[0-9a-f]{32}")
_TOKEN = re.compile(r"[0-9a-f]{16}")
# For files of the formats; for a file being written.
_FILE_NAME = re.compile(rf"{_TOKEN.pattern}-[0-9]{{5,}}\.({'|'.join(SUFFIXES)}|part)", re.ASCII)

MOST_DELETED = 2**27  # of all files of a version: their numbers take a gigabyte


@dataclass(frozen=True)
class Deleted:
    """Rows that a file holds and its version leaves out.

    Attributes:
        text: their numbers within the file, as `of_rows` writes them.
        count: how many they are.
        checks: those of all rows of the file, as in `FileEntry`.
    """

    text: str
    count: int
    checks: tuple[tuple[int, int], ...]

    @staticmethod
    def of_rows(rows: Ints, checks: tuple[tuple[int, int], ...]) -> Deleted:
        """These rows of a file; (D,) sorted numbers within it, each once.

        Example:
            >>> Deleted.of_rows(np.array([2, 3, 9]), ()).rows.tolist()
            [2, 3, 9]
        """
        steps = np.diff(rows, prepend=0).astype("<i8")
        text = base64.b64encode(zlib.compress(steps.tobytes())).decode()
        return Deleted(text, len(rows), checks)

    @cached_property
    def rows(self) -> Ints:
        """(D,) their numbers within the file, sorted.

        Raises:
            ValueError: the text does not hold `count` numbers that rise.
        """
        if self.count > MOST_DELETED:
            raise ValueError(f"{self.count} rows of a file are deleted, {MOST_DELETED} may be")
        unpacker = zlib.decompressobj()
        try:
            found = unpacker.decompress(base64.b64decode(self.text, validate=True), 8 * self.count + 1)
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"the numbers of deleted rows are damaged: {error}") from error
        if len(found) != 8 * self.count or unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError(f"there are not {self.count} numbers of deleted rows")
        steps = np.frombuffer(found, "<i8").astype(np.int64)
        # A sum that is exact as float has not wrapped around as int64.
        if not (steps[:1] >= 0).all() or not (steps[1:] > 0).all() or steps.astype(float).sum() >= 2**53:
            raise ValueError("the numbers of deleted rows do not rise")
        return np.cumsum(steps)

    def to_json(self) -> Json:
        """Plain data."""
        return {"rows": self.text, "count": self.count, "checks": [list(check) for check in self.checks]}

    @staticmethod
    def from_json(data: Json) -> Deleted:
        """The rows that `to_json` described; ValueError, TypeError or KeyError if it is not that."""
        checks = tuple((size, crc) for size, crc in data["checks"])
        if not all(type(n) is int and 0 <= n < 2**62 for check in checks for n in check):
            raise ValueError("checks of a whole file must be ints of at least 0")
        if any(crc >= 2**32 for _, crc in checks):
            raise ValueError("a CRC-32 has 32 bits")
        if not isinstance(data["rows"], str) or type(data["count"]) is not int:
            raise TypeError("deleted rows must be text and a count")
        if not 0 < data["count"] <= MOST_DELETED:
            raise ValueError(f"{data['count']!r:.40} rows of a file are deleted, 1 to {MOST_DELETED} may be")
        return Deleted(data["rows"], data["count"], checks)


@dataclass(frozen=True)
class FileEntry:
    """One data file of a version.

    Attributes:
        name: its name in the version's directory.
        format: the name of the format that wrote it, as in `torchyoga.formats.contract`.
        rows: how many rows it holds; `nbytes`: its size.
        index: where the format keeps its table of blocks.
        checks: for each part of each column, the number of bytes and the CRC-32 of all rows of the file,
            whatever the blocks are.
        crc: CRC-32 of the whole file, to check downloads; None if it was not recorded.
        of: the version of the same id in whose folder the file lies; None for the version's own.
        deleted: rows in the file that the version leaves out; `rows` and `checks` are of the others.
        group: the number of the group of columns that it belongs to, as `Manifest.groups` has them.
        written: the schema that it was written with, as `Manifest.written` has them, of which its group shows
            some columns; `checks` are of those. None if it was written with that of its group.
    """

    name: str
    format: str
    rows: int
    nbytes: int
    index: Json
    checks: tuple[tuple[int, int], ...]
    crc: int | None = None
    of: str | None = None
    deleted: Deleted | None = None
    group: int = 0
    written: int | None = None

    @property
    def num_listed(self) -> int:
        """The entries of a list; 0 for a file with rows.

        The rows and the checks of a list are those of its files together; its index has their bytes, how
        many of their rows are deleted, and the digest of the list itself.
        """
        found: int = self.index["entries"] if self.format == LIST else 0
        return found

    @property
    def whole(self) -> FileEntry:
        """The file as it was written: in its own folder, with all of its rows."""
        if self.deleted is None:
            return self if self.of is None else replace(self, of=None)
        rows, checks = self.rows + self.deleted.count, self.deleted.checks
        return replace(self, of=None, deleted=None, rows=rows, checks=checks)

    def place_in(self, version: str) -> tuple[str, str]:
        """The version in whose folder the file of a version lies, and its name there."""
        return self.of or version, self.name

    @property
    def as_own(self) -> FileEntry:
        """The file in the folder of a version that shares it, of a name that no other file there has."""
        if self.of is None:
            return self
        name = json_digest([self.name, self.format, self.nbytes, self.index])[:16]
        return replace(self, of=None, name=f"{name}-00000.{self.name.rpartition('.')[2]}")

    def to_json(self) -> Json:
        """Plain data."""
        found = {**vars(self), "checks": [list(check) for check in self.checks]}
        if self.deleted is not None:
            found["deleted"] = self.deleted.to_json()
        if not self.group:  # as in most versions
            del found["group"]
        return {name: value for name, value in found.items() if value is not None}

    @staticmethod
    def from_json(data: Json) -> FileEntry:
        """The entry that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        numbers = {key: data[key] for key in ("rows", "nbytes")}
        checks = tuple((size, crc) for size, crc in data["checks"])
        optional = [data.get(key, 0) for key in ("crc", "group", "written")]
        every = [*numbers.values(), *(number for check in checks for number in check), *optional]
        if not all(type(number) is int and 0 <= number < 2**62 for number in every):
            raise ValueError(f"counts and sizes must be ints of at least 0, found {numbers!r:.80}")
        if any(crc >= 2**32 for crc in (*(crc for _, crc in checks), data.get("crc", 0))):
            raise ValueError("a CRC-32 has 32 bits")
        if not isinstance(data["name"], str) or not is_data_file(data["name"]):
            raise ValueError(f"not the name of a data file: {data['name']!r:.80}")
        if not isinstance(data["format"], str) or not isinstance(data["index"], dict):
            raise TypeError("format must be a str and index a dict")
        if (data["format"] == LIST) != data["name"].endswith(f".{LIST}"):
            raise ValueError(f"not the name of a file of format {data['format']!r:.20}: {data['name']}")
        if data["format"] == LIST:
            _refuse_forged_list(data)
        of = data.get("of")
        if "of" in data:
            encoded("version", str(of) if isinstance(of, str) else "")  # refuses what no version has
        return FileEntry(
            name=data["name"],
            format=data["format"],
            index=data["index"],
            checks=checks,
            crc=data.get("crc"),
            of=of,
            deleted=Deleted.from_json(data["deleted"]) if "deleted" in data else None,
            group=data.get("group", 0),
            written=data.get("written"),
            **numbers,
        )


def _refuse_forged_list(data: Json) -> None:
    """Raises ValueError or TypeError for a list that no version can have."""
    index = data["index"]
    counts = [index[name] for name in ("entries", "nbytes", "deleted")]
    if not all(type(count) is int and 0 <= count < 2**62 for count in counts):
        raise TypeError(f"not the counts of a list: {counts!r:.80}")
    if not 0 < counts[0] <= MOST_LISTED or "deleted" in data:
        raise ValueError(f"a list has 1 to {MOST_LISTED} entries, found {counts[0]}")
    if not DIGEST.fullmatch(index["digest"]):
        raise ValueError("the digest of a list must be 32 hex digits")


def is_token(build: object) -> bool:
    """True for the token that names a build."""
    return isinstance(build, str) and bool(_TOKEN.fullmatch(build))


def is_data_file(name: str) -> bool:
    """True for a name that data files have; such a name never leads out of its folder."""
    return bool(_FILE_NAME.fullmatch(name))
