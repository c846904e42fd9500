"""The rows of two DataRefs side by side."""

from __future__ import annotations

import builtins
import operator
from dataclasses import replace

from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.seeding import seeds_within
from ..reading.contract import are_at_hand, identity, known_schema, taken_of, title_of
from ..reading.dataref import DataRef
from ..reading.readahead import Prefetch
from ..rows.block import Block, Rows
from ..rows.collector import block_of
from ..rows.node import Node
from ..rows.schema import Projection, Schema, schema_under
from ..rows.types import Ints, Json, Seeds
from .joined import JoinedRef, Prefetches
from .mix import warn_if_arranged
from .over import ChangedRows, ProjectedRef, keeps_names, named_rows
from .recoded import codes_in, has_codes


def zip(ref: DataRef, other: DataRef, *, prefix: str = "") -> DataRef:
    """The rows of two DataRefs of one length side by side: row n of this one, and row n of the other.

    Rows that are dicts are merged. If neither side has dicts, a row is a pair, as with Python's `zip`; a dict
    beside something else is an error. Each side is read for its own columns only.

    Args:
        other: a DataRef. The `info` of the result has the entries of both sides, and this side's if both have
            an entry of one name.
        prefix: put before all keys of the other's rows, if they are dicts.

    Raises:
        ValueError: the lengths differ, or both sides have a key of one name.
        TypeError: `other` is not a DataRef, or only one side's rows are dicts, or the schema of a side is not
            known.

    Example:
        >>> photos, vectors = yoga.from_arrays({"x": np.arange(3)}), yoga.from_arrays({"y": np.ones(3)})
        >>> sorted(photos.zip(vectors)[2]), sorted(photos.zip(photos, prefix="b_")[0])
        (['x', 'y'], ['b_x', 'x'])
    """
    if not isinstance(other, DataRef):
        raise TypeError(
            f"zip takes a DataRef, such as yoga.from_arrays(...) gives; found a {type(other).__name__}"
        )
    if len(ref) != len(other):
        raise ValueError(
            f"zip needs two DataRefs of one length, found {len(ref)} rows of {title_of(ref)} and "
            f"{len(other)} of {title_of(other)}; take as many of the longer one, as in "
            f"ref[:{min(len(ref), len(other))}]"
        )
    for side in (ref, other):
        warn_if_arranged(side, "zip")
    one, two = known_schema(ref), known_schema(other)
    if one is None or two is None:  # no rows
        return ZippedRef(ref, other)
    if (one.tree.kind == "dict") != (two.tree.kind == "dict"):
        raise TypeError(
            "zip needs rows that are dicts on both sides, which it merges, or on neither, which makes pairs; "
            f"found a {one.tree.kind} here and a {two.tree.kind} in the other. Take a column as a dict, by "
            'columns(["a"]) in place of ref["a"], or map(...) one side'
        )
    if prefix and two.tree.kind == "dict":
        keys = tuple(f"{prefix}{key}" for key in two.tree.keys)
        two = schema_under(replace(two.tree, keys=keys), two.columns)
        other = other._projected(Projection(two, tuple(range(len(two.columns)))))
    clashing = [key for key in two.tree.keys if key in one.tree.keys]
    if one.tree.kind == "dict" and clashing:
        raise ValueError(
            f"both sides of zip have {clashing[:8]}; pass prefix=, as in zip(other, prefix='other_'), which "
            "is put before the keys of the other's rows, or take some of the columns(...) of one"
        )
    return ZippedRef(ref, other)


