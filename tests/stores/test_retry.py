"""Pauses before requests of many processes."""

from __future__ import annotations

import pytest

from torchyoga.stores.retry import first_pause, num_starting, pause_after


def test_pauses() -> None:
    for chance in (0.0, 0.3, 1.0):
        assert 0 <= pause_after(1, chance, True) <= 0.2
        assert 4 <= pause_after(50, chance, False) <= 8
        assert first_pause(1, chance) == 0
        assert 0 <= first_pause(10**9, chance) <= 10
    assert [pause_after(tries, 1.0, True) for tries in range(1, 99)] == sorted(
        pause_after(tries, 1.0, False) for tries in range(1, 99)
    )


def test_how_many_start_is_what_launchers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert num_starting() == 1
    for text, count in (("64", 64), ("x", 1), ("0", 1), ("-3", 1), ("9" * 9, 2**20), ("9" * 99, 1)):
        monkeypatch.setenv("SLURM_NTASKS", text)
        assert num_starting() == count
