"""Some of the libraries that decode, in place of all that are installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchyoga.coding import libraries


@contextmanager
def only(purpose: str, module: str) -> Iterator[None]:
    """One library alone is known for a purpose."""
    forget, known = libraries.here_for.cache_clear, libraries.KNOWN
    found = tuple(one for one in known[purpose] if one[0] == module) or ((module, "none"),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(known, purpose, found)
        forget()
        yield
    forget()
