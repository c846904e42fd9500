"""A version: its schema, its files and how many rows each holds; to and from JSON, also in outline.

Note 6. A manifest is read back before it is published, by the code that readers use.
Two lists of what is allowed, one for writing and one for reading, would drift apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from ..errors import CorruptError
from ..process.digests import json_digest
from ..process.lazy import cached_property, later
from ..rows.node import MAX_COLUMNS
from ..rows.schema import Schema
from ..rows.types import Json
from .columns import MOST_GROUPS, ColumnGroup, Keys, fingerprint_of, groups_of, list_of, refuse_unfit
from .file_entry import (
    DIGEST,
    LIST,
    MOST_DELETED,
    SIZES,
    FileEntry,
    Listed,
    entries_of,
    grouped,
    is_data_file,
    is_token,
    text_of,
)
from .lineage import Parent, plain
from .names import encoded

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..rows import statistics as _statistics
    from ..rows.schema import Projection
    from ..rows.statistics import TableStats
else:
    np, _statistics = later("numpy"), later("torchyoga.rows.statistics")

FORMAT_VERSION = 1
LARGEST_MANIFEST = 256 * 2**20  # bytes
# `to_bytes` writes each element of an object or a list on a line of its own: a long text of shorter elements
# is not ours, and would take minutes to parse.
_ANY_ELEMENTS, _ELEMENT_BYTES = 2**16, 4
# Also one without an end, else each quote in it would be tried as the beginning of another.
_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?')
_DAMAGE = ValueError, TypeError, KeyError, AttributeError, RecursionError  # what parsing raises
# Keys are sorted, so every text of `to_bytes` begins like this, also if it was cut.
_BEGIN = re.compile(rb'\{\s*"build":\s*"[0-9a-f]{16}"')


@dataclass(frozen=True)
class FunctionEntry:
    """The function that made a version, as `cacheable` recorded it.

    Attributes:
        code: a digest of its source; None if there was no source.
        salt: is hashed with each argument, so that the digests of two versions cannot be compared.
        arguments: a digest of each argument that does not choose the version, by name.
        parts: a digest of each function, class and constant of its module that it names, by name; None if
            that is not known.
        sources: of each pattern of files that it reads, as `caching.cacheable` records them.
    """

    code: str | None
    salt: str
    arguments: dict[str, str]
    parts: dict[str, str] | None = None
    sources: tuple[Json, ...] = ()

    def to_json(self) -> Json:
        """Plain data."""
        found: Json = {"code": self.code, "salt": self.salt, "arguments": self.arguments}
        optional = {"parts": self.parts, "sources": list(self.sources) or None}
        return {**found, **{name: value for name, value in optional.items() if value is not None}}

    @staticmethod
    def from_json(data: Json) -> FunctionEntry:
        """The entry that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        code, salt, arguments = data["code"], data["salt"], data["arguments"]
        if not all(map(DIGEST.fullmatch, [salt, *arguments.values(), *([] if code is None else [code])])):
            raise ValueError("digests of a function and its arguments must be 32 hex digits")
        parts = data.get("parts")
        if not all(map(DIGEST.fullmatch, (parts or {}).values())):
            raise ValueError("digests of what a function names must be 32 hex digits")
        sources = tuple(data.get("sources", []))
        for one in sources:
            if not all(DIGEST.fullmatch(one[name]) for name in ("pattern", "look", "digest")):
                raise ValueError("not a record of files that a function reads")
        return FunctionEntry(code, salt, arguments, parts, sources)


T = TypeVar("T")  # a FileEntry or a Parent


