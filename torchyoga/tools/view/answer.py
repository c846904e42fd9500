"""The address of a request <-> its page and parameters; and what it is answered with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from urllib.parse import parse_qsl, quote_plus

HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
_MOST_FIELDS = 24
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    Attributes:
        status: of HTTP; `type`: the media type; `body`: the bytes.
    """

    status: int
    type: str
    body: bytes


class Refused(Exception):
    """A request that is not answered as asked: the status, and what to say."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def link(page: str, **values: object) -> str:
    """The address of a page, seen from any other page.

    What it is about stands behind the question mark, where browsers change nothing: in a path they would
    resolve an id such as `..`, also if it is escaped.

    Example:
        >>> link("rows", id="a/b", version="..", start=None)
        'rows?id=a%2Fb&version=..'
    """
    fields = "&".join(f"{name}={_quoted(str(value))}" for name, value in values.items() if value is not None)
    return f"{page or './'}?{fields}" if fields else page or "./"


# A page has thousands of links with the same names, which may hold halves of characters.
_quoted = lru_cache(2**14)(partial(quote_plus, errors="surrogatepass"))


def parameters(query: str) -> dict[str, str]:
    """The parameters behind the question mark, by name.

    Raises:
        Refused: it is not what `link` writes.
    """
    try:
        fields = parse_qsl(query, keep_blank_values=True, errors="surrogatepass", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Refused(400, "the address is not one of this server; go back to the start") from None
    return dict(fields)


def name_in(values: Mapping[str, str], what: str) -> str:
    """A parameter that must be there.

    Raises:
        Refused: it is not.
    """
    if not values.get(what):
        raise Refused(400, f"the address names no {what}; go back to the start")
    return values[what]


def number_in(values: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A number of at least 0.

    Raises:
        Refused: there is none, or something else.
    """
    text = values.get(name, "")
    if not text and default is not None:
        return default
    if not _NUMBER.fullmatch(text):
        raise Refused(400, f"{name} must be a number from 0 on, of at most 18 digits; found {text[:40]!r}")
    return int(text)
