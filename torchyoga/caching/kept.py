"""A named condition on a DataRef of a published version -> the selection kept beside that, made once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from ..errors import CorruptError, NotFoundError
from ..reading.dataref import Condition, DataRef, WhenStale
from ..rows.types import Array, Json
from ..stores.checking import check
from ..stores.contract import Versions
from ..versions.manifest import Manifest
from ..versions.names import kept_id
from ..views.selected import SelectedRef
from ..views.selection import Selection
from ..views.where import base_of, selected, where
from .comparing.kept_hashes import HASHES, check_hashes
from .keeping import Keeping, Kind, columns_of
from .kept_packs import PACKS, loaded_packing

__all__ = ["check_kept", "kept_where"]

_SELECTION = Kind(
    call="where",
    noun="the selection",
    has="was",
    acts="selects",
    act="select",
    acted="selected",
    function="condition",
    source="selected_from",
)


def kept_where(
    ref: DataRef, names: str | Sequence[str], condition: Condition, name: str, stale: WhenStale
) -> SelectedRef:
    """The rows for which a condition holds, as kept under a name; see `DataRef.where`."""
    return _KeptSelection(ref, names, condition, name, stale).read_or_made()


class _KeptSelection(Keeping[SelectedRef]):
    """A selection that is read, or made and kept."""

    def __init__(
        self, ref: DataRef, names: str | Sequence[str], condition: Condition, name: str, stale: WhenStale
    ) -> None:
        super().__init__(_SELECTION, ref, name, condition, stale)
        self._names = names
        self._columns = [names] if isinstance(names, str) else list(names)
        self._condition = condition

    def make(self) -> SelectedRef:
        return where(self.ref, self._names, self._condition)

    def loaded(self, manifest: Manifest) -> SelectedRef:
        return selected(self.ref, _loaded(self.place.store, manifest, len(base_of(self.ref))))

    def parts(self, made: SelectedRef) -> Mapping[str, Array]:
        return made.selection.parts

    def info(self, made: SelectedRef) -> Json:
        return {
            "columns": self._columns,
            "total": made.selection.total,
            "rows": len(made.selection),
            "parts": sorted(made.selection.parts),
            "pin": made.selection.pin,
        }

    def difference(self, manifest: Manifest) -> str | None:
        columns = manifest.info.get("columns")
        return None if columns == self._columns else f"of the columns {columns}, not of {self._columns}"


def _loaded(store: Versions, manifest: Manifest, total: int) -> Selection:
    """A kept selection of so many rows.

    Raises:
        NotFoundError: it has been replaced or removed.
        CorruptError: it is damaged, or is not one.
    """
    info = manifest.info
    if info.get("total") != total:
        raise CorruptError(f"it is of {info.get('total')} rows, not of {total}")
    found = Selection.from_parts(total, columns_of(store, manifest))
    if found.pin != info.get("pin"):
        raise CorruptError("its rows are not those that were selected")
    return found


def check_kept(store: Versions, id: str, version: str) -> None:
    """Checks what is kept beside a version, as `Storage.check` describes it.

    Raises:
        CorruptError: names the first that is damaged.
    """
    kept, of = store.kept, kept_id(id, version)
    for name in kept.versions(of):
        noun, call = _SELECTION.noun, _SELECTION.call
        with contextlib.suppress(NotFoundError):  # it was removed meanwhile
            try:
                check(kept, of, name)
                manifest = kept.manifest(of, name)
                if HASHES.source in manifest.info:
                    noun, call = HASHES.noun, HASHES.call
                    check_hashes(store, id, version, manifest)
                elif PACKS.source in manifest.info:
                    noun, call = PACKS.noun, PACKS.call
                    loaded_packing(kept, manifest)
                else:
                    _loaded(kept, manifest, manifest.info.get("total", -1))
            except CorruptError as error:
                raise CorruptError(
                    f"{noun} {name!r} of {id!r} {version!r} is damaged: {error}; pass stale='rebuild' to "
                    f"`{call}` to make it again"
                ) from error