@dataclass(frozen=True)
class Manifest:
    """A published version.

    Attributes:
        id: which dataset; `version`: which version of it.
        build: a random token, different in each build of the same version.
        created: when, in UTC.
        schema: what a row looks like; None for a dataset without rows, whose schema is unknown.
        fingerprint: a name for the rows.
        files: its data files, in the order of their rows.
        info: what the user keeps with it.
        function: the function that made it, if `cacheable` did.
        parents: versions that it was made from, the direct one last.
        groups: if columns lie in files of their own, the keys of the rows that each group has, by
            `FileEntry.group`; a group of which no column is left has none. Else empty.
        written: schemas that files were written with, by `FileEntry.written`.
        lineage: how it was made, as `caching.lineage` describes it; `stats`: statistics of columns, by name.
    """

    id: str
    version: str
    build: str
    created: str
    schema: Schema | None
    fingerprint: str
    files: Listed[FileEntry] = field(default_factory=Listed)
    info: Json = field(default_factory=dict)
    function: FunctionEntry | None = None
    parents: Listed[Parent] = field(default_factory=Listed)
    groups: tuple[Keys, ...] = ()
    written: tuple[Schema, ...] = ()
    lineage: Json = field(default_factory=dict)
    stats: Json = field(default_factory=dict)

    @cached_property
    def file_starts(self) -> npt.NDArray[np.int64]:
        """(files + 1,) the first row of each file of the first group, and the number of rows."""
        return self.column_groups[0].file_starts if self.column_groups else np.zeros(1, np.int64)

    @cached_property
    def num_rows(self) -> int:
        """Rows in all files of a group."""
        files = self.column_groups[0].files if self.groups else self.files
        return sum(piece.rows for piece in files.pieces)

    @cached_property
    def column_groups(self) -> list[ColumnGroup]:
        """Its columns by the files in which they lie: one group, if it has a schema, until some are added."""
        return [] if self.schema is None else groups_of(self.schema, self.files, self.groups, self.written)

    def group_of(self, entry: FileEntry) -> ColumnGroup:
        """The group whose columns a file has."""
        return next(group for group in self.column_groups if group.number == entry.group)

    @cached_property
    def each_file(self) -> tuple[FileEntry, ...]:
        """The files with rows; each once, though it has columns of several groups."""
        return tuple({(file.of, file.name): file for file in self.files}.values())

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all files."""
        if self.groups:
            return sum(file.nbytes for file in self.each_file)
        pieces = self.files.pieces
        return sum(piece.index["nbytes"] if piece.num_listed else piece.nbytes for piece in pieces)

    @property
    def lists(self) -> tuple[FileEntry, ...]:
        """The lists of its files and of its parents."""
        pieces = (*self.files.pieces, *self.parents.pieces)
        return tuple(piece for piece in pieces if isinstance(piece, FileEntry) and piece.num_listed)

    def is_of_another_build(self, name: str) -> bool:
        """True for the name of a data file that another build of this version has written."""
        return is_data_file(name) and not name.startswith(f"{self.build}-")

    @cached_property
    def own_files(self) -> tuple[FileEntry, ...]:
        """The files in the version's own folder, each once: its lists, then those with rows."""
        rows = (piece for piece in self.files.pieces if not piece.num_listed)
        return tuple({file.name: file for file in (*self.lists, *rows) if file.of is None}.values())

    def shared(self) -> Manifest:
        """This version with its files as another version of the same id names them."""
        return self.with_own(lambda file: replace(file, of=self.version))

    def as_parent(self, is_prefix: bool) -> Parent:
        """This version as one that another is made from, which begins with its rows if it `is_prefix`."""
        return Parent(self.version, self.fingerprint, self.num_rows, is_prefix)

    @property
    def prefixes(self) -> list[tuple[str, int]]:
        """Fingerprint and rows of the parents that it begins with."""
        return [(parent.fingerprint, parent.rows) for parent in self.parents if parent.is_prefix]

    def shares_with(self, other: Manifest) -> bool:
        """True if another version names all files that it has in folders of others."""
        own, theirs = self._places(), other._places().keys()
        new = {place: piece for place, piece in own.items() if place not in theirs}
        if any(piece.num_listed and piece.of is not None for piece in new.values()):
            return False
        left = {place for place, piece in new.items() if piece.of is not None or piece.num_listed}
        shared = self._inside(left) - theirs
        return not shared or shared <= other._inside(theirs - own.keys())

    def _places(self) -> dict[tuple[str, str], FileEntry]:
        """Its lists and the files that are in none, by the version in whose folder they lie and the name."""
        pieces = (*self.lists, *self.files.pieces)
        return {piece.place_in(self.version): piece for piece in pieces}

    def _inside(self, places: Set[tuple[str, str]]) -> set[tuple[str | None, str]]:
        """The data files in pieces of its files that lie there, as `_places` has them."""
        pieces = (piece for piece in self.files.pieces if piece.place_in(self.version) in places)
        return {(file.of, file.name) for piece in pieces for file in self.files.of_piece(piece)}

    def renamed(self, build: str) -> Manifest:
        """This version as another build, with new names for its own files."""
        # Not by their own numbers: files of a build by many have the tokens of several, and so equal ones.
        names = {
            file.name: f"{build}-{number:05d}.{file.name.rpartition('.')[2]}"
            for number, file in enumerate(self.own_files)
        }
        return replace(self.with_own(lambda file: replace(file, name=names[file.name])), build=build)

    def with_own(self, change: Callable[[FileEntry], FileEntry]) -> Manifest:
        """This version with other entries for the files in its own folder, lists among them."""

        def changed(entries: Listed[T]) -> Listed[T]:
            return entries.with_pieces(
                change(piece) if isinstance(piece, FileEntry) and piece.of is None else piece
                for piece in entries.pieces
            )

        return replace(self, files=changed(self.files), parents=changed(self.parents))

    def in_lists(self, write: Callable[[str, bytes], None]) -> Manifest:
        """This version with most of what it shares in lists.

        Args:
            write: writes a new list, by its name.
        """
        numbers = count()

        def listed(entries: Listed[T], pieces: Sequence[Any], kind: str, stay: int) -> list[Any]:
            stop = len(pieces) - stay
            start, most = grouped(pieces[:stop], *SIZES[kind]), SIZES[kind][-1]
            if start >= stop:
                return [*pieces]
            inner: list[Any] = [entry for piece in pieces[start:stop] for entry in entries.of_piece(piece)]
            new: list[FileEntry] = []
            while inner:
                size = most if len(inner) >= 2 * most else len(inner)
                some, inner = inner[:size], inner[size:]
                text, digest = text_of(self.id, kind, [entry.to_json() for entry in some])
                new.append(list_of(some, f"{self.build}-{next(numbers):05}.{LIST}", text, digest))
                known[digest] = some
                write(new[-1].name, text)
            return [*pieces[:start], *new, *pieces[stop:]]

        known: dict[str, Sequence[Any]] = {}

        def reading(entries: Listed[T], pieces: Sequence[Any]) -> Listed[T]:
            return Listed(pieces, lambda list: known.get(list.index["digest"]) or entries.of_piece(list))

        files, parents = self.files, self.parents
        pieces: list[FileEntry] = []
        for number in range(max(1, len(self.groups))):
            some = [piece for piece in files.pieces if piece.group == number]
            own = sum(piece.of is None and not piece.num_listed for piece in some)
            pieces += listed(files, some, "files", own)
        if known:
            return replace(self, files=reading(files, pieces))
        # One or the other, so that no append writes much.
        ways = listed(parents, parents.pieces, "parents", 1)
        return replace(self, parents=reading(parents, ways)) if known else self

    def located(self, read: Callable[[FileEntry], bytes]) -> Manifest:
        """This version with a way to read its lists; as `from_bytes` gives it there is none."""
        if not self.lists:
            return self
        of = replace(self, files=Listed(), parents=Listed())
        files = Listed(self.files.pieces, partial(_files_in, of, read))
        return replace(
            self, files=files, parents=Listed(self.parents.pieces, partial(_parents_in, self.id, read))
        )

    def is_copy_of(self, other: Manifest) -> bool:
        """True for the same rows in the same files of the same build, whatever the names of the files."""

        def unnamed(manifest: Manifest) -> Manifest:
            return replace(
                manifest,
                build="",
                files=Listed(replace(f, name="", crc=None, of=None) for f in manifest.files),
            )

        return self.build == other.build or unnamed(self) == unnamed(other)

    def known_stats(self, of: Projection | None = None) -> TableStats:
        """The statistics that were recorded, of all columns or of some; nothing is read.

        Raises:
            CorruptError: they are damaged, or of other columns.
        """
        assert self.schema is not None
        schema, given = self.schema, self.stats
        if of is not None:
            names = [schema.columns[number].name for number in of.columns]
            schema = of.schema
            given = {
                column.name: given[name]
                for column, name in zip(schema.columns, names, strict=True)
                if name in given
            }
        try:
            return _statistics.TableStatistics.from_json(given, schema, self.num_rows).known()
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise CorruptError(
                f"the statistics in the manifest of {self.id!r} {self.version!r} are damaged: {error}; "
                "ref[:].stats() counts anew"
            ) from error

    def to_bytes(self) -> bytes:
        """The text of `manifest.json`, with its own checksum."""
        content = {
            "torchyoga": FORMAT_VERSION,
            "id": self.id,
            "version": self.version,
            "build": self.build,
            "created": self.created,
            "rows": self.num_rows,
            "fingerprint": self.fingerprint,
            "schema": self.schema.to_json() if self.schema else None,
            "files": [piece.to_json() for piece in self.files.pieces],
            **({"info": self.info} if self.info else {}),
            **({"function": self.function.to_json()} if self.function else {}),
            **({"parents": [piece.to_json() for piece in self.parents.pieces]} if self.parents else {}),
            **({"groups": [list(keys) for keys in self.groups]} if self.groups else {}),
            **({"written": [schema.to_json() for schema in self.written]} if self.written else {}),
            **({"lineage": self.lineage} if self.lineage else {}),
            **({"stats": self.stats} if self.stats else {}),
        }
        content["checksum"] = json_digest(content)
        if self.lists:  # of a long history
            return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
        return json.dumps(content, indent=1, sort_keys=True).encode()

    @staticmethod
    def from_bytes(text: bytes) -> Manifest:
        """The manifest that `to_bytes` wrote.

        Raises:
            CorruptError: it is cut, changed, of a later format, or not a manifest at all.
        """
        with damage_of_manifest():
            content = content_of(text)
            texts = {key: content[key] for key in ("id", "version", "build", "created", "fingerprint")}
            if not all(isinstance(value, str) and value.encode() for value in texts.values()):
                raise TypeError("id, version, build, created and fingerprint must be text")
            if not is_token(texts["build"]):
                raise ValueError(f"not the name of a build: {texts['build']!r:.80}")
            schema = None if content["schema"] is None else Schema.from_json(content["schema"])
            manifest = Manifest(
                schema=schema,
                files=Listed(map(FileEntry.from_json, content["files"])),
                info=plain(content.get("info", {})),
                function=FunctionEntry.from_json(content["function"]) if "function" in content else None,
                parents=Listed(map(_parent_or_list, content.get("parents", []))),
                groups=_groups_in(content, schema),
                written=tuple(map(Schema.from_json, content.get("written", []))),
                lineage=_object_in(content, "lineage"),
                stats=_object_in(content, "stats"),
                **texts,
            )
            if manifest.num_rows != content["rows"] or manifest.num_rows >= 2**62:
                raise ValueError(f"its files hold {manifest.num_rows} rows, it says {content['rows']!r:.40}")
            for group in manifest.column_groups[1:]:
                if sum(piece.rows for piece in group.files.pieces) != manifest.num_rows:
                    raise ValueError(f"a group of its columns does not have {manifest.num_rows} rows")
            if manifest.files and schema is None:
                raise ValueError("it has files but no schema")
            _refuse_forged(manifest)
            if manifest.fingerprint != fingerprint_of(schema, manifest.files.pieces, manifest.groups):
                raise ValueError("its fingerprint is not that of its schema and the checks of its files")
            return manifest


