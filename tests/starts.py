"""Ways to start processes that inherit nothing."""

from __future__ import annotations

import pytest

# Both send what a process needs as a pickle; a spawned one first imports torch, which takes seconds. Loaders
# and batches of all kinds go to spawned processes in `make test-rest`.
FRESH_STARTS = ["forkserver", pytest.param("spawn", marks=pytest.mark.soak)]
