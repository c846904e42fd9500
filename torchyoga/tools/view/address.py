"""Pages and what they are about <-> the addresses of a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

__all__ = ["Refused", "link", "number_in", "parameters"]

_MOST_FIELDS = 16
_NUMBER = re.compile(r"[0-9]{1,18}")


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
        >>> from torchyoga.tools.view.address import link
        >>> link("rows", id="a/b", version="..", start=None)
        'rows?id=a%2Fb&version=..'
    """
    fields = {name: str(value) for name, value in values.items() if value is not None}
    return f"{page or './'}?{urlencode(fields)}" if fields else page or "./"


def parameters(query: str) -> dict[str, str]:
    """What stands behind the question mark, by name.

    Raises:
        Refused: it is not what `link` writes.
    """
    try:
        fields = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS, strict_parsing=False
        )
    except ValueError:
        raise Refused(400, "the address is not one of this server; go back to the start") from None
    return dict(fields)


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
