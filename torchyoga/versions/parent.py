"""The version that another one was made from."""

from __future__ import annotations

from dataclasses import dataclass

from ..rows.types import Json

__all__ = ["Parent"]


@dataclass(frozen=True)
class Parent:
    """A version that another version of the same id was made from.

    Attributes:
        version: its name.
        fingerprint: of its rows.
        rows: how many it has.
        is_prefix: the other version begins with its rows, as after `append`; a state of this one can then be
            carried over.
    """

    version: str
    fingerprint: str
    rows: int
    is_prefix: bool

    def to_json(self) -> Json:
        """Plain data."""
        return dict(vars(self))

    @staticmethod
    def from_json(data: Json) -> Parent:
        """The parent that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        version, fingerprint, rows, is_prefix = (
            data[key] for key in ("version", "fingerprint", "rows", "is_prefix")
        )
        if not (isinstance(version, str) and version and isinstance(fingerprint, str)):
            raise TypeError("the version and the fingerprint of a parent must be text")
        if type(rows) is not int or not 0 <= rows < 2**62 or type(is_prefix) is not bool:
            raise ValueError(f"not the rows of a parent: {rows!r:.40}")
        return Parent(version, fingerprint, rows, is_prefix)