@contextmanager
def damage_of_manifest() -> Iterator[None]:
    """Whatever parsing a manifest raises is a CorruptError."""
    try:
        yield
    except _DAMAGE as error:
        raise CorruptError(f"the manifest is damaged: {error}") from error


@contextmanager
def damage_of(piece: FileEntry) -> Iterator[None]:
    """Whatever reading a list raises is a CorruptError, unless the store cannot be reached."""
    try:
        yield
    except (CorruptError, *_DAMAGE, FileNotFoundError) as error:
        of = "" if piece.of is None else f" of {piece.of!r}"
        raise CorruptError(f"{piece.name}{of}, a list of files or versions, is damaged: {error}") from error


def _files_in(of: Manifest, read: Callable[[FileEntry], bytes], piece: FileEntry) -> Sequence[FileEntry]:
    """The files of a list of a version; CorruptError if it is damaged or missing."""
    with damage_of(piece):
        found = [*map(FileEntry.from_json, entries_of(piece, read(piece), of.id, "files"))]
        _refuse_other_list(piece, found, of)
        return found


def _parents_in(id: str, read: Callable[[FileEntry], bytes], piece: FileEntry) -> Sequence[Parent]:
    """The parents of a list; CorruptError if it is damaged or missing."""
    with damage_of(piece):
        return [*map(Parent.from_json, entries_of(piece, read(piece), id, "parents"))]


