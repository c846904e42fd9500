"""How states and receipts are written: as plain data that JSON takes."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from ..process.digests import hexdigest

# What a state records so that it is not continued in another order; lists of JSON are tuples here.
Pin: TypeAlias = int | str | tuple[Any, ...] | None
Saved: TypeAlias = dict[str, Any]  # a state or a receipt as a dict: checked by whoever reads it


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
