"""Pauses between tries."""

from __future__ import annotations

from torchyoga.stores.retry import pause_after


def test_pauses() -> None:
    for chance in (0.0, 0.3, 1.0):
        assert 0 <= pause_after(1, chance, True) <= 0.2
        assert 4 <= pause_after(50, chance, False) <= 8
    assert [pause_after(tries, 1.0, True) for tries in range(1, 99)] == sorted(
        pause_after(tries, 1.0, False) for tries in range(1, 99)
    )
