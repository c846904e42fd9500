"""How states and receipts are written: as plain data that JSON takes."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from ..process.digests import hexdigest

# What a state records so that it is not continued in another order; lists of JSON are tuples here.
Pin: TypeAlias = int | str | tuple[Any, ...] | None
Saved: TypeAlias = dict[str, Any]  # a state or a receipt as a dict: checked by whoever reads it
_OVER_RANKS = {"batch", "cell"}  # arguments that count rows of all ranks together


def digest(*parts: object) -> str:
    """A short name for some arrays, texts and numbers; it begins with "#".

    Args:
        parts: memory is taken as it is, anything else as text.

    Example:
        >>> digest("a", 1) == digest("a", 1) != digest("a1")
        True
    """
    pieces = [part if isinstance(part, memoryview) else memoryview(str(part).encode()) for part in parts]
    return "#" + hexdigest(*(piece for data in pieces for piece in (f"{data.nbytes}:", data)), size=8)


def described(kind: str, **arguments: object) -> str | None:
    """A view as a state tells it, by its arguments, long ones as digests; None if there are none.

    Example:
        >>> described("bucketed", batch=64, pool=8192, lengths=None)
        'bucketed(batch=64, pool=8192)'
    """
    texts = {name: str(value) for name, value in arguments.items() if value is not None}
    texts = {n: text if re.fullmatch(r"[\w#.+-]{1,24}", text) else digest(text) for n, text in texts.items()}
    return f"{kind}({', '.join(f'{name}={text}' for name, text in texts.items())})" if texts else None


def what_differs(saved: str | None, mine: str | None) -> str:
    """How the view that a state is of differs from the one here, and what to keep: for messages.

    Example:
        >>> what_differs("bucketed(batch=4, lengths=#5a)", "bucketed(batch=8, lengths=#5a)")
        'of bucketed(batch=4), but here it is bucketed(batch=8): keep batch=4, which counts rows of all ranks'
    """
    (kind, one), (kind_here, other) = _taken_apart(saved), _taken_apart(mine)
    was, now = _shown(saved), _shown(mine)
    if kind != kind_here:
        return f"of {was}, but here it is {now}: " + (
            f"make it by {kind} again" if kind else "leave that out"
        )
    keep, names = [], [name for name in {**one, **other} if one.get(name) != other.get(name)]
    for name in [name for name in names if name != "of"] or names:  # "of" may follow from the others
        value = one.get(name)
        if value is not None and not value.startswith("#"):
            keep.append(f"{name}={value}" + ", which counts rows of all ranks" * (name in _OVER_RANKS))
        elif name == "of":
            keep.append("the rows that it is made of, and their order")
        else:
            keep.append(f"no {name}" if value is None else f"the same {name}")
    told = f"of another {kind} than here" if was == now else f"of {was}, but here it is {now}"
    return f"{told}: keep {' and '.join(keep)}"


def _taken_apart(text: str | None) -> tuple[str, dict[str, str]]:
    kind, _, arguments = (text or "").removesuffix(")").partition("(")
    pairs = (pair.partition("=") for pair in arguments.split(", ") if pair)
    return kind, {name: value for name, _, value in pairs}


def _shown(text: str | None) -> str:
    """A view as messages show it, without digests."""
    return "rows as they are" if text is None else re.sub(r"(, )?[a-z]+=#[0-9a-f]+", "", text[:1000])[:200]