def _refuse_other_list(piece: FileEntry, files: Sequence[FileEntry], of: Manifest) -> None:
    """Raises ValueError unless a list says of its files what the manifest says of it."""
    if any(file.num_listed or file.of is None for file in files):
        raise ValueError("it names lists, or files in no folder")
    found = list_of(files, piece.name, b"", piece.index["digest"])
    if replace(found, nbytes=piece.nbytes, crc=piece.crc, of=piece.of) != piece:
        raise ValueError("its files do not have the rows and bytes that the manifest says")
    _refuse_forged(replace(of, files=Listed(files)))


def content_of(text: bytes, refuse_twice: bool = True) -> Json:
    """The data of a manifest, of a format that is known here, and as its checksum says; else ValueError.

    It takes half as long without looking for keys that are there twice.
    """
    content = _plain_data(text, _object if refuse_twice else None)
    if not isinstance(content, dict) or type(content.get("torchyoga")) is not int:
        raise ValueError("it is not a manifest of torchyoga")
    if content["torchyoga"] != FORMAT_VERSION:
        raise ValueError(
            f"it is of format version {content['torchyoga']!r:.20}, this torchyoga reads {FORMAT_VERSION}; "
            "update torchyoga"
        )
    if content.pop("checksum", None) != json_digest(content):
        raise ValueError("its checksum does not match its content")
    return content


