"""What all builders of a version agree on: where its parts begin, and how they are read and written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import CorruptError
from ...process.lazy import cached_property
from ...rows.schema import Schema
from ...rows.types import Json
from ...stores.contract import Seen
from ...versions.info import plain
from ...versions.manifest import FunctionEntry, is_token

__all__ = ["MOST_PARTS", "Plan"]

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

    @cached_property
    def num_rows(self) -> int | None:
        """Rows of all parts; None if only building shows it."""
        return self.bounds[-1] if self.of_rows else None

    def named(self, part: int) -> str:
        """A part, for messages."""
        start, stop = self.bounds[part], self.bounds[part + 1]
        what = "row" if self.of_rows else "input"
        which = f"{what} {start}" if stop - start == 1 else f"{what}s {start} to {stop - 1}"
        return f"part {part} ({which}) of {self.id!r} {self.version!r}"

    def to_json(self) -> Json:
        """Plain data."""
        return {
            **{name: getattr(self, name) for name in ("token", "id", "version", "of_rows", "host")},
            "signature": list(self.signature),
            "schema": self.schema.to_json() if self.schema else None,
            "bounds": list(self.bounds),
            "looks": [list(look) for look in self.looks],
            "info": self.info,
            "function": self.function.to_json() if self.function else None,
            "lineage": self.lineage,
            "replaces": list(self.replaces) if self.replaces else None,
        }

    @staticmethod
    def from_json(data: Json) -> Plan:
        """The plan that `to_json` described; CorruptError if it is none."""
        try:
            bounds = tuple(data["bounds"])
            rising = all(type(bound) is int and 0 <= bound < _LARGEST_BOUND for bound in bounds) and all(
                one < other for one, other in itertools.pairwise(bounds)
            )
            if not rising or not bounds or bounds[0] != 0 or len(bounds) - 1 > MOST_PARTS:
                raise ValueError(f"its parts do not follow each other: {bounds!r:.80}")
            texts = [data["id"], data["version"], data["host"]]
            if not all(isinstance(text, str) for text in texts) or not is_token(data["token"]):
                raise TypeError("its id, version, host and token must be text")
            looks = tuple((number, digest) for number, digest in data["looks"])
            if not all(type(number) is int and isinstance(digest, str) for number, digest in looks):
                raise TypeError("it must compare numbered rows")
            if not isinstance(data["signature"], list) or type(data["of_rows"]) is not bool:
                raise TypeError("it does not say what is read")
            if not isinstance(data["lineage"], dict):
                raise TypeError("its lineage must be an object")
            return Plan(
                token=data["token"],
                id=data["id"],
                version=data["version"],
                signature=data["signature"],
                schema=None if data["schema"] is None else Schema.from_json(data["schema"]),
                bounds=bounds,
                of_rows=data["of_rows"],
                looks=looks,
                host=data["host"],
                info=plain(data["info"]),
                function=None if data["function"] is None else FunctionEntry.from_json(data["function"]),
                lineage=data["lineage"],
                replaces=None if data["replaces"] is None else _seen(*data["replaces"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(f"the plan is damaged: {error}") from error


def _seen(build: object, tag: object) -> Seen:
    if not all(value is None or isinstance(value, str) for value in (build, tag)):
        raise TypeError("what it replaces must be text")
    return Seen(build, tag)  # type: ignore[arg-type]
