"""What a version is: its schema, its files and how many rows each holds; to and from JSON.

Note 6. A manifest is read back before it is published, by the code that readers use.
Two lists of what is allowed, one for writing and one for reading, would drift apart.

Note 8. The fingerprint binds the schema to the rows.
It is made of both, so opening the manifest shows whether a type or a shape was changed. The CRCs of all files
are combined together, one digit of the lengths that follow at a time. A conversion keeps the fingerprint, so
references that were pickled before it still find their rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from ..errors import CorruptError
from ..files.checksum import combine_crc32, crc32_of_all
from ..process.digests import hexdigest
from ..process.later import later
from ..process.lazy import cached_property
from ..rows.schema import FEATURES, Schema
from ..rows.types import Json
from .deleted import MOST_DELETED, Deleted
from .info import plain
from .names import SUFFIXES, encoded
from .parent import Parent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..rows.projection import Projection
    from ..rows.stats import statistics as _statistics
    from ..rows.stats.column_stats import TableStats
else:
    np, _statistics = later("numpy"), later("torchyoga.rows.stats.statistics")

__all__ = [
    "DELETED_ROWS",
    "FORMAT_VERSION",
    "LARGEST_MANIFEST",
    "SHARED_FILES",
    "FileEntry",
    "FunctionEntry",
    "Manifest",
    "content_of",
    "digest",
    "fingerprint_of",
    "is_data_file",
    "is_like_manifest",
    "is_token",
    "telling_damage",
]

SHARED_FILES, DELETED_ROWS = "shared-files", "deleted-rows"  # what a version may require besides its schema
FORMAT_VERSION = 2  # the latest; a version whose rows need nothing of it is of format 1
LARGEST_MANIFEST = 256 * 2**20  # bytes
# `to_bytes` writes each element of an object or a list on a line of its own: a long text of shorter elements
# is not ours, and would take minutes to parse.
_ANY_ELEMENTS, _ELEMENT_BYTES = 2**16, 4
_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_DIGEST = re.compile(r"[0-9a-f]{32}")
_MARK = re.compile(r"[0-9a-f]{8}")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_FEW = 16  # checks that are combined in less time than it takes to load NumPy
# For files of the formats; for a file being written; for the object that a store keeps next to replaced
# files.
_FILE_NAME = re.compile(rf"{_TOKEN.pattern}-[0-9]{{5,}}\.({'|'.join(SUFFIXES)}|part|replaced)", re.ASCII)
# Keys are sorted, so every text of `to_bytes` begins like this, also if it was cut.
_BEGIN = re.compile(rb'\{\s*"build":\s*"[0-9a-f]{16}"')


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

    @property
    def whole(self) -> FileEntry:
        """The file as it was written: in its own folder, with all of its rows."""
        if self.of is None and self.deleted is None:
            return self
        if self.deleted is None:
            return replace(self, of=None)
        rows, checks = self.rows + self.deleted.count, self.deleted.checks
        return replace(self, of=None, deleted=None, rows=rows, checks=checks)

    def to_json(self) -> Json:
        """Plain data."""
        found = {**vars(self), "checks": [list(check) for check in self.checks]}
        if self.deleted is not None:
            found["deleted"] = self.deleted.to_json()
        return {name: value for name, value in found.items() if value is not None}

    @staticmethod
    def from_json(data: Json) -> FileEntry:
        """The entry that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        numbers = {key: data[key] for key in ("rows", "nbytes")}
        checks = tuple((size, crc) for size, crc in data["checks"])
        every = [*numbers.values(), *(number for check in checks for number in check), data.get("crc", 0)]
        if not all(type(number) is int and 0 <= number < 2**62 for number in every):
            raise ValueError(f"counts and sizes must be ints of at least 0, found {numbers!r:.80}")
        if any(crc >= 2**32 for crc in (*(crc for _, crc in checks), data.get("crc", 0))):
            raise ValueError("a CRC-32 has 32 bits")
        if not isinstance(data["name"], str) or not is_data_file(data["name"]):
            raise ValueError(f"not the name of a data file: {data['name']!r:.80}")
        if not isinstance(data["format"], str) or not isinstance(data["index"], dict):
            raise TypeError("format must be a str and index a dict")
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
            **numbers,
        )


