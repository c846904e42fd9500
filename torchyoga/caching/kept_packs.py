"""Named packs of the rows of a published version -> the plan kept beside that, made once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields

from ..errors import CorruptError
from ..reading.dataref import DataRef, WhenStale
from ..reading.pack_report import PackReport
from ..rows.types import Array, Json
from ..stores.contract import Versions
from ..versions.manifest import Manifest
from ..views.packs.plan import Plan
from ..views.packs.request import Packing, Request, packing_of
from .keeping import Keeping, Kind, columns_of

__all__ = ["PACKS", "kept_packing", "loaded_packing"]

PACKS = Kind(
    call="packed",
    noun="the packs",
    has="were",
    acts="packs",
    act="pack",
    acted="packed",
    function="function",
    source="packed_from",
    suffix=" packs",
)


def kept_packing(name: str, stale: WhenStale, ref: DataRef, request: Request) -> Packing:
    """The packs of the rows of a DataRef, as kept under a name; see `DataRef.packed`."""
    return _KeptPacking(ref, request, name, stale).read_or_made()


class _KeptPacking(Keeping[Packing]):
    """Packs that are read, or made and kept."""

    def __init__(self, ref: DataRef, request: Request, name: str, stale: WhenStale) -> None:
        super().__init__(PACKS, ref, name, request.cost, stale)
        self._request = request

    def make(self) -> Packing:
        return packing_of(self.ref, self._request)

    def loaded(self, manifest: Manifest) -> Packing:
        found = loaded_packing(self.place.store, manifest)
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


def loaded_packing(store: Versions, manifest: Manifest) -> Packing:
    """Packs as they are kept, without how they were asked for.

    Raises:
        NotFoundError: they have been replaced or removed.
        CorruptError: they are damaged, or are not such.
    """
    info, columns = manifest.info, columns_of(store, manifest)
    try:
        (words,) = columns.values()
        plan = Plan.from_words(words, [int(size) for size in info["sizes"]], int(info["total"]))
        counts = {field.name: int(info["report"][field.name]) for field in fields(PackReport)}
        looked = tuple(str(name) for name in info["looked"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"it does not hold packs: {error}") from error
    if plan.pin != info.get("pin") or counts["packs"] != len(plan):
        raise CorruptError("its packs are not those that were made")
    return Packing(plan, PackReport(**counts), looked, {}, None)
