"""Two datasets -> which rows were added, removed and changed: `diff`.

Files that both versions have are not read. Their rows are the same ones on both sides, so they cancel,
however often a row occurs. With a key, only the columns of the key are read of them, since a row of another
file could have a key that is in one of them. Other rows are compared by hashes.
"""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from ..errors import SchemaError
from ..process.lazy import cached_property
from ..reading.contract import known_schema, title_of
from ..reading.dataref import DataRef
from ..reading.stream import in_epoch
from ..reading.version_ref import VersionRef
from ..rows import comparing
from ..rows.block import Block, Rows, bounds_of
from ..rows.collector import block_of
from ..rows.schema import Projection, Schema
from ..rows.types import Ints
from ..versions.columns import parts_of
from ..versions.file_entry import FileEntry
from ..versions.manifest import Manifest
from ..views.recoded import Names, joined_names, recoded

PART_ROWS = 2**21  # of both datasets in a part, about: unless a row occurs more often than that
MEMORY_BYTES = 2**26  # that parts keep in memory; more goes to a temporary file
_MOST_BITS = 16
_BYTES, _ROWS = 2**24, 2**16  # of a block, at most; of one row, if it is larger
_RAGGED_BYTES = 2**10  # of a value, where they are not known
_Name: TypeAlias = tuple[object, ...]
Ranges: TypeAlias = Sequence[tuple[int, int]]
Hashes: TypeAlias = comparing.Hashes
_NONE = np.zeros(0, np.int64)
_NAMED = 3  # keys in a message
_SEEN_BITS = 26  # of a key, which show for most other keys that they differ
_SEEN_SHIFT = np.uint64(64 - _SEEN_BITS)


