"""Ways to start processes that inherit nothing."""

from __future__ import annotations

import pytest

# Both send what a process needs as a pickle; a spawned one first imports torch, which takes seconds.
FRESH_STARTS = ["forkserver", pytest.param("spawn", marks=pytest.mark.rest)]
