"""What tests of several sources ask for."""

from __future__ import annotations

import pytest


@pytest.fixture
def threads_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads read files however quickly they come."""
    monkeypatch.setattr("torchyoga.reading.stored_ref._WORTH_A_THREAD", 0.0)
