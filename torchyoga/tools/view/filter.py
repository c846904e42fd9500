"""A condition on a column, as people write it -> whether a value meets it.

A filter is a column, a comparison and a value, and nothing is ever evaluated.
What it compares with is a number, a date or a text, as the value in the row is. A value that cannot be
compared with it is only unequal: a page of rows is not a place to fail for one odd value.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from itertools import islice
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import numpy as np

from ..cells.text import visible

__all__ = ["Filter"]

_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": le,
    ">=": ge,
    "!=": ne,
    "==": eq,
    "=": eq,
    "<": lt,
    ">": gt,
}
_LONGEST = 1000
_MOST_ITEMS = 10_000  # of a list, that are looked at
_REST = re.compile(r"\s*(<=|>=|!=|==|=|<|>|contains(?=\s|$))\s*(.*)", re.DOTALL | re.IGNORECASE)
_QUOTED = re.compile(r"""(["'])(.*)\1""", re.DOTALL)
_HOW = "write a column, a comparison and a value, as in label = 3, text contains cat or score > 0.5"


@dataclass(frozen=True)
class Filter:
    """A condition on one column.

    Attributes:
        column: its name.
        comparison: a key of `_ORDERS`, or "contains"; `value`: what to compare with.

    Example:
        >>> from torchyoga.tools.view.filter import Filter
        >>> found = Filter.of("score > 0.5", ["label", "score"])
        >>> found.holds(0.7), found.holds(0.5), found.holds(None)
        (True, False, False)
    """

    column: str
    comparison: str
    value: str

    @staticmethod
    def of(text: str, names: Iterable[str]) -> Filter:
        """The condition that a text states.

        Args:
            text: such as `label = 3`. A value may stand in quotes, which keep spaces at its ends.
            names: of the columns. Any of them may be written as it is, or as pages show it.

        Raises:
            ValueError: it is not one; says how to write it, and which columns there are.
        """
        if len(text) > _LONGEST:
            raise ValueError(f"a filter has at most {_LONGEST:,} characters, found {len(text):,}")
        known = {spelling: name for name in names for spelling in (visible(name), name)}
        begun, found = text.strip(), None
        for spelling in sorted(known, key=len, reverse=True):  # of `a` and `a b`, the longer one is meant
            for written in (spelling, f'"{spelling}"'):
                rest = _REST.fullmatch(begun[len(written) :]) if begun.startswith(written) else None
                if found is None and rest is not None:
                    found = Filter(known[spelling], *_parts(rest))
        if found is None:
            some = ", ".join(map(visible, islice(known.values(), 10)))
            raise ValueError(f"{visible(text)!r:.200} is not a filter: {_HOW}; columns are {some:.500}")
        return found

    def holds(self, value: object) -> bool:
        """Whether a value of the column meets it."""
        try:
            found = _plain(value)
            if self.comparison == "contains":
                return self._is_in(found)
            return self._is(found)
        except Exception:  # of any kind: the value is a user's own
            return False

    def _is(self, found: object) -> bool:
        wanted = _like(found, self.value)
        if wanted is None and found is not None:
            return self.comparison == "!="
        if isinstance(wanted, float) and math.isnan(wanted):
            is_same = isinstance(found, float) and math.isnan(found)
            return is_same if self.comparison == "=" else not is_same and self.comparison == "!="
        if found is None:
            is_none = self.value.lower() == "none"
            return is_none if self.comparison == "=" else not is_none and self.comparison == "!="
        return bool(_ORDERS[self.comparison](found, wanted))

    def _is_in(self, found: object) -> bool:
        if isinstance(found, str):
            return self.value.casefold() in found.casefold()
        if isinstance(found, bytes):
            return self.value.encode("utf-8", "surrogatepass") in found
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(found, torch.Tensor):
            found = found.detach().cpu().numpy()
        if isinstance(found, np.ndarray):
            wanted = _like(found.reshape(-1)[:1].tolist()[0], self.value) if found.size else None
            return wanted is not None and bool(np.any(found == wanted))
        if isinstance(found, (list, tuple, set, frozenset)):
            same = Filter(self.column, "=", self.value)
            return any(same.holds(one) for one in islice(found, _MOST_ITEMS))
        return self.value in str(found)


def _parts(rest: re.Match[str]) -> tuple[str, str]:
    comparison, value = rest[1].lower(), rest[2].strip()
    quoted = _QUOTED.fullmatch(value)
    return "=" if comparison == "==" else comparison, quoted[2] if quoted else value


def _plain(value: object) -> object:
    """A value without NumPy or torch, if it is a single one."""
    if isinstance(value, np.floating) and value.itemsize < 8:
        return float(str(value))  # the shortest number that is this one, as pages show it
    if isinstance(value, np.generic):
        return value.item()
    shape = getattr(value, "shape", None)
    if shape is not None and tuple(shape) == () and hasattr(value, "item"):
        found: object = value.item()
        is_short = isinstance(found, float) and getattr(value, "itemsize", 8) < 8
        return float(str(np.float32(str(found)))) if is_short else found
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _like(found: object, text: str) -> object:
    """The text as a value of the kind that was found; None if it is not one."""
    try:
        if isinstance(found, bool):
            return {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
        if isinstance(found, (int, float)):
            return int(text) if re.fullmatch(r"[+-]?[0-9]{1,400}", text) else float(text)
        if isinstance(found, Decimal):
            return Decimal(text)
        if isinstance(found, (datetime, date, time)):
            return type(found).fromisoformat(text)
    except (ValueError, InvalidOperation):
        return None
    if isinstance(found, str):
        return text
    if isinstance(found, bytes):
        return text.encode("utf-8", "surrogatepass")
    if isinstance(found, (Mapping, list, tuple, set, frozenset)) or hasattr(found, "shape"):
        return None
    return None if found is None else type(found)(text) if isinstance(found, complex) else None