def _object_in(content: Json, name: str) -> Json:
    """An object of the manifest that may be left out; TypeError if it is something else."""
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise TypeError(f"{name} must be an object, found a {type(found).__name__}")
    return found


def _groups_in(content: Json, schema: Schema | None) -> tuple[Keys, ...]:
    """The keys of each group of columns; ValueError unless all of them together are those of the rows."""
    given = content.get("groups", [])
    if not all(isinstance(keys, list) and all(type(key) in (str, int) for key in keys) for keys in given):
        raise TypeError("groups must be lists of keys")
    found, every = tuple(map(tuple, given)), [key for keys in given for key in keys]
    keys = schema.tree.keys if schema is not None and schema.tree.kind == "dict" else ()
    is_sound = keys and sorted(map(repr, every)) == sorted(map(repr, keys))
    if found and not (is_sound and len(found) <= MOST_GROUPS and len(keys) <= MAX_COLUMNS):
        raise ValueError(f"its {len(found)} groups do not have each key of its rows once: {every!r:.200}")
    return found


def _refuse_forged(manifest: Manifest) -> None:
    """Raises ValueError for shared files or deleted rows that the writer of a manifest cannot have meant."""
    files = manifest.files.pieces
    if any(file.name.startswith(f"{manifest.build}-") for file in files if file.of is not None):
        raise ValueError("it says that files of its own build are of another version")
    reduced = [file for file in files if file.deleted is not None]
    listed = sum(file.index["deleted"] for file in files if file.num_listed)
    if listed + sum(file.deleted.count for file in reduced if file.deleted) > MOST_DELETED:
        raise ValueError(f"more than {MOST_DELETED} of its rows are deleted")
    for file in reduced:
        assert file.deleted is not None
        if file.rows < 1 or int(file.deleted.rows[-1]) >= file.rows + file.deleted.count:
            raise ValueError(f"{file.name} does not have the rows that are deleted")
    groups = manifest.column_groups
    if {file.group for file in files} - {group.number for group in groups}:
        raise ValueError("it has files of no group of columns")
    for group in groups:
        some = group.files.pieces
        if len({file.name for file in some}) < len(some):
            raise ValueError("it names a file twice")
        refuse_unfit(group)


