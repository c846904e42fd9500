"""Ids and versions as names of files and folders, and back."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

SUFFIXES = ("mdb", "h5", "list")  # of data files: one for each format, and that of lists of them
CACHED = (*SUFFIXES, "shard", "index")  # of files in a cache: also of other libraries
_LONGEST = 240  # bytes of a name


_DIGITS = re.compile(r"([0-9]+)")


def natural(name: str) -> tuple[tuple[str | tuple[int, str], ...], str]:
    """A key to sort names by, with the numbers in them as numbers.

    Example:
        >>> sorted(["1.10", "1.9", "1.9-b", "a2", "a10"], key=natural)
        ['1.9', '1.9-b', '1.10', 'a2', 'a10']
    """
    parts = _DIGITS.split(name)  # texts at even places, digits at odd ones
    digits = [part.lstrip("0") for part in parts]
    return tuple((len(digits[n]), digits[n]) if n % 2 else part for n, part in enumerate(parts)), name


def encoded(what: str, text: str) -> str:
    """A file name for an id or version (`what`) that cannot lead out of its folder on any system.

    Raises:
        ValueError: the text is empty, too long or not valid.
    """
    if not isinstance(text, str) or not text:
        raise ValueError(f"{what} must be a non-empty str, found {text!r:.100}")
    return _encoded(what, text)


@lru_cache(2**15)  # a look at a history asks for those of all its versions
def _encoded(what: str, text: str) -> str:
    try:
        name = quote(text, safe=" !#$&'()+,;=@[]{}~^")
    except UnicodeEncodeError:
        raise ValueError(f"{what} {text!r} is not valid text; leave out the lone surrogates") from None
    if name[0] == "." or name[0] == " ":  # so it is not "..", not hidden, and not one of our own directories
        name = f"%{ord(name[0]):02X}" + name[1:]
    if name[-1] in ". ":  # dropped by Windows
        name = name[:-1] + f"%{ord(name[-1]):02X}"
    if len(name) > _LONGEST:
        raise ValueError(
            f"{what} is {len(name)} bytes percent-encoded, {_LONGEST} are allowed; shorten {text[:40]!r}..."
        )
    return name


@lru_cache(2**15)
def decoded(name: str) -> str | None:
    """The id or version that a name stands for; None for foreign names, and for our own folders."""
    try:
        return found if encoded("name", found := unquote(name)) == name else None
    except ValueError:
        return None


def folder_of(id: str, version: str) -> str:
    """The folder of a version below the root of a store."""
    return f"{encoded('id', id)}/{encoded('version', version)}"
