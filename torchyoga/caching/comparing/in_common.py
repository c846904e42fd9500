"""The files of two versions -> the rows of each that lie in files which the other does not have."""

from __future__ import annotations

import json
from typing import TypeAlias

from ...reading.dataref import DataRef
from ...reading.version_ref import VersionColumns, VersionRef
from ...versions.manifest import FileEntry, Manifest
from .blocks import Ranges

__all__ = ["are_same_rows", "apart"]

_Name: TypeAlias = tuple[object, ...]


def are_same_rows(old: DataRef, new: DataRef) -> bool:
    """True if two versions, or the same columns of them, have one fingerprint.

    The fingerprints of other DataRefs are made of some rows only, or of code.
    """
    versions = (VersionRef, VersionColumns)
    if not isinstance(old, versions) or not isinstance(new, versions):
        return False
    return old.fingerprint is not None and old.fingerprint == new.fingerprint and old.schema == new.schema


def apart(old: DataRef, new: DataRef) -> tuple[Ranges, Ranges, Ranges]:
    """The rows in files that only one version has: of the old and of the new one; and those of the new one
    that are in both.

    A file is in both if its name, which no other build gives, its size and all its checksums agree. Of
    anything but whole versions, all rows are apart.
    """
    if not isinstance(old, VersionRef) or not isinstance(new, VersionRef):
        return _whole(old), _whole(new), []
    mine, theirs = _names(old.manifest), _names(new.manifest)
    common = set(mine) & set(theirs)
    return (
        _ranges(old.manifest, mine, common, False),
        _ranges(new.manifest, theirs, common, False),
        _ranges(new.manifest, theirs, common, True),
    )


def _whole(ref: DataRef) -> Ranges:
    return [(0, len(ref))] if len(ref) else []


def _names(manifest: Manifest) -> list[_Name]:
    return [_name(entry) for entry in manifest.files]


def _name(entry: FileEntry) -> _Name:
    index = json.dumps(entry.index, sort_keys=True)
    return entry.name, entry.format, entry.rows, entry.nbytes, index, entry.checks, entry.crc


def _ranges(manifest: Manifest, names: list[_Name], common: set[_Name], are_common: bool) -> Ranges:
    """The rows of the files that are in both, or of the others; neighbours as one range."""
    found: list[tuple[int, int]] = []
    bounds = manifest.file_starts.tolist()
    for name, start, stop in zip(names, bounds[:-1], bounds[1:], strict=True):
        if (name in common) is not are_common or start == stop:
            continue
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stop))
    return found