class ZippedRef(ChangedRows):
    """The rows of two DataRefs side by side: what `ref.zip(other)` is.

    Args:
        whole, other: as many rows; dicts without a key in common, or no dicts.

    Attributes:
        sources: both.
    """

    view_name = "zip"

    def __init__(self, whole: DataRef, other: DataRef) -> None:
        super().__init__(whole, other)
        self.is_thread_safe = whole.is_thread_safe and other.is_thread_safe
        self.sources = (whole, other)

    def _taken(self, rows: Ints, seeds: Seeds | None) -> Rows:
        one, other = (
            block_of(taken_of(side, rows, None if seeds is None else seeds_within(seeds, n)), side.schema)
            for n, side in enumerate(self.sources)
        )
        assert self.schema is not None, "there are rows"
        return Rows(Block(self.schema, one.num_rows, one.data + other.data))

    def _projected(self, of: Projection) -> DataRef:
        """These columns of each side; a side that has none of them is not read."""
        schemas = [known_schema(side) for side in self.sources]
        first = 0 if schemas[0] is None else len(schemas[0].columns)
        starts = (0, first)
        which = {int(number >= first) for number in of.columns} or {0}
        if len(which) == 1:
            side, start = self.sources[min(which)], starts[min(which)]
            if side._is_random:  # its rows keep the seeds that they have here
                return ProjectedRef(self, of)
            return side._projected(replace(of, columns=tuple(n - start for n in of.columns)))
        if of.schema.tree.kind != "dict" or self.schema is None or not keeps_names(of, self.schema):
            return ProjectedRef(self, of)
        # Each side is read for the keys that hold some of the columns.
        sides = []
        for side, schema, start in builtins.zip(self.sources, schemas, starts, strict=True):
            assert schema is not None, "there are columns"
            keys = {key for key in of.schema.tree.keys if key in schema.tree.keys}
            sides.append((start, Projection.of_keys(schema, keys), side))
        made = ZippedRef(*(side._projected(own) for _, own, side in sides))
        numbers = [start + number for start, own, _ in sides for number in own.columns]
        if numbers == list(of.columns):
            return made
        places = {number: place for place, number in enumerate(numbers)}
        return ProjectedRef(made, replace(of, columns=tuple(places[number] for number in of.columns)))

    @cached_property
    def schema(self) -> Schema | None:
        """How a row looks; None if there are none."""
        one, other = map(known_schema, self.sources)
        if one is None or other is None:
            return None
        tree = Node("tuple", (), (one.tree, other.tree))
        if one.tree.kind == "dict":
            tree = Node("dict", one.tree.keys + other.tree.keys, one.tree.children + other.tree.children)
        return schema_under(tree, one.columns + other.columns)

    @property
    def info(self) -> Json:
        """The entries of both; the first one's where both have one. If they name classes otherwise, those of
        the side that has whole numbers, and none if both have: each column keeps its own names."""
        one, other = (side.info for side in self.sources)
        found = {**other, **one}
        if codes_in(one) and codes_in(other) and codes_in(one) != codes_in(other):
            sides = [side for side in self.sources if has_codes(known_schema(side))]
            for name in ("classes", "class_to_idx"):
                found.pop(name, None)
                if len(sides) == 1 and name in sides[0].info:
                    found[name] = sides[0].info[name]
        return found

    # As of sources end to end: it is enough that one of them does or is.
    _keeps_rows = JoinedRef._keeps_rows
    _is_random = JoinedRef._is_random

    def in_epoch(self, epoch: int) -> DataRef:
        """Both DataRefs as they are in an epoch, side by side."""
        sides = [side.in_epoch(epoch) for side in self.sources]
        return self if all(map(operator.is_, sides, self.sources)) else ZippedRef(*sides)

    @property
    def _row_bytes(self) -> int:
        """Bytes of an average row; 0 if one of them does not know."""
        sizes = [side._row_bytes for side in self.sources]
        return sum(sizes) if all(sizes) else 0

    # Rows of a mixture have other numbers in its sources, beside which nothing of the other side belongs.
    _arrangement = DataRef._arrangement
    _recipe = DataRef._recipe
    _prefixes = DataRef._prefixes

    @cached_property
    def _prefetch(self) -> Prefetch | None:
        """The prefetches of both."""
        found = [one for side in self.sources if (one := side._prefetch) is not None]
        return Prefetches(found) if len(found) > 1 else found[0] if found else None

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of both; None if one of them has none."""
        return None if self.sources[1].fingerprint is None else super().fingerprint

    def _pinned(self, whole: str) -> str:
        other = self.sources[1]
        return hexdigest(f"{whole} zip {named_rows(other, identity(other))}")

    def _title(self) -> str:
        return f"{title_of(self.whole)} beside {title_of(self.sources[1])}"

    def _at_hand(self) -> bool:
        return are_at_hand(self.sources)
