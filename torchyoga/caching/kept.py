"""A named selection of rows of a published version, or named packs -> what is kept beside it, made once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields

from ..errors import CorruptError, NotFoundError
from ..reading.dataref import Condition, DataRef, WhenStale
from ..reading.pack_report import PackReport
from ..rows.types import Array, Json
from ..stores.checking import check
from ..stores.contract import Versions
from ..versions.manifest import Manifest
from ..versions.names import kept_id
from ..views.packs.plan import PackPlan
from ..views.packs.request import Packing, Request, packing_of
from ..views.selection import Selection
from ..views.where import SelectedRef, base_of, selected, where
from .comparing.kept_hashes import HASHES, check_hashes
from .keeping import Keeping, Kind, columns_of

__all__ = ["check_kept", "kept_where", "pack_keeper"]

_SELECTION = Kind("where", "the selection", "select", "condition")
_PACKS = Kind("packed", "the packs", "pack", suffix=" packs")


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


def check_kept(store: Versions, id: str, version: str, name: str) -> None:
    """Checks what is kept under a name beside a version, as `Storage.check` describes it.

    Raises:
        CorruptError: it is damaged.
    """
    kept, of = store.kept, kept_id(id, version)
    noun, call = _SELECTION.noun, _SELECTION.call
    with contextlib.suppress(NotFoundError):  # it was removed meanwhile
        try:
            check(kept, of, name)
            manifest = kept.manifest(of, name)
            if HASHES.source in manifest.info:
                noun, call = HASHES.noun, HASHES.call
                check_hashes(store, id, version, manifest)
            elif _PACKS.source in manifest.info:
                noun, call = _PACKS.noun, _PACKS.call
                _loaded_packing(kept, manifest)
            else:
                _loaded(kept, manifest, manifest.info.get("total", -1))
        except CorruptError as error:
            raise CorruptError(
                f"{noun} {name!r} of {id!r} {version!r} is damaged: {error}; pass stale='rebuild' to "
                f"`{call}` to make it again"
            ) from error


def pack_keeper(name: str, stale: WhenStale) -> Callable[[DataRef, Request], Packing]:
    """A function that finds the packs of a DataRef's rows under a name, or makes and keeps them there."""
    return lambda ref, request: _KeptPacking(ref, request, name, stale).read_or_made()


class _KeptPacking(Keeping[Packing]):
    """Packs that are read, or made and kept."""

    def __init__(self, ref: DataRef, request: Request, name: str, stale: WhenStale) -> None:
        super().__init__(_PACKS, ref, name, request.cost, stale)
        self._request = request

    def make(self) -> Packing:
        return packing_of(self.ref, self._request)

    def loaded(self, manifest: Manifest) -> Packing:
        found = _loaded_packing(self.place.store, manifest)
        if manifest.info.get("total") != len(self.ref):
            raise CorruptError(f"they are of {manifest.info.get('total')} rows, not of {len(self.ref)}")
        return found._replace(told=self._request.told, most=self._request.most)

    def parts(self, made: Packing) -> Mapping[str, Array]:
        return {"plan": made.plan.words[0]}

    def info(self, made: Packing) -> Json:
        return {
            "total": len(self.ref),
            "told": _listed(made.told),
            "looked": list(made.looked),
            "report": asdict(made.report),
            "sizes": made.plan.words[1],
            "pin": made.plan.pin,
        }

    def difference(self, manifest: Manifest) -> str | None:
        found, now = manifest.info.get("told"), _listed(self._request.told)
        return None if found == now else f"with {found}, not with {now}"


def _listed(told: Json) -> Json:
    """How packs are made, as JSON data whose order counts."""
    return {**told, "budgets": [list(pair) for pair in told["budgets"].items()]}


def _loaded_packing(store: Versions, manifest: Manifest) -> Packing:
    """Packs as they are kept, without how they were asked for.

    Raises:
        NotFoundError: they have been replaced or removed.
        CorruptError: they are damaged, or are not such.
    """
    info, columns = manifest.info, columns_of(store, manifest)
    try:
        (words,) = columns.values()
        plan = PackPlan.from_words(words, [int(size) for size in info["sizes"]], int(info["total"]))
        counts = {field.name: int(info["report"][field.name]) for field in fields(PackReport)}
        looked = tuple(str(name) for name in info["looked"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"it does not hold packs: {error}") from error
    if plan.pin != info.get("pin") or counts["packs"] != len(plan):
        raise CorruptError("its packs are not those that were made")
    return Packing(plan, PackReport(**counts), looked, {}, None)
