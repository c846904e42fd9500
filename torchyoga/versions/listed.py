"""Entries of a manifest, of which many lie in lists: files that the versions of an id share.

A version that grew writes little besides its rows.
A manifest names the last few files and parents itself, and all before them by lists, which are files of the
version that wrote them and are shared, counted and deleted as those with rows are. Small lists are written
into larger ones now and then, so that there are few, and each entry is written a few times only. What
counts of a list without reading it (its entries, rows, bytes and checks) stands in the manifest, so a version
is made from another without reading either's lists. They are flat, so no list leads to another.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar, overload

from ..process.digests import hexdigest
from ..rows.types import Json

T = TypeVar("T")
# When entries are written into lists, as `grouped` takes it.
SIZES = {"files": (4, 64, 1200), "parents": (8, 128, 1024)}
LIST = "list"  # the format and the suffix of these files
MOST_LISTED = 2**16  # entries of one
LARGEST_LIST = 256 * 2**20  # bytes when it is unpacked


class Listed(Sequence[T], Generic[T]):
    """Entries, in order, some of them in lists that are read when an entry is wanted.

    Args:
        pieces: entries, and lists in place of some of them.
        read: the entries of a list.
    """

    __slots__ = ("_read", "_whole", "pieces")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, pieces: Sequence[Any], read: Callable[[Any], Sequence[T]]) -> None:
        self.pieces = tuple(pieces)
        self._read = read
        self._whole: tuple[T, ...] | None = None

    def with_pieces(self, pieces: Sequence[Any]) -> Listed[T]:
        """Other pieces, whose lists are read in the same way."""
        return Listed(pieces, self._read)

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


def pieces_of(entries: Sequence[T]) -> tuple[Any, ...]:
    """Entries, and lists in place of some of them."""
    return entries.pieces if isinstance(entries, Listed) else tuple(entries)


def with_more(entries: Sequence[T], more: Sequence[T]) -> Sequence[T]:
    """Entries and more behind them."""
    pieces = (*pieces_of(entries), *more)
    return entries.with_pieces(pieces) if isinstance(entries, Listed) else pieces


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


def entries_of(text: bytes, digest: str, id: str, kind: str, count: int) -> list[Json]:
    """The entries of a list, as `text_of` wrote them; ValueError if it is another one, or damaged."""
    if hexdigest(text) != digest:
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
    if not isinstance(found, list) or len(found) != count:
        raise ValueError(f"it is no list of {count} {kind} of {id!r:.80}")
    return found
