"""What a manifest says besides its rows: how the version was made, and the info that the user keeps with it.

Note 6. Lineage is read by its reader, not by the manifest.
A version whose lineage is of a later torchyoga, or forged, has the same rows as any other, and opens. Whoever
shows it takes the entries that are of the right kind and size, and writes control characters as escapes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..process.lazy import np
from ..rows.types import Array, Json

MOST_SOURCE = 64 * 2**10  # bytes of a source text
_MOST_TEXT = {"function": 300, "user": 100, "host": 300, "message": 4096}
_MOST_PACKAGES, _MOST_NAME = 100, 100
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CODE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Parent:
    """A version that another version of the same id was made from.

    Attributes:
        version: its name.
        fingerprint: of its rows.
        rows: how many it has.
        is_prefix: the other version begins with its rows, as after `append`; a state of this one can then be
            carried over.
        columns: for each column of the other version its number in this one, -1 if it has none of that name,
            as it has none for columns beyond; None if columns of both have the same numbers.
    """

    version: str
    fingerprint: str
    rows: int
    is_prefix: bool
    columns: tuple[int, ...] | None = None

    def with_columns(self, numbers: Sequence[int]) -> Parent:
        """This parent, for a version made of the other: for each of its columns the number in that, or -1."""
        numbers = [self._number(column) for column in numbers]
        is_alike = all(number in (-1, place) for place, number in enumerate(numbers))
        return replace(self, columns=None if is_alike else tuple(numbers))

    def numbers_of(self, columns: Sequence[int]) -> tuple[int, ...] | None:
        """The numbers of some columns of the other version in this one; None if it lacks one."""
        found = tuple(map(self._number, columns))
        return None if -1 in found else found

    def _number(self, column: int) -> int:
        if self.columns is None or column < 0:
            return column
        return self.columns[column] if column < len(self.columns) else -1

    def to_json(self) -> Json:
        """Plain data."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @staticmethod
    def from_json(data: Json) -> Parent:
        """The parent that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        version, fingerprint = data["version"], data["fingerprint"]
        rows, is_prefix = data["rows"], data["is_prefix"]
        if not (isinstance(version, str) and version and isinstance(fingerprint, str)):
            raise TypeError("the version and the fingerprint of a parent must be text")
        if type(rows) is not int or not 0 <= rows < 2**62 or type(is_prefix) is not bool:
            raise ValueError(f"not the rows of a parent: {rows!r:.40}")
        columns = data.get("columns")
        if not all(type(number) is int and -1 <= number < 2**31 for number in columns or ()):
            raise ValueError(f"not the columns of a parent: {columns!r:.80}")
        return Parent(version, fingerprint, rows, is_prefix, None if columns is None else tuple(columns))


@dataclass(frozen=True)
class Lineage:
    """How a version was made, as far as its manifest says it.

    Attributes:
        function: the name of the function or class that made the rows, with its module.
        code: a digest of its code, and of that of its module which it names.
        source: that source.
        commit: of the git repository; `dirty`: files that it tracks had changed.
        packages: versions of Python, torch, NumPy and torchyoga, by name.
        user: the user name; `host`: of the machine.
        seconds: that the build took, of all builders together.
        message: what the user said about it.
    """

    function: str | None = None
    code: str | None = None
    source: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    packages: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    host: str | None = None
    seconds: float | None = None
    message: str | None = None

    @staticmethod
    def of(data: Json) -> Lineage:
        """The lineage that an entry of a manifest describes, whatever that holds.

        Example:
            >>> Lineage.of({"user": "ada", "commit": 7, "message": "x" * 10**6})
            ... # doctest: +ELLIPSIS
            Lineage(function=None, ..., commit=None, ..., user='ada', ..., message=None)
        """
        texts = {name: _text(data.get(name), most) for name, most in _MOST_TEXT.items()}
        commit, code = _text(data.get("commit"), 64), _text(data.get("code"), 32)
        source, seconds = _text(data.get("source"), MOST_SOURCE), data.get("seconds", -1)
        packages = data.get("packages")
        named = packages.items() if isinstance(packages, dict) and len(packages) <= _MOST_PACKAGES else ()
        return Lineage(
            commit=commit if commit and _COMMIT.fullmatch(commit) else None,
            code=code if code and _CODE.fullmatch(code) else None,
            source=source if source and len(source.encode(errors="replace")) <= MOST_SOURCE else None,
            dirty=data["dirty"] if type(data.get("dirty")) is bool else None,
            packages={
                name: version
                for name, version in named
                if len(name) <= _MOST_NAME and _text(version, _MOST_NAME) is not None
            },
            seconds=float(seconds) if type(seconds) in (int, float) and 0 <= seconds < 2**53 else None,
            **texts,
        )


def sendable(data: Json) -> Json:
    """The lineage of a version as it may be sent to a store: without source and host.

    Example:
        >>> sendable({"user": "ada", "host": "lab-7"})
        {'user': 'ada'}
    """
    return {name: value for name, value in data.items() if name not in ("source", "host")}


def _text(value: object, most: int) -> str | None:
    return value if isinstance(value, str) and len(value) <= most else None


MOST_BYTES = 2**20  # as JSON
MOST_DEPTH = 32
_PLAIN = {str, int, float, bool}


def plain(info: object) -> Json:
    """A copy of `info` as it comes back from JSON: tuples and arrays are lists, subclasses of
    numbers and NumPy's scalars are numbers.

    Raises:
        TypeError: it is not a dict with text as keys, or holds something that JSON does not have; says where.
        ValueError: it nests too deep or is too long; or it has a number or a text that JSON cannot express.

    Example:
        >>> plain({"classes": ("cat", "dog"), "mean": 0.5})
        {'classes': ['cat', 'dog'], 'mean': 0.5}
    """
    if not isinstance(info, Mapping):
        raise TypeError(f"info must be a dict, found a {type(info).__name__}")
    copied = _PlainCopy().of(info, "info", 0)
    assert isinstance(copied, dict)
    return copied


class _PlainCopy:
    """Makes one copy, and counts its size."""

    def __init__(self) -> None:
        self._left = MOST_BYTES

    def of(self, value: object, where: str, depth: int) -> object:
        """The copy of a value, at a place with this name."""
        if depth > MOST_DEPTH:
            raise ValueError(f"info nests deeper than {MOST_DEPTH}, at {where:.80}; make it flatter")
        self._pay(2, where)
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise TypeError(
                        f"{where} has the key {key!r:.80}, but keys of JSON are text; use str({key!r:.80})"
                    )
            return {
                self._scalar(key, where): self.of(item, f"{where}[{key!r:.40}]", depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.of(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
        if value is None or type(value) in _PLAIN:  # so that plain data does not need NumPy
            return self._scalar(value, where)
        if isinstance(value, np.ndarray):
            return self.of(self._listed(value, where), where, depth + 1)
        if isinstance(value, (np.bool_, np.integer, np.floating)) and not isinstance(value, np.timedelta64):
            value = value.item()
        return self._scalar(value, where)

    def _listed(self, array: Array, where: str) -> object:
        if array.dtype.kind in "mMV":  # as lists, some times would be numbers
            raise TypeError(
                f"{where} is an array of {array.dtype}, which JSON does not have; keep it as text"
            )
        nbytes = 2 * math.prod(max(1, extent) for extent in array.shape)
        if nbytes > self._left:  # before a list is made of it
            self._pay(nbytes, where)
        return array.tolist()

    def _scalar(self, value: object, where: str) -> object:
        if isinstance(value, str):
            value = str.__str__(value)
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{where} is not valid text; leave out the lone surrogates") from None
        elif isinstance(value, int) and not isinstance(value, bool):
            value = int(value)
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"{where} is an int that does not fit 64 bits; keep it as text")
        elif isinstance(value, float):
            value = float(value)
            if not math.isfinite(value):
                raise ValueError(f"{where} is {value}, which JSON does not have; use None or text")
        elif value is not None and not isinstance(value, bool):
            raise TypeError(
                f"{where} is a {type(value).__name__}, which JSON does not have; info holds dict, list, str, "
                "int, float, bool, None and arrays of them: for a tensor pass .tolist()"
            )
        self._pay(len(json.dumps(value)), where)
        return value

    def _pay(self, nbytes: int, where: str) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise ValueError(
                f"info is longer than {MOST_BYTES} bytes of JSON, at {where:.80}; keep large data as a "
                "dataset"
            )
