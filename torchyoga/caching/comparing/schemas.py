"""Two schemas -> what differs between them, readably."""

from __future__ import annotations

from dataclasses import dataclass

from ...rows.hashing import alike, values_of
from ...rows.schema import Schema

__all__ = ["SchemaDiff", "schema_diff"]


@dataclass(frozen=True)
class SchemaDiff:
    """What differs between the columns of two versions; False if nothing does.

    Attributes:
        added: names of values that only the new version has.
        removed: names of those that only the old one has.
        changed: names of those that both have, of another type or shape, or that may be None in one only.
        retyped: names of those whose bytes mean the same, but that come back as another type, such as an
            array and a tensor; rows are compared in spite of it.
        nesting: True if the same values nest otherwise, or come in another order.
        text: all of that, a line for each value.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    nesting: bool = False
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.retyped or self.nesting)

    def __str__(self) -> str:
        return self.text or "the same columns"

    @property
    def is_comparable(self) -> bool:
        """True if whole rows can be compared: both have the same values, of the same look."""
        return not (self.added or self.removed or self.changed)


def schema_diff(old: Schema | None, new: Schema | None) -> SchemaDiff:
    """What differs between two schemas; nothing if one is None, as that of a version without rows is.

    Example:
        >>> print(schema_diff(Schema.of({"x": 1, "y": 2}), Schema.of({"x": 1.5, "z": "a"})))
        changed: x: int <i8 [scalar] -> float <f8 [scalar]
        removed: y: int <i8 [scalar]
        added: z: str |u1 [ragged, 1-d]
    """
    if old is None or new is None or old == new:
        return SchemaDiff()
    mine, theirs, same = values_of(old), values_of(new), alike(old, new)
    removed = tuple(name for name in mine if name not in theirs)
    added = tuple(name for name in theirs if name not in mine)
    changed = tuple(name for name in mine if name in theirs and name not in same)
    retyped = tuple(name for name in mine if name in same and mine[name] != theirs[name])
    is_nested = not (removed or added or changed) and old.tree != new.tree
    was, now = _texts(old), _texts(new)
    lines = [f"changed: {was[name]} -> {now[name].removeprefix(f'{name}: ')}" for name in changed]
    lines += [f"other type: {was[name]} -> {now[name].removeprefix(f'{name}: ')}" for name in retyped]
    lines += [f"removed: {was[name]}" for name in removed] + [f"added: {now[name]}" for name in added]
    lines += ["the rows nest otherwise, or have their keys in another order"] if is_nested else []
    return SchemaDiff(added, removed, changed, retyped, is_nested, "\n".join(lines))


def _texts(schema: Schema) -> dict[str, str]:
    """The columns of each value, for a message."""
    return {name: "; ".join(map(str, columns)) for name, (_, columns) in values_of(schema).items()}
