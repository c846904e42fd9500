"""The text of a manifest -> what counts of its version among the others, without what its readers need."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from ..rows.types import Json
from .manifest import content_of, telling_damage
from .parent import Parent

__all__ = ["DataFile", "Outline"]


class DataFile(NamedTuple):
    """A data file: its name, the version in whose folder it lies, and its size."""

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
        files: its data files; `num_rows`: in them.
        lineage: how it was made, as its manifest says it.
        id: which dataset.
    """

    version: str
    fingerprint: str
    build: str
    created: str
    parents: tuple[Parent, ...] = ()
    files: tuple[DataFile, ...] = ()
    num_rows: int = 0
    lineage: Json = field(default_factory=dict)
    id: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

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
            files = tuple(_file(f["name"], f.get("of", own), f["nbytes"]) for f in content["files"])
            if not all(isinstance(text, str) for text in texts.values()) or not isinstance(lineage, dict):
                raise TypeError("id, version, build, created and fingerprint must be text, lineage an object")
            if type(num_rows) is not int or not 0 <= num_rows < 2**62:
                raise ValueError(f"not a number of rows: {num_rows!r:.40}")
            parents = tuple(_parent(**data) for data in content.get("parents", []))
            return Outline(parents=parents, files=files, num_rows=num_rows, lineage=lineage, **texts)


# Versions that grew from each other have the same ones.
@lru_cache(2**16, typed=True)
def _file(name: object, version: object, nbytes: object) -> DataFile:
    if not (isinstance(name, str) and isinstance(version, str)):
        raise TypeError("the name of a file and of its version must be text")
    if type(nbytes) is not int or not 0 <= nbytes < 2**62:
        raise ValueError(f"not the size of a file: {nbytes!r:.40}")
    return DataFile(name, version, nbytes)


@lru_cache(2**16, typed=True)
def _parent(**data: object) -> Parent:
    return Parent.from_json(data)
