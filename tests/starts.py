"""How processes are started that inherit nothing."""

from __future__ import annotations

import pytest

__all__ = ["FRESH_STARTS"]

# Both send what a process needs as a pickle; a spawned one imports torch first, for seconds.
FRESH_STARTS = ["forkserver", pytest.param("spawn", marks=pytest.mark.rest)]
