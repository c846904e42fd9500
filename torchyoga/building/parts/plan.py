"""The plan that all builders of a version share: where its parts begin, how they are read and written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import CorruptError
from ...rows.schema import Schema
from ...rows.types import Json
from ...stores.contract import Seen
from ...versions.file_entry import is_token
from ...versions.info import plain
from ...versions.manifest import FunctionEntry

__all__ = ["MOST_PARTS", "Plan", "typed"]

MOST_PARTS = 10_000
_LARGEST_BOUND = 2**62


@dataclass(frozen=True)
class Plan:
    """How a version is built in parts.

    Attributes:
        token: names the plan, and is the build of the version that comes of it.
        id: which dataset; `version`: which version of it.
        signature: plain data that says what is read and how files are written; all builders have the same.
        schema: what a row looks like; None if no row showed it, because there is none.
        bounds: where each part begins, and where the last one ends.
        of_rows: bounds count rows; False if they count inputs, each of which has any number of rows.
        looks: numbers and digests of some rows, which each builder compares with its own; empty if rows are
            others each time they are read.
        host: the machine that made the plan, and its process.
        info: kept with the version; `function`: what made the rows; `lineage`: how.
        replaces: the version that may be replaced; None if none may.
    """

    token: str
    id: str
    version: str
    signature: Sequence[object]
    schema: Schema | None
    bounds: tuple[int, ...]
    of_rows: bool
    looks: tuple[tuple[int, str], ...] = ()
    host: str = ""
    info: Json = field(default_factory=dict)
    function: FunctionEntry | None = None
    lineage: Json = field(default_factory=dict)
    replaces: Seen | None = None

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        return len(self.bounds) - 1

    def named(self, part: int) -> str:
        """A part, for messages."""
        start, stop = self.bounds[part], self.bounds[part + 1]
        what = "row" if self.of_rows else "input"
        which = f"{what} {start}" if stop - start == 1 else f"{what}s {start} to {stop - 1}"
        return f"part {part} ({which}) of {self.id!r} {self.version!r}"

    def to_json(self) -> Json:
        """Plain data."""
        schema, function = self.schema, self.function
        return {
            **vars(self),
            "schema": schema.to_json() if schema else None,
            "function": function.to_json() if function else None,
        }

    @staticmethod
    def from_json(data: Json) -> Plan:
        """The plan that `to_json` described; CorruptError if it is none."""
        try:
            kept = typed(
                data, token=str, id=str, version=str, host=str, signature=list, of_rows=bool, lineage=dict
            )
            bounds, looks = tuple(data["bounds"]), tuple((number, digest) for number, digest in data["looks"])
            rising = all(type(bound) is int and 0 <= bound < _LARGEST_BOUND for bound in bounds) and all(
                one < other for one, other in itertools.pairwise(bounds)
            )
            if not rising or bounds[:1] != (0,) or len(bounds) - 1 > MOST_PARTS:
                raise ValueError(f"its parts do not follow each other: {bounds!r:.80}")
            if not is_token(data["token"]):
                raise ValueError("it has no token")
            if not all(type(number) is int and isinstance(digest, str) for number, digest in looks):
                raise TypeError("it must compare numbered rows")
            replaces = None if data["replaces"] is None else Seen(*data["replaces"])
            if not all(value is None or isinstance(value, str) for value in replaces or ()):
                raise TypeError("what it replaces must be text")
            return Plan(
                **kept,
                schema=None if data["schema"] is None else Schema.from_json(data["schema"]),
                bounds=bounds,
                looks=looks,
                info=plain(data["info"]),
                function=None if data["function"] is None else FunctionEntry.from_json(data["function"]),
                replaces=replaces,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(f"the plan is damaged: {error}") from error


def typed(data: Json, **kinds: type) -> Json:
    """The entries of these names; TypeError or KeyError unless each is of exactly this type."""
    for name, kind in kinds.items():
        if type(data[name]) is not kind:
            raise TypeError(f"{name} must be a {kind.__name__}, found {data[name]!r:.40}")
    return {name: data[name] for name in kinds}
