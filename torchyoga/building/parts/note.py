"""What is noted of a part: its files when it is done, or why it is not."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...rows.types import Json
from ...versions.manifest import FileEntry, is_token

__all__ = ["Failure", "PartNote"]

_LONGEST = 4000  # characters of a message


@dataclass(frozen=True)
class PartNote:
    """A part that is done.

    Attributes:
        plan: the token of its plan; `attempt`: of who built it, which begins the names of its files.
        rows: how many it has; `files`: its files.
        ends: digests of its first and its last row, where rows have numbers.
        seconds: how long it took; `host`: the machine and the process.
        is_random: its first row was another one when it was read again.
        found: what the info of the version is to say besides.
        stats: statistics of its columns, to be merged with those of others; empty if they are not wanted.
    """

    plan: str
    attempt: str
    rows: int
    files: tuple[FileEntry, ...]
    ends: tuple[str, ...] = ()
    seconds: float = 0.0
    host: str = ""
    is_random: bool = False
    found: Json = field(default_factory=dict)
    stats: Json = field(default_factory=dict)

    def to_json(self) -> Json:
        """Plain data."""
        return {**vars(self), "files": [file.to_json() for file in self.files], "ends": list(self.ends)}

    @staticmethod
    def from_json(data: Json) -> PartNote:
        """The note that `to_json` described; ValueError, TypeError or KeyError if it is none."""
        files = tuple(map(FileEntry.from_json, data["files"]))
        rows, ends = data["rows"], tuple(data["ends"])
        if type(rows) is not int or sum(file.rows for file in files) != rows:
            raise ValueError(f"its files do not hold {rows!r:.40} rows")
        if not (is_token(data["plan"]) and is_token(data["attempt"])):
            raise ValueError("it names no plan or no attempt")
        if not all(file.name.startswith(f"{data['attempt']}-") for file in files):
            raise ValueError("it names files of another attempt")
        if (
            not isinstance(data["stats"], dict)
            or not isinstance(data["found"], dict)
            or not all(isinstance(end, str) for end in ends)
        ):
            raise TypeError("what it found must be an object, and the ends text")
        if type(data["seconds"]) not in (int, float) or not 0 <= data["seconds"] < 1e9:
            raise ValueError(f"not seconds: {data['seconds']!r:.40}")
        return PartNote(
            plan=data["plan"],
            attempt=data["attempt"],
            rows=rows,
            files=files,
            ends=ends,
            seconds=float(data["seconds"]),
            host=str(data["host"])[:200],
            is_random=data["is_random"] is True,
            found=data["found"],
            stats=data["stats"],
        )


@dataclass(frozen=True)
class Failure:
    """An attempt at a part that ended with an error.

    Attributes:
        part: which part; `row`: the row at which the source failed, None if that is unknown.
        kind: the class of the error; `text`: its message; `trace`: where it came from.
        is_final: another attempt would end alike, as with a row that does not fit.
        host: the machine and the process.
    """

    part: int
    kind: str
    text: str
    host: str
    row: int | None = None
    is_final: bool = False
    trace: str = ""

    def to_json(self) -> Json:
        """Plain data."""
        return {**vars(self), "text": self.text[:_LONGEST], "trace": self.trace[-_LONGEST:]}

    @staticmethod
    def from_json(data: Json) -> Failure:
        """The failure that `to_json` described; ValueError, TypeError or KeyError if it is none."""
        row = data["row"]
        if type(data["part"]) is not int or (row is not None and type(row) is not int):
            raise TypeError("parts and rows must be ints")
        kind, text, host, trace = (str(data[key])[:_LONGEST] for key in ("kind", "text", "host", "trace"))
        return Failure(data["part"], kind, text, host, row, data["is_final"] is True, trace)