@dataclass(frozen=True)
class FunctionEntry:
    """The function that made a version, as `cacheable` recorded it.

    Attributes:
        code: a digest of its source; None if there was no source.
        salt: is hashed with each argument, so that the digests of two versions cannot be compared.
        arguments: a digest of each argument that does not choose the version, by name.
        reached: a digest of each function, class and constant that its code reaches, by name; None if that
            was not recorded.
        packages: versions of the packages that its code uses, by name.
        sources: of each pattern of files that it reads, as `caching.source_files` records them.
    """

    code: str | None
    salt: str
    arguments: dict[str, str]
    reached: dict[str, str] | None = None
    packages: dict[str, str] = field(default_factory=dict)
    sources: tuple[Json, ...] = ()

    def to_json(self) -> Json:
        """Plain data."""
        found: Json = {"code": self.code, "salt": self.salt, "arguments": self.arguments}
        if self.reached is not None:
            found["reached"] = self.reached
        optional = {"packages": self.packages, "sources": list(self.sources)}
        return {**found, **{name: value for name, value in optional.items() if value}}

    @staticmethod
    def from_json(data: Json) -> FunctionEntry:
        """The entry that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        code, salt, arguments = data["code"], data["salt"], data["arguments"]
        if not all(map(_DIGEST.fullmatch, [salt, *arguments.values(), *([] if code is None else [code])])):
            raise ValueError("digests of a function and its arguments must be 32 hex digits")
        reached, packages = data.get("reached"), data.get("packages", {})
        if not all(map(_DIGEST.fullmatch, (reached or {}).values())):
            raise ValueError("digests of what a function reaches must be 32 hex digits")
        if not all(isinstance(text, str) for text in packages.values()):
            raise TypeError("versions of packages must be text")
        sources = tuple(data.get("sources", []))
        for one in sources:
            digests = [one[name] for name in ("pattern", "look", "digest")]
            marks = one["marks"]
            if not (all(map(_DIGEST.fullmatch, digests)) and all(map(_MARK.fullmatch, marks))):
                raise ValueError("not a record of files that a function reads")
            if type(one["count"]) is not int or not isinstance(marks, list):
                raise TypeError("not a record of files that a function reads")
        return FunctionEntry(code, salt, arguments, reached, packages, sources)


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
        lineage: how it was made, as `caching.lineage` describes it; `stats`: statistics of columns, by name.
    """

    id: str
    version: str
    build: str
    created: str
    schema: Schema | None
    fingerprint: str
    files: tuple[FileEntry, ...] = field(default=())
    info: Json = field(default_factory=dict)
    function: FunctionEntry | None = None
    parents: tuple[Parent, ...] = ()
    lineage: Json = field(default_factory=dict)
    stats: Json = field(default_factory=dict)

    @cached_property
    def file_starts(self) -> npt.NDArray[np.int64]:
        """(files + 1,) the first row of each file, and the number of rows."""
        return np.concatenate([[0], np.cumsum([file.rows for file in self.files])]).astype(np.int64)

    @cached_property
    def num_rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

    def is_of_another_build(self, name: str) -> bool:
        """True for the name of a data file that another build of this version has written."""
        return is_data_file(name) and not name.startswith(f"{self.build}-")

    @cached_property
    def own_files(self) -> tuple[FileEntry, ...]:
        """The files in the version's own folder."""
        return tuple(file for file in self.files if file.of is None)

    @property
    def requires(self) -> tuple[str, ...]:
        """What a reader must know to read its rows rightly, besides format 1."""
        found = self.schema.requires if self.schema else ()
        found += (SHARED_FILES,) if any(file.of is not None for file in self.files) else ()
        return found + ((DELETED_ROWS,) if any(file.deleted for file in self.files) else ())

    def shared_with(self, version: str) -> Manifest:
        """The files that lie in the folder of another version, as if they were all of that version."""
        files = tuple(file.whole for file in self.files if file.of == version)
        return replace(self, version=version, files=files)

    def on_its_own(self) -> Manifest:
        """This version with all files in its own folder, numbered if some are shared."""
        if len(self.own_files) == len(self.files):
            return self
        files = (
            replace(file, of=None, name=f"{self.build}-{number:05}.{file.name.rpartition('.')[2]}")
            for number, file in enumerate(self.files)
        )
        return replace(self, files=tuple(files))

    def named_anew(self, build: str) -> Manifest:
        """This version as another build, with new names for its own files."""
        # Not by their own numbers: files of a build by many have the tokens of several, and so equal ones.
        files = (
            replace(file, name=f"{build}-{number:05d}.{file.name.rpartition('.')[2]}")
            if file.of is None
            else file
            for number, file in enumerate(self.files)
        )
        return replace(self, build=build, files=tuple(files))

    def is_copy_of(self, other: Manifest) -> bool:
        """True for the same rows in the same files of the same build, whatever the names of the files."""

        def unnamed(manifest: Manifest) -> Manifest:
            return replace(
                manifest,
                build="",
                files=tuple(replace(f, name="", crc=None, of=None) for f in manifest.files),
            )

        return self.build == other.build or unnamed(self) == unnamed(other)

    def known_stats(self, of: Projection | None = None) -> TableStats:
        """The statistics that were recorded, of all columns or of some; nothing is read.

        Raises:
            CorruptError: they are not those of such columns.
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
        requires = self.requires
        content = {
            "torchyoga": FORMAT_VERSION if requires else 1,
            **({"requires": list(requires)} if requires else {}),
            "id": self.id,
            "version": self.version,
            "build": self.build,
            "created": self.created,
            "rows": self.num_rows,
            "fingerprint": self.fingerprint,
            "schema": self.schema.to_json() if self.schema else None,
            "files": [file.to_json() for file in self.files],
            **({"info": self.info} if self.info else {}),
            **({"function": self.function.to_json()} if self.function else {}),
            **({"parents": [parent.to_json() for parent in self.parents]} if self.parents else {}),
            **({"lineage": self.lineage} if self.lineage else {}),
            **({"stats": self.stats} if self.stats else {}),
        }
        return json.dumps({**content, "checksum": digest(content)}, indent=1, sort_keys=True).encode()

    @staticmethod
    def from_bytes(text: bytes) -> Manifest:
        """The manifest that `to_bytes` wrote.

        Raises:
            CorruptError: it is cut, changed, of a later format, or not a manifest at all.
        """
        with telling_damage():
            content = content_of(text)
            texts = {key: content[key] for key in ("id", "version", "build", "created", "fingerprint")}
            if not all(isinstance(value, str) and value.encode() for value in texts.values()):
                raise TypeError("id, version, build, created and fingerprint must be text")
            if not is_token(texts["build"]):
                raise ValueError(f"not the name of a build: {texts['build']!r:.80}")
            schema = None if content["schema"] is None else Schema.from_json(content["schema"])
            manifest = Manifest(
                schema=schema,
                files=tuple(map(FileEntry.from_json, content["files"])),
                info=plain(content.get("info", {})),
                function=FunctionEntry.from_json(content["function"]) if "function" in content else None,
                parents=tuple(map(Parent.from_json, content.get("parents", []))),
                lineage=_object_in(content, "lineage"),
                stats=_object_in(content, "stats"),
                **texts,
            )
            if manifest.num_rows != content["rows"] or manifest.num_rows >= 2**62:
                raise ValueError(f"its files hold {manifest.num_rows} rows, it says {content['rows']!r:.40}")
            if manifest.files and schema is None:
                raise ValueError("it has files but no schema")
            if len({file.name for file in manifest.files}) < len(manifest.files):
                raise ValueError("it names a file twice")
            _refuse_forged(manifest, content.get("requires", []))
            if schema is not None:
                _refuse_other_sizes(schema, manifest.files)
                _refuse_other_sizes(schema, [file.whole for file in manifest.files if file.deleted])
            if manifest.fingerprint != fingerprint_of(schema, manifest.files):
                raise ValueError("its fingerprint is not that of its schema and the checks of its files")
            return manifest


@contextmanager
def telling_damage() -> Iterator[None]:
    """Whatever parsing a manifest raises is a CorruptError."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError(f"the manifest is damaged: {error}") from error