def _plain_data(text: bytes, hook: Callable[[list[tuple[str, object]]], Json] | None) -> object:
    """The data of a JSON text; ValueError if a key appears twice, there are too many elements, or it is not
    JSON."""
    most = max(_ANY_ELEMENTS, len(text) // _ELEMENT_BYTES)
    # Commas and brackets inside texts do not count; texts are removed only if there seem to be too many
    # elements.
    if _elements(text) > most and (elements := _elements(_TEXTS.sub(b"", text))) > most:
        raise ValueError(f"it has {elements} elements in {len(text)} bytes")
    return json.loads(text.decode(), object_pairs_hook=hook, parse_constant=_refuse_constant)


def _elements(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _object(pairs: list[tuple[str, object]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def is_like_manifest(text: bytes) -> bool:
    """True for a manifest, intact, cut or lost in a crash; False for a foreign file of that name."""
    return bool(not text.strip(b"\0 \r\n") or _BEGIN.match(text) or re.search(rb'"torchyoga":\s*[0-9]', text))


class DataFile(NamedTuple):
    """A data file, or a list of some: its name, the version in whose folder it lies, and its size."""

    name: str
    version: str
    nbytes: int


@dataclass(frozen=True)
class Outline:
    """A version among others of its id.

    Attributes:
        version: its name.
        fingerprint: of its rows; `build`: of its files.
        created: when, in UTC.
        parents: versions that it was made from, the direct one last.
        files: its data files and lists, but for the data files of lists.
        lists: of those, the lists of data files.
        num_rows, nbytes: of all data files.
        lineage: how it was made, as its manifest says it.
        id: which dataset.
    """

    version: str
    fingerprint: str
    build: str
    created: str
    parents: Listed[Parent] = field(default_factory=Listed)
    files: tuple[DataFile, ...] = ()
    lists: tuple[FileEntry, ...] = ()
    num_rows: int = 0
    nbytes: int = 0
    lineage: Json = field(default_factory=dict)
    id: str = ""

    def located(self, read: Callable[[FileEntry], bytes]) -> Outline:
        """This outline with a way to read its lists."""
        return replace(self, parents=Listed(self.parents.pieces, partial(_parents_in, self.id, read)))

    def inside(self, read: Callable[[FileEntry], bytes], entry: FileEntry) -> tuple[DataFile, ...]:
        """The data files of one of its lists; CorruptError if that is damaged or missing."""
        with damage_of(entry):
            found = entries_of(entry, read(entry), self.id, "files")
            return tuple(_file(data["name"], data["of"], data["nbytes"]) for data in found)

    @staticmethod
    def from_bytes(text: bytes) -> Outline:
        """The outline of the manifest that `Manifest.to_bytes` wrote; takes a third of the time.

        Raises:
            CorruptError: it is cut, changed, of a later format, or not a manifest at all.
        """
        with damage_of_manifest():
            content = content_of(text, refuse_twice=False)  # for readers do
            texts = {key: content[key] for key in ("id", "version", "build", "created", "fingerprint")}
            lineage, num_rows = content.get("lineage", {}), content["rows"]
            data, ways = content["files"], content.get("parents", [])
            if not all(isinstance(text, str) for text in texts.values()) or not isinstance(lineage, dict):
                raise TypeError("id, version, build, created and fingerprint must be text, lineage an object")
            if type(num_rows) is not int or not 0 <= num_rows < 2**62:
                raise ValueError(f"not a number of rows: {num_rows!r:.40}")
            parents: Listed[Parent] = Listed(map(_parent_or_list, ways))
            lists = [_list(piece) for piece in data if piece["format"] == LIST]
            listed = [*lists, *(piece for piece in parents.pieces if isinstance(piece, FileEntry))]
            files = [
                (file["name"], file.get("of"), file["nbytes"]) for file in data if file["format"] != LIST
            ]
            return Outline(
                parents=parents,
                files=tuple(
                    _file(name, texts["version"] if of is None else of, nbytes)
                    for name, of, nbytes in (*((list.name, list.of, list.nbytes) for list in listed), *files)
                ),
                lists=tuple(lists),
                num_rows=num_rows,
                nbytes=sum(nbytes for *_, nbytes in {*files}) + sum(list.index["nbytes"] for list in lists),
                lineage=lineage,
                **texts,
            )


def _list(data: Json) -> FileEntry:
    return _list_in(json.dumps(data))


# Versions that grew from each other have the same ones.
@lru_cache(2**13)
def _list_in(text: str) -> FileEntry:
    found = FileEntry.from_json(json.loads(text))
    if not found.num_listed:
        raise ValueError(f"not a list: {found.name}")
    return found


# Versions that grew from each other have the same ones.
@lru_cache(2**16, typed=True)
def _file(name: object, version: object, nbytes: object) -> DataFile:
    if not (isinstance(name, str) and isinstance(version, str)):
        raise TypeError("the name of a file and of its version must be text")
    if not is_data_file(name):
        raise ValueError(f"not the name of a data file: {name!r:.80}")
    encoded("version", version)  # refuses what no version has
    if type(nbytes) is not int or not 0 <= nbytes < 2**62:
        raise ValueError(f"not the size of a file: {nbytes!r:.40}")
    return DataFile(name, version, nbytes)


def _parent_or_list(data: Json) -> Parent | FileEntry:
    if "format" in data:
        return _list(data)
    return Parent.from_json(data) if "columns" in data else _parent(**data)


@lru_cache(2**16, typed=True)
def _parent(**data: object) -> Parent:
    return Parent.from_json(data)
