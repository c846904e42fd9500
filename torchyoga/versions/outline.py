"""The text of a manifest -> what counts of its version among the others, without what its readers need."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ..rows.types import Json
from .file_entry import LIST, FileEntry, Listed, entries_of, is_data_file
from .lineage import Parent
from .manifest import content_of, parents_in, telling_damage, telling_damage_of
from .names import encoded


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
    parents: Sequence[Parent] = ()
    files: tuple[DataFile, ...] = ()
    lists: tuple[FileEntry, ...] = ()
    num_rows: int = 0
    nbytes: int = 0
    lineage: Json = field(default_factory=dict)
    id: str = ""

    def located(self, read: Callable[[FileEntry], bytes]) -> Outline:
        """This outline with a way to read its lists."""
        if not isinstance(self.parents, Listed):
            return self
        return replace(self, parents=Listed(self.parents.pieces, partial(parents_in, self.id, read)))

    def inside(self, read: Callable[[FileEntry], bytes], entry: FileEntry) -> tuple[DataFile, ...]:
        """The data files of one of its lists; CorruptError if that is damaged or missing."""
        with telling_damage_of(entry):
            index = entry.index
            found = entries_of(read(entry), index["digest"], self.id, "files", index["entries"])
            return tuple(_file(data["name"], data["of"], data["nbytes"]) for data in found)

    @staticmethod
    def from_bytes(text: bytes) -> Outline:
        """The outline of the manifest that `Manifest.to_bytes` wrote; takes a third of the time.

        Raises:
            CorruptError: it is cut, changed, of a later format, or not a manifest at all.
        """
        with telling_damage():
            content = content_of(text, refuse_twice=False)  # for readers do
            texts = {key: content[key] for key in ("id", "version", "build", "created", "fingerprint")}
            lineage, num_rows = content.get("lineage", {}), content["rows"]
            own = content["version"]
            data, ways = content["files"], content.get("parents", [])
            if not all(isinstance(text, str) for text in texts.values()) or not isinstance(lineage, dict):
                raise TypeError("id, version, build, created and fingerprint must be text, lineage an object")
            if type(num_rows) is not int or not 0 <= num_rows < 2**62:
                raise ValueError(f"not a number of rows: {num_rows!r:.40}")
            pieces: list[Any] = [_list(piece) if "format" in piece else _parent_of(piece) for piece in ways]
            lists = [_list(piece) for piece in data if piece["format"] == LIST]
            listed = [*lists, *(piece for piece in pieces if isinstance(piece, FileEntry))]
            files = [
                (file["name"], file.get("of"), file["nbytes"]) for file in data if file["format"] != LIST
            ]
            return Outline(
                parents=pieces if len(listed) == len(lists) else Listed(pieces, tuple),  # until it is located
                files=tuple(
                    _file(name, own if of is None else of, nbytes)
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


def _parent_of(data: Json) -> Parent:
    return Parent.from_json(data) if "columns" in data else _parent(**data)


@lru_cache(2**16, typed=True)
def _parent(**data: object) -> Parent:
    return Parent.from_json(data)