def content_of(text: bytes, refuse_twice: bool = True) -> Json:
    """The data of a manifest, of a format that is known here, and as its checksum says; else ValueError.

    It takes half as long without looking for keys that are there twice.
    """
    content = _plain_data(text, _object if refuse_twice else None)
    if not isinstance(content, dict) or type(content.get("torchyoga")) is not int:
        raise ValueError("it is not a manifest of torchyoga")
    if not 1 <= content["torchyoga"] <= FORMAT_VERSION:
        raise ValueError(
            f"it is of format version {content['torchyoga']!r:.20}, this torchyoga reads 1 to "
            f"{FORMAT_VERSION}; update torchyoga"
        )
    _refuse_unknown(content.get("requires", []))
    if content.pop("checksum", None) != digest(content):
        raise ValueError("its checksum does not match its content")
    return content


def _object_in(content: Json, name: str) -> Json:
    """An object of the manifest that may be left out; TypeError if it is something else."""
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise TypeError(f"{name} must be an object, found a {type(found).__name__}")
    return found


def _refuse_unknown(requires: object) -> None:
    """Raises ValueError unless this reader knows all that a version requires."""
    known = {*FEATURES, SHARED_FILES, DELETED_ROWS}
    unknown = set(map(str, requires)) - known if isinstance(requires, list) else {str(requires)}
    if unknown:
        raise ValueError(f"it requires {', '.join(sorted(unknown))!r:.200}, unknown here; update torchyoga")


