"""A named condition on a DataRef of a published version -> the selection kept beside that, made once.

A kept selection is a small version of its own, in `Versions.kept`, so that it is locked, published, checked,
downloaded and cleaned as all are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from ..building.build import BuildOptions
from ..errors import BusyError, CorruptError, ExistsError, NotFoundError, YogaError
from ..process.warned import warn_user
from ..reading.dataref import Condition, DataRef, WhenStale
from ..reading.version_ref import VersionColumns, VersionRef
from ..rows.block import Rows
from ..rows.types import Json
from ..stores.checking import check
from ..stores.contract import Seen, Versions
from ..stores.refs import ref_of, store_of
from ..versions.manifest import FunctionEntry, Manifest
from ..versions.names import encoded, kept_id
from ..views.computed import ComputedRef
from ..views.joined import JoinedRef
from ..views.selected import SelectedRef
from ..views.selection import Part, Selection
from ..views.transformed import TransformedRef
from ..views.where import base_of, selected, where
from .conditions import differing, recorded
from .submission import submitted

__all__ = ["check_kept", "kept_where", "remove_kept"]

_LOOKS = 4  # at a selection that is replaced while it is being read
_PATIENCE = 86400.0  # seconds, while another process selects
_ROWS = 2**20  # read at once
_warned: set[tuple[str, str]] = set()  # warnings given in this process, and their builds


def kept_where(
    ref: DataRef, names: str | Sequence[str], condition: Condition, name: str, stale: WhenStale
) -> SelectedRef:
    """The rows for which a condition holds, as kept under a name; see `DataRef.where`."""
    if stale not in ("warn", "error", "rebuild"):
        raise ValueError(f"stale must be 'warn', 'error' or 'rebuild', found {stale!r}")
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, found {name!r:.80}")
    if not name:
        raise ValueError("name must not be empty; leave it out to keep nothing")
    columns = [names] if isinstance(names, str) else list(names)
    place = _Place.of(ref, name)
    return _Kept(place, ref, columns, condition, stale).read_or_made(lambda: where(ref, names, condition))


@dataclass(frozen=True)
class _Place:
    """Where a selection is kept.

    Attributes:
        home: the store of the version that rows are selected from; `manifest`: the version.
        store: of what is kept; always the same object, since it knows the leases that it holds.
        fingerprint: of the DataRef whose rows are selected.
        name: of the selection; `id` and `version`: of what is kept.
    """

    home: Versions
    store: Versions
    manifest: Manifest
    fingerprint: str
    name: str

    @staticmethod
    def of(ref: DataRef, name: str) -> _Place:
        """The place for selections from a DataRef; ValueError if it has none."""
        encoded("name", f"{name} {'0' * 32}")  # the longest that `version` may be
        found = {home.location.name: home for home in _homes(ref, name)}
        fingerprint = ref.fingerprint
        if len(found) != 1 or fingerprint is None:
            raise _homeless(ref, name)
        (home,) = found.values()
        store = store_of(home.location, home.manifest)
        if store is None:
            raise _homeless(ref, name)
        return _Place(store, store.kept, home.manifest, fingerprint, name)

    @property
    def id(self) -> str:
        return kept_id(self.manifest.id, self.manifest.version)

    @property
    def version(self) -> str:
        if self.fingerprint == self.manifest.fingerprint:
            return self.name
        # Of a part of the version, for example, in which a selection may have the same name.
        return f"{self.name} {blake2b(self.fingerprint.encode(), digest_size=16).hexdigest()}"

    @property
    def what(self) -> str:
        """What is kept, for messages."""
        return f"the selection {self.name!r} of {self.manifest.id!r} {self.manifest.version!r}"

    def is_published(self) -> bool:
        """True if the version is still the one that rows are selected from."""
        with contextlib.suppress(CorruptError):
            found = self.home.find(self.manifest.id, self.manifest.version)
            return found is not None and found.fingerprint == self.manifest.fingerprint
        return False


def _homes(ref: DataRef, name: str) -> Iterator[VersionRef | VersionColumns]:
    """The versions that the rows of a DataRef are from."""
    if isinstance(ref, (VersionRef, VersionColumns)):
        yield ref
        return
    if isinstance(ref, (ComputedRef, TransformedRef)):
        raise ValueError(
            f"where(name={name!r}) of {ref!r:.200}: the code of a function that makes rows is not part of "
            "what is kept; select before map, submit the rows first, or leave name out"
        )
    below = ref.sources if isinstance(ref, JoinedRef) else [getattr(ref, "whole", None)]
    for one in below:
        if not isinstance(one, DataRef):
            raise _homeless(ref, name)
        yield from _homes(one, name)


def _homeless(ref: DataRef, name: str) -> ValueError:
    return ValueError(
        f"where(name={name!r}) keeps the selection beside the published version whose rows are selected, but "
        f"{ref!r:.200} is not of a single one; submit it first, or leave name out"
    )


@dataclass(frozen=True)
class _Kept:
    """A selection that is read, or made and kept."""

    place: _Place
    ref: DataRef
    columns: list[str]
    condition: Condition
    stale: WhenStale

    def read_or_made(self, make: Callable[[], SelectedRef]) -> SelectedRef:
        """The selection as it is kept; else as it is made, once by all processes that may write."""
        found = self._read()
        if found is not None:
            return found
        store, id, version = self.place.store, self.place.id, self.place.version
        problem: Exception | None = None
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(store.lock(id, version, _PATIENCE))
            except BusyError:
                raise
            except OSError as error:  # nothing may be written there
                problem = error
            found = self._read()
            if found is not None:
                return found
            seen = None if problem else store.seen(id, version)
            entry = recorded(self.condition)  # now, since the condition may change what it captures
            made = make()
            try:
                if problem is None:
                    self._keep(made.selection, entry, seen)
                held.close()
            except (OSError, YogaError) as error:
                problem = error
        if problem is not None:
            warn_user(
                f"{self.place.what} could not be kept, so the next call selects again: "
                f"{type(problem).__name__}: {problem}"
            )
        return made

    def _keep(self, selection: Selection, entry: FunctionEntry, seen: Seen | None) -> None:
        place = self.place
        if not place.is_published():
            raise NotFoundError(
                f"{place.manifest.id!r} {place.manifest.version!r} has been overwritten or removed since "
                "this DataRef was made; fetch it again"
            )
        parts = selection.parts
        info: Json = {
            "selected_from": place.fingerprint,
            "columns": self.columns,
            "total": selection.total,
            "rows": len(selection),
            "parts": sorted(parts),
            "pin": selection.pin,
        }
        options = BuildOptions(progress=False, info=info, function=entry)
        store = place.store
        store.check_place(place.id, place.version)
        submitted(parts, store, place.id, place.version, options, replaces=seen)

    def _read(self) -> SelectedRef | None:
        """The kept selection; None if there is none, or it is to be made anew.

        Raises:
            CorruptError: it is damaged.
            ExistsError: it was made of other columns, or, with `stale="error"`, by another condition.
        """
        place = self.place
        try:
            for _ in range(_LOOKS):
                manifest = place.store.find(place.id, place.version)
                # Of rows that were overwritten since, it serves nobody.
                if manifest is None or manifest.info.get("selected_from") != place.fingerprint:
                    return None
                if self._is_stale(manifest):
                    return None
                with contextlib.suppress(NotFoundError):  # it is replaced just now
                    return selected(self.ref, _loaded(place.store, manifest, len(base_of(self.ref))))
            return None
        except CorruptError as error:
            if self.stale == "rebuild":
                return None
            raise CorruptError(
                f"{place.what} is damaged: {error}; pass stale='rebuild' to select again"
            ) from error

    def _is_stale(self, manifest: Manifest) -> bool:
        """True if the selection is to be made anew."""
        columns = manifest.info.get("columns")
        if columns != self.columns:
            if self.stale == "rebuild":
                return True
            raise ExistsError(
                f"{self.place.what} was made of the columns {columns}, not of {self.columns}; choose another "
                "name, or pass stale='rebuild' to replace it"
            )
        differ = [] if manifest.function is None else differing(manifest.function, self.condition)
        if not differ:
            return False
        found = f"{self.place.what} was made by another condition: its {', its '.join(differ)} differs"
        advice = "pass stale='rebuild' to replace it, or choose another name"
        if self.stale == "error":
            raise ExistsError(f"{found}; {advice}")
        if self.stale == "warn" and (manifest.build, found) not in _warned:
            _warned.add((manifest.build, found))
            warn_user(f"{found}. It is read as it is; {advice}")
        return self.stale == "rebuild"


def _loaded(store: Versions, manifest: Manifest, total: int) -> Selection:
    """A kept selection of so many rows.

    Raises:
        NotFoundError: it has been replaced or removed.
        CorruptError: it is damaged, or is not one.
    """
    info, schema = manifest.info, manifest.schema
    if schema is None or any(column.is_ragged for column in schema.columns):
        raise CorruptError("it does not hold the parts of a selection")
    if info.get("total") != total:
        raise CorruptError(f"it is of {info.get('total')} rows, not of {total}")
    ref = ref_of(store, manifest)
    chunks: list[list[Part]] = [[np.zeros(0, column.storage)] for column in schema.columns]
    for start in range(0, len(ref), _ROWS):
        rows = ref.take(np.arange(start, min(start + _ROWS, len(ref))))
        assert isinstance(rows, Rows), "a version gives blocks"
        for chunk, data in zip(chunks, rows.block.data, strict=True):
            chunk.append(data.values.copy())  # whose memory is used again
    try:
        parts = {
            column.name: np.concatenate(chunk) for column, chunk in zip(schema.columns, chunks, strict=True)
        }
    except ValueError as error:  # columns of arrays
        raise CorruptError(f"it does not hold the parts of a selection: {error}") from None
    found = Selection.from_parts(total, parts)
    if found.pin != info.get("pin"):
        raise CorruptError("its rows are not those that were selected")
    return found


def check_kept(store: Versions, id: str, version: str) -> None:
    """Checks the selections kept beside a version, as `Storage.check` describes it.

    Raises:
        CorruptError: names the first that is damaged.
    """
    kept, of = store.kept, kept_id(id, version)
    for name in kept.versions(of):
        with contextlib.suppress(NotFoundError):  # it was removed meanwhile
            try:
                check(kept, of, name)
                manifest = kept.manifest(of, name)
                _loaded(kept, manifest, manifest.info.get("total", -1))
            except CorruptError as error:
                raise CorruptError(
                    f"the selection {name!r} of {id!r} {version!r} is damaged: {error}; pass "
                    "stale='rebuild' to `where` to select again"
                ) from error


def remove_kept(store: Versions, id: str, version: str, timeout: float) -> None:
    """Removes the selections kept beside a version."""
    kept, of = store.kept, kept_id(id, version)
    for name in kept.versions(of):
        with contextlib.suppress(NotFoundError):
            kept.remove(of, name, timeout)
