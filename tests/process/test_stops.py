"""Signals that ask a program to save, while several listen."""

from __future__ import annotations

import os
import signal

import pytest

from torchyoga.process.stops import Stops, listened


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="this system has no SIGUSR2")
@pytest.mark.parametrize("first", [0, 1])
def test_the_last_of_those_that_listen_notes_a_signal_in_whatever_order_they_leave(first: int) -> None:
    number, both = signal.SIGUSR2, [Stops(["SIGUSR2"]) for _ in range(2)]
    before = signal.getsignal(number)
    for one in both:
        one.listen()
    os.kill(os.getpid(), number)
    assert [one.asked for one in both] == [0, number]
    both[1].asked = 0
    both.pop(first).leave()
    assert number in listened()
    os.kill(os.getpid(), number)
    assert both[0].asked == number
    both[0].asked = 0
    both[0].leave()
    assert number not in listened()
    assert signal.getsignal(number) is before