def _refuse_forged(manifest: Manifest, requires: object) -> None:
    """Raises ValueError for shared files or deleted rows that the writer of a manifest cannot have meant."""
    for name in (SHARED_FILES, DELETED_ROWS):
        if name in manifest.requires and not (isinstance(requires, list) and name in requires):
            raise ValueError(f"it does not say that it requires {name}")
    if any(file.of == manifest.version for file in manifest.files):
        raise ValueError("it says that files of its own are of another version")
    if any(file.name.startswith(f"{manifest.build}-") for file in manifest.files if file.of is not None):
        raise ValueError("it says that files of its own build are of another version")
    reduced = [file for file in manifest.files if file.deleted is not None]
    if sum(file.deleted.count for file in reduced if file.deleted) > MOST_DELETED:
        raise ValueError(f"more than {MOST_DELETED} of its rows are deleted")
    for file in reduced:
        assert file.deleted is not None
        if file.rows < 1 or int(file.deleted.rows[-1]) >= file.rows + file.deleted.count:
            raise ValueError(f"{file.name} does not have the rows that are deleted")


def is_token(build: object) -> bool:
    """True for the token that names a build."""
    return isinstance(build, str) and bool(_TOKEN.fullmatch(build))


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


def _checks_of(files: Sequence[FileEntry], num_parts: int) -> list[tuple[tuple[int, int], ...]]:
    """For each part, the checks of all files; ValueError if some file has another number of them."""
    if any(len(file.checks) != num_parts for file in files):
        raise ValueError(f"a file does not have the {num_parts} checks of its schema")
    found = [tuple(file.checks[part] for file in files) for part in range(num_parts)]
    if any(sum(nbytes for nbytes, _ in part) >= 2**61 for part in found):
        raise ValueError("the sizes in the checks of its files are too large")
    return found


def _refuse_other_sizes(schema: Schema, files: Sequence[FileEntry]) -> None:
    """Raises ValueError unless the checks of each file cover as many bytes as its rows need."""
    rows = [file.rows for file in files]
    names = [(column, name) for column in schema.columns for name in column.parts]
    item_bytes = [size for column in schema.columns for size in column.part_bytes]
    for (column, name), checks, size in zip(
        names, _checks_of(files, schema.num_parts), item_bytes, strict=True
    ):
        sizes = [nbytes for nbytes, _ in checks]
        if size and not (column.is_ragged and name == "values"):
            sound = sizes == [count * size for count in rows]
        else:
            sound = not any(nbytes % size if size else nbytes for nbytes in sizes)
        if not sound:
            raise ValueError(f"the checks of {column.name}/{name} do not cover the bytes that its rows have")


def is_data_file(name: str) -> bool:
    """True for a name that data files have; such a name never leads out of its folder."""
    return bool(_FILE_NAME.fullmatch(name))


def is_like_manifest(text: bytes) -> bool:
    """True for a manifest, intact, cut or lost in a crash; False for a foreign file of that name."""
    return bool(not text.strip(b"\0 \r\n") or _BEGIN.match(text) or re.search(rb'"torchyoga":\s*[0-9]', text))


def digest(content: object) -> str:
    """A checksum of plain data, whatever the order of its keys; ValueError for NaN or infinity."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hexdigest(text)


def fingerprint_of(schema: Schema | None, files: Sequence[FileEntry]) -> str:
    """A name for the content, equal for equal rows, whatever the files, blocks and format are."""
    found = _checks_of(files, schema.num_parts if schema else 0)
    totals = [sum(nbytes for nbytes, _ in part) for part in found]
    checks = list(zip(totals, _combined(found), strict=True)) if files else []
    return digest([schema.to_json() if schema else None, sum(file.rows for file in files), checks])


def _combined(checks: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """For each part, the CRC-32 of the bytes of all files."""
    if sum(map(len, checks)) > _FEW:
        sizes, crcs = np.array(checks, np.int64).transpose(2, 1, 0)
        found: list[int] = crc32_of_all(crcs.astype(np.uint32), sizes).tolist()
        return found
    wholes = []
    for part in checks:
        whole = 0
        for nbytes, crc in part:
            whole = combine_crc32(whole, crc, nbytes)
        wholes.append(whole)
    return wholes
