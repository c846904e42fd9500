"""The meaning of a column's values, where their dtype does not say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from .types import Json

T = TypeVar("T")
_MOST_WORDS = 2**20


@dataclass(frozen=True)
class Codec:
    """How the bytes of a column are encoded.

    Attributes:
        name: such as `jpeg` or `zstd`.
        parameters: pairs of a name and a number, a text or a bool.
    """

    name: str
    parameters: tuple[tuple[str, str | int | float | bool], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(sorted(self.parameters)))  # as they are read back

    def to_json(self) -> Json:
        """Plain data for a manifest."""
        return {"name": self.name, **({"parameters": dict(self.parameters)} if self.parameters else {})}

    @staticmethod
    def from_json(data: Json) -> Codec:
        """The codec that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        parameters = exactly(dict, data.get("parameters", {}))
        for name, value in parameters.items():
            if type(value) not in (str, int, float, bool):
                raise TypeError(f"a codec's {name} is {value!r:.80}")
        return Codec(exactly(str, data["name"]), tuple(parameters.items()))


@dataclass(frozen=True)
class Meaning:
    """The meaning of values. False if that is only what their dtype says.

    Attributes:
        timezone: of times, which are stored in UTC: a name such as `Europe/Berlin`, or `+02:00`.
        scale: of decimals: how many of the digits are behind the point.
        words: of codes: code i stands for `words[i]`.
        codec: of bytes that are encoded.

    Example:
        >>> Meaning(words=("cat", "dog")).to_json()
        {'words': ['cat', 'dog']}
    """

    timezone: str | None = None
    scale: int | None = None
    words: tuple[str, ...] | None = None
    codec: Codec | None = None

    def __bool__(self) -> bool:
        return self != PLAIN

    def to_json(self) -> Json:
        """Plain data for a manifest."""
        found: Json = {}
        if self.timezone is not None:
            found["timezone"] = self.timezone
        if self.scale is not None:
            found["scale"] = self.scale
        if self.words is not None:
            found["words"] = list(self.words)
        if self.codec is not None:
            found["codec"] = self.codec.to_json()
        return found

    @staticmethod
    def from_json(data: Json) -> Meaning:
        """The meaning that `to_json` described; ValueError, TypeError or KeyError if it is not one."""
        exactly(dict, data)
        words = data.get("words")
        if words is not None and len(words) > _MOST_WORDS:
            raise ValueError(f"there are {len(words)} words, {_MOST_WORDS} are allowed")
        return Meaning(
            timezone=exactly(str, data["timezone"]) if "timezone" in data else None,
            scale=exactly(int, data["scale"]) if "scale" in data else None,
            words=None if words is None else tuple(exactly(str, word) for word in words),
            codec=Codec.from_json(data["codec"]) if "codec" in data else None,
        )


PLAIN = Meaning()


def exactly(cls: type[T], value: Any) -> T:
    """A value of a type, not of a subclass; TypeError if it is not."""
    if type(value) is not cls:
        raise TypeError(f"expected {cls.__name__}, found {value!r:.80}")
    return value