@dataclass(frozen=True, eq=False)
class Diff:
    """Differences between two datasets: the result of `yoga.diff`.

    Attributes:
        added: (A,) numbers of rows of the new one that the old one does not have, ascending.
        removed: (R,) numbers of rows of the old one that the new one does not have.
        changed: (K, 2) numbers of a row of the old and one of the new with the same key and other content, in
            order of the old ones; empty without a key.
        unchanged: how many rows both have.
        schema: what differs in columns; printed, a line for each.
        key: the names of the columns of the key.
        columns: the names of the values that were compared; empty if no rows were.
        lengths: rows of the old and of the new one.
        are_rows_compared: False if the columns differ and there is no key: then all that is known is
            `schema`.
    """

    added: Ints
    removed: Ints
    changed: Ints
    unchanged: int
    schema: comparing.SchemaDiff
    key: tuple[str, ...]
    columns: tuple[str, ...]
    lengths: tuple[int, int]
    are_rows_compared: bool = True

    @property
    def same(self) -> bool:
        """True if both have the same columns, and the same rows as often, in any order."""
        differs = len(self.added) or len(self.removed) or len(self.changed) or self.schema
        return self.are_rows_compared and not differs

    def __str__(self) -> str:
        old, new = self.lengths
        lines = [f"{old:,} rows -> {new:,} rows"]
        if self.are_rows_compared:
            changed = f", {len(self.changed):,} changed" if self.key else ""
            lines[0] += f": {len(self.added):,} added, {len(self.removed):,} removed{changed}, "
            lines[0] += f"{self.unchanged:,} unchanged"
        if self.schema:
            lines += str(self.schema).split("\n")
        if not self.are_rows_compared:
            lines.append(
                "rows were not compared, since their columns differ; pass key= to compare what both have"
            )
        elif not self.schema.is_comparable:
            lines.append(f"compared: {', '.join(self.columns)}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Diff: {str(self).splitlines()[0]}>"


def diff(old: DataRef, new: DataRef, key: str | Sequence[str] | None = None) -> Diff:
    """Which rows of a dataset were added, removed and changed since another one.

    The order of rows does not count, but how often a row occurs does: if the old dataset has a row three
    times and the new one twice, the last of the three is removed. Versions of one fingerprint are not read,
    nor are files that both versions have. Otherwise rows are compared by hashes of 128 bits. At most 2
    million rows are in memory at once, about 300 MB, unless one row occurs more often; the hashes of others,
    24 or 40 bytes a row, are in a temporary file. The numbers of rows that differ come in addition, 8 bytes
    each, up to four times for a moment.

    Args:
        old: any DataRef with a schema; random rows are those of epoch 0 with seed 0.
        new: another one.
        key: the column, or columns, that say which rows belong together, such as an id; each key may occur
            once in each dataset. If the columns of the datasets differ, those that both have are compared.
            Without a key, rows are compared as wholes, and only if the columns are the same. Codes with
            words, such as those of classes, are compared by their words.

    Raises:
        KeyError: a dataset has no column of the key.
        ValueError: a key occurs twice in a dataset; the message names some.
        SchemaError: a column of the key is of another type in the other dataset; or the words of both are
            too many for the integers of a column of codes.
        TypeError: a DataRef does not say what its rows look like; submit it first.
        NotFoundError: a version was overwritten before it was read.
        OSError: the disk for temporary files is full.

    Example:
        >>> old = yoga.from_arrays({"id": np.array([1, 2, 3]), "age": np.array([30, 40, 50])})
        >>> new = yoga.from_arrays({"id": np.array([3, 2, 4]), "age": np.array([50, 41, 60])})
        >>> d = yoga.diff(old, new, key="id")
        >>> d.added, d.removed, d.changed
        (array([2]), array([0]), array([[1, 1]]))
        >>> print(d)
        3 rows -> 3 rows: 1 added, 1 removed, 1 changed, 1 unchanged
        >>> yoga.diff(old, new).added
        array([1, 2])
    """
    for ref in (old, new):
        if not isinstance(ref, DataRef):
            raise TypeError(f"diff compares DataRefs, found a {type(ref).__name__}; fetch or submit it first")
    keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    if key is not None and not keys:
        raise ValueError("key names no column; name one or more, or leave it out")
    first, second = known_schema(old), known_schema(new)
    schema = comparing.schema_diff(first, second)
    names = _compared(first, second, keys)
    known = Diff(_NONE, _NONE, _pairs(_NONE, _NONE), 0, schema, keys, tuple(names), (len(old), len(new)))
    if _are_same_rows(old, new):
        return replace(known, unchanged=len(new))
    mine, theirs = old, new
    if schema.retyped and first is not None and second is not None:
        words = _words_of_both(first, second, schema.retyped)
        mine, theirs = recoded(old, words), recoded(new, words)
        if _codes_change(second, words):
            old, new = mine, theirs  # bytes that both versions have mean other rows in each
    if not schema.is_comparable and not keys:
        return replace(known, columns=(), are_rows_compared=False)
    rest_of_old, rest_of_new, common = apart(old, new, names)
    sides = Side(mine, names, keys, rest_of_old), Side(theirs, names, keys, rest_of_new)
    return _differences(*sides, common, known)


def _compared(old: Schema | None, new: Schema | None, keys: Sequence[str]) -> list[str]:
    """The names of the values that are compared.

    Raises:
        KeyError: a dataset has no column of the key.
        SchemaError: a column of the key is of another type in the other dataset.
    """
    for schema in (old, new):
        if schema is not None and keys:
            Projection.of(schema, keys)
    if old is None or new is None:
        one = old or new
        return [] if one is None else sorted(comparing.values_of(one))
    cut = [Projection.of(schema, keys).schema for schema in (old, new)] if keys else [old, old]
    if comparing.alike(*cut) != sorted(comparing.values_of(cut[0])):
        texts = [schema.exact.replace("\n", "; ") for schema in cut]
        raise SchemaError(
            f"the key is {texts[0]} in the old dataset and {texts[1]} in the new one, so no keys are equal; "
            "convert one of them, or choose another key"
        )
    return comparing.alike(old, new)


def _words_of_both(old: Schema, new: Schema, names: Sequence[str]) -> Names:
    """The words of the codes in some values of two datasets, those of the old one first."""
    columns = {column.name for name in names for column in comparing.values_of(old)[name][1]}
    joined = joined_names([old, new])
    return {name: words for name, words in joined.items() if name in columns}


def _codes_change(schema: Schema, words: Names) -> bool:
    """True if a code stands for another word once the words are these."""
    own = {column.name: column.meaning.words or () for column in schema.columns}
    return any(listed[: len(own[name])] != own[name] for name, listed in words.items())


def _is_version(ref: DataRef) -> TypeGuard[VersionRef]:
    """True for a version with all of its columns."""
    return isinstance(ref, VersionRef) and ref.schema == ref.manifest.schema


def _are_same_rows(old: DataRef, new: DataRef) -> bool:
    """True if two versions, or the same columns of them, have one fingerprint.

    The fingerprints of other DataRefs are made of some rows only, or of code.
    """
    are_versions = isinstance(old, VersionRef) and isinstance(new, VersionRef)
    return are_versions and old.fingerprint == new.fingerprint and old.schema == new.schema


def _differences(left: Side, right: Side, common: Ranges, known: Diff) -> Diff:
    """Two datasets compared: by content, or, if the sides have keys, with the row of the same key.

    Args:
        left: the old dataset; its rows are those in files that it has alone.
        right: the new one.
        common: rows of the new one in files that both have.
        known: what is known without rows.
    """
    keys = left.keys
    added, removed, changed = [_NONE], [_NONE], [_pairs(_NONE, _NONE)]
    unchanged = sum(stop - start for start, stop in common)
    for old, new, shared in dealt(left, right, common):
        groups = grouped(old[:, :2], new[:, :2])
        if keys:
            _refuse_shared(left, old, shared)
            _refuse_shared(right, new, shared)
            firsts, news = groups.starts[:-1], np.diff(groups.starts) - groups.olds
            _refuse_twice(left, old, groups.olds, groups.order, firsts)
            _refuse_twice(right, new, news, groups.order - len(old), firsts + groups.olds)
        found = matched(groups, len(old))
        differs = np.zeros(len(found.old), np.bool_)
        for word in range(3, old.shape[1]):  # of the hash of the row, if there is a key
            differs |= old[found.old, word] != new[found.new, word]
        mine, theirs = _rows(old)[found.old], _rows(new)[found.new]
        changed.append(np.stack([mine[differs], theirs[differs]], axis=1))
        unchanged += len(mine) - len(changed[-1])
        removed.append(_rows(old)[found.removed])
        added.append(_rows(new)[found.added])
    return replace(
        known,
        added=np.sort(np.concatenate(added)),
        removed=np.sort(np.concatenate(removed)),
        changed=_pairs(*np.concatenate(changed).T),
        unchanged=unchanged,
    )


def _refuse_twice(side: Side, words: Hashes, counts: Ints, order: Ints, firsts: Ints) -> None:
    """Raises ValueError if a group has several rows of a dataset.

    Args:
        side: the dataset.
        words: of its rows.
        counts: how many of them each group has.
        order: the places of rows, a group after the other.
        firsts: where those of this dataset begin in each group.
    """
    several = np.flatnonzero(counts > 1)
    if len(several):
        raise _repeated(side, _rows(words[order[firsts[several[:_NAMED]]]]), len(several))


def _rows(words: Hashes) -> Ints:
    """The numbers of rows, of their words."""
    found: Ints = words[:, 2].view(np.int64)
    return found


def _pairs(old: Ints, new: Ints) -> Ints:
    """(K, 2) pairs of rows, in order of the old ones."""
    found = np.stack([old, new], axis=1).astype(np.int64).reshape(-1, 2)
    return found[np.argsort(found[:, 0], kind="stable")]


def _repeated(side: Side, rows: Ints, count: int) -> ValueError:
    """An error that names keys which occur twice in a side, those of some `rows` out of `count`."""
    texts = side.key_texts(np.sort(rows[:_NAMED]))
    more = f" and {count - len(texts):,} more" if count > len(texts) else ""
    named = ", ".join(map(repr, side.keys))
    return ValueError(
        f"the key {named} must be another one in each row, but {', '.join(texts)}{more} occur several times "
        f"in {title_of(side.ref)}; name more columns in key=, or leave it out to compare whole rows"
    )


def _refuse_shared(side: Side, words: Hashes, shared: Hashes) -> None:
    """Raises ValueError if a row of a dataset has the key of a row in files that both have.

    Args:
        side: the dataset.
        words: of its rows in other files.
        shared: of keys of rows in files that both have.
    """
    groups = grouped(words[:, :2], shared[:, :2])
    both = np.flatnonzero((groups.olds > 0) & (groups.olds < np.diff(groups.starts)))
    if len(both):
        firsts = groups.starts[:-1][both[:_NAMED]]
        raise _repeated(side, _rows(words[groups.order[firsts]]), len(both))


def apart(old: DataRef, new: DataRef, names: Collection[str]) -> tuple[Ranges, Ranges, Ranges]:
    """The rows that only the old version has, those that only the new one has, and the new one's in both.

    A row is in both if the files that hold its values are: by their names, which no other build gives, their
    sizes and all their checksums. All rows of anything but whole versions are apart.

    Args:
        old: a dataset.
        new: another one.
        names: the values that count.
    """
    if not _is_version(old) or not _is_version(new):
        return [(0, len(old))], [(0, len(new))], []
    mine, theirs = _pieces(old.manifest, names), _pieces(new.manifest, names)
    common = {name for name, *_ in mine} & {name for name, *_ in theirs}
    return (
        _joined((start, stop) for name, start, stop in mine if name not in common),
        _joined((start, stop) for name, start, stop in theirs if name not in common),
        _joined((start, stop) for name, start, stop in theirs if name in common),
    )


def _pieces(manifest: Manifest, names: Collection[str]) -> list[tuple[frozenset[object], int, int]]:
    """Rows whose values lie in the same files, one after the other: a name of the files, and the rows."""
    if manifest.schema is None:
        return []
    values = comparing.values_of(manifest.schema)
    wanted = {column.name for name in names if name in values for column in values[name][1]}
    groups = [
        (group, [place for place, column in enumerate(group.schema.columns) if column.name in wanted])
        for group in manifest.column_groups
    ]
    groups = [(group, places) for group, places in groups if places] or groups[:1]
    if not groups:
        return []
    starts = np.unique(np.concatenate([group.file_starts for group, _ in groups]))
    found = []
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        held: dict[_Name, list[_Name]] = {}  # by file, and the row in it, the columns
        for group, places in groups:
            number = int(np.searchsorted(group.file_starts, start, side="right")) - 1
            file = group.files[number]
            columns = held.setdefault((*_name(file), start - int(group.file_starts[number])), [])
            columns += [
                (group.schema.columns[at].name, *(file.checks[part] for part in parts_of(group.schema, [at])))
                for at in places
            ]
        name = *((file, tuple(sorted(columns))) for file, columns in held.items()), stop - start
        found.append((frozenset(name), start, stop))
    return found


def _name(file: FileEntry) -> _Name:
    deleted = None if file.deleted is None else file.deleted.text
    return file.name, file.format, file.nbytes, json.dumps(file.index, sort_keys=True), file.crc, deleted


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges, neighbours as one."""
    found: list[tuple[int, int]] = []
    for start, stop in ranges:
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stop))
    return found


@dataclass(frozen=True)
class Side:
    """One of two datasets that are compared.

    Attributes:
        ref: its rows.
        names: of the values that are compared.
        keys: names of the columns that say which rows belong together; empty for whole rows.
        ranges: the rows that are compared, ascending.
    """

    ref: DataRef
    names: Sequence[str]
    keys: Sequence[str]
    ranges: Ranges

    @cached_property
    def _values(self) -> DataRef:
        """The values that are compared; the DataRef itself if these are all."""
        schema = self.ref.schema
        if schema is None or not self.names:
            return self.ref
        of = Projection.of(schema, self.names)
        return self.ref if len(of.columns) == len(schema.columns) else self.ref._projected(of)

    @cached_property
    def _keys(self) -> DataRef:
        """The columns of the key."""
        assert self.ref.schema is not None
        return self.ref._projected(Projection.of(self.ref.schema, self.keys))

    @property
    def num_rows(self) -> int:
        """Rows that are compared."""
        return sum(stop - start for start, stop in self.ranges)

    def words(self) -> Iterator[Hashes]:
        """(N, 3) two words of the hash of each row, and its number.

        With keys (N, 5): two words of the hash of the key, the number, and two of the hash of the row.
        """
        for first, block in blocks_within(self._values, self.ranges):
            hashes, rows = comparing.row_hashes(block), _numbers(first, block)
            parts = [hashes, rows]
            if self.keys:
                keys = block.projected(Projection.of(block.schema, self.keys))
                parts = [comparing.row_hashes(keys), rows, hashes]
            yield np.concatenate(parts, axis=1)

    def words_of_keys(self, ranges: Ranges) -> Iterator[Hashes]:
        """(N, 3) two words of the hash of the key of each row of some ranges, and its number."""
        for first, block in blocks_within(self._keys, ranges) if ranges else ():
            yield np.concatenate([comparing.row_hashes(block), _numbers(first, block)], axis=1)

    def key_texts(self, rows: Ints) -> list[str]:
        """The keys of some rows, for a message."""
        return [f"{row!r:.80}" for row in Rows(block_at(self._keys, rows)).exact()]


def _numbers(first: int, block: Block) -> Hashes:
    """(N, 1) the numbers of the rows of a block, as words."""
    return np.arange(first, first + block.num_rows, dtype=np.uint64)[:, None]


def dealt(old: Side, new: Side, common: Ranges) -> Iterator[tuple[Hashes, Hashes, Hashes]]:
    """The words of the rows of two datasets, and of keys of rows of the new one in files that both have which
    may be those of these rows, part by part: equal rows and equal keys are in the same part."""
    num_rows, keyed = old.num_rows + new.num_rows, bool(old.keys)
    shared = common if keyed and num_rows else []
    seen = np.zeros(2**_SEEN_BITS if shared else 0, np.bool_)
    both, keys = [Parts(5 if keyed else 3, num_rows) for _ in range(2)], Parts(3, num_rows)
    for parts, side in zip(both, (old, new), strict=True):
        for words in side.words():
            parts.append(words)
            if shared:
                seen[words[:, 0] >> _SEEN_SHIFT] = True
    for words in new.words_of_keys(shared):
        keys.append(words[seen[words[:, 0] >> _SEEN_SHIFT]])
    return zip(*both, keys, strict=True)


class Parts:
    """Words of rows of a dataset, dealt to parts by the first bits of the first word, in one temporary file.

    Equal rows are dealt to the same part, whichever dataset they are of, so each part is compared by itself
    and memory is bounded. A chunk is sorted by part and written as one run.

    Args:
        width: words of 64 bits of each row.
        num_rows: of all datasets that are compared, about; it says how many parts there are.
    """

    def __init__(self, width: int, num_rows: int) -> None:
        self._bits = min(_MOST_BITS, max(0, (num_rows - 1) // PART_ROWS).bit_length())
        self._width, self._num_rows = width, 0
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115  # closed with the parts
        weakref.finalize(self, self._file.close)
        self._runs: list[npt.NDArray[np.int64]] = []  # of each chunk, where its rows of each part begin

    def __len__(self) -> int:
        return 1 << self._bits

    def __iter__(self) -> Iterator[Hashes]:
        """The rows of each part (N, width), in the order in which they were added."""
        step = 8 * self._width
        for part in range(len(self)):
            found = [np.empty((0, self._width), np.uint64)]
            for start, stop in (run[part : part + 2].tolist() for run in self._runs):
                self._file.seek(start * step)
                read = self._file.read((stop - start) * step)
                found.append(np.frombuffer(read, np.uint64).reshape(-1, self._width))
            yield np.concatenate(found)

    def append(self, words: Hashes) -> None:
        """Adds rows (N, width).

        Raises:
            OSError: the disk is full.
        """
        counts = np.array([len(words)])
        if self._bits:
            part = (words[:, 0] >> np.uint64(64 - self._bits)).astype(np.uint16)
            words = words[np.argsort(part, kind="stable")]
            counts = np.bincount(part, minlength=len(self))
        self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(words, np.uint64).data.cast("B") if words.size else b"")
        self._runs.append(self._num_rows + bounds_of(counts))
        self._num_rows += len(words)


def grouped(old: Hashes, new: Hashes) -> GroupedRows:
    """The rows of two datasets by their hashes.

    Args:
        old: (N, 2) hashes of the old rows.
        new: (M, 2) of the new ones.

    Example:
        >>> old, new = (np.array([[n, n] for n in numbers], np.uint64) for numbers in ([7, 5], [5, 5]))
        >>> found = grouped(old, new)
        >>> found.order.tolist(), found.starts.tolist(), found.olds.tolist()
        ([1, 2, 3, 0], [0, 3, 4], [1, 1])
    """
    both = np.concatenate([old, new])
    count = len(both)
    order, is_first = _sorted(both)
    starts = np.flatnonzero(is_first)
    olds = np.zeros(0, np.int64)
    if count:
        olds = np.add.reduceat((order < len(old)).astype(np.int64), starts)
    return GroupedRows(order, np.append(starts, count).astype(np.int64), olds)


def matched(groups: GroupedRows, num_old: int) -> Matched:
    """Each row paired with an equal one, as often as both datasets have it; the first ones of each.

    Args:
        groups: of all rows; `num_old` of them are of the old dataset.
        num_old: N.

    Example:
        >>> old, new = (np.array([[n, n] for n in numbers], np.uint64) for numbers in ([7, 5, 5], [5, 8]))
        >>> found = matched(grouped(old, new), 3)
        >>> found.old.tolist(), found.new.tolist(), found.removed.tolist(), found.added.tolist()
        ([1], [0], [0, 2], [1])
    """
    order, starts, olds = groups
    sizes = np.diff(starts)
    rank = np.arange(len(order)) - np.repeat(starts[:-1], sizes)
    num_before = np.repeat(olds, sizes)
    is_old = rank < num_before
    rank -= np.where(is_old, 0, num_before)
    has_partner = rank < np.repeat(np.minimum(olds, sizes - olds), sizes)
    old, new = order[is_old & has_partner], order[~is_old & has_partner] - num_old
    removed, added = order[is_old & ~has_partner], order[~is_old & ~has_partner] - num_old
    return Matched(old, new, np.sort(removed), np.sort(added))


class GroupedRows(NamedTuple):
    """Rows of two datasets, equal ones side by side.

    Attributes:
        order: (N,) places of all rows, those of the old dataset first; in a group they ascend.
        starts: (G + 1,) where each group begins in `order`, and N.
        olds: (G,) how many rows of the old dataset each group has.
    """

    order: Ints
    starts: Ints
    olds: Ints


class Matched(NamedTuple):
    """Rows of two datasets, by their places in each.

    Attributes:
        old: (K,) rows of the old one that are paired with those of the new one, `new` (K,).
        removed: rows of the old one that have no partner; `added`: of the new one.
    """

    old: Ints
    new: Ints
    removed: Ints
    added: Ints


def _sorted(hashes: Hashes) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Places (N,) with equal hashes side by side, ascending among themselves; and which begin a group."""
    order = np.argsort(hashes[:, 1], kind="stable")
    held = hashes[order]
    differs = held[1:] != held[:-1]
    if (differs[:, 0] & ~differs[:, 1]).any():  # hashes of one second word may lie among each other
        order = np.lexsort((hashes[:, 0], hashes[:, 1]))
        held = hashes[order]
        differs = held[1:] != held[:-1]
    return order, np.append(True, differs.any(axis=1))[: len(hashes)]


def block_at(ref: DataRef, rows: Ints) -> Block:
    """Some rows of a DataRef with a schema; of a random one those of epoch 0 with seed 0."""
    return block_of(in_epoch(ref, 0, 0).take(rows), ref.schema)


def blocks_within(ref: DataRef, ranges: Ranges) -> Iterator[tuple[int, Block]]:
    """The rows of some ranges, in order: the first row of each block, and the block."""
    nbytes = ref._row_bytes
    if not nbytes and ref.schema is not None:
        columns = ref.schema.columns
        nbytes = sum(_RAGGED_BYTES if column.is_ragged else column.row_bytes for column in columns)
    step = max(1, min(_ROWS, _BYTES // max(1, nbytes)))
    for start, stop in ranges:
        for first in range(start, stop, step):
            yield first, block_at(ref, np.arange(first, min(first + step, stop)))
