"""Python's own iterables."""

from __future__ import annotations

from typing import Any

from torchyoga.adapters.sources import IteratorSource, source_of


def test_iterables_are_read_once() -> None:
    class Numbers:
        read = 0

        def __iter__(self) -> Any:
            self.read += 1
            return iter([1, 2])

        def __call__(self) -> Any:
            raise AssertionError("an iterable is iterated, not called")

    numbers = Numbers()
    source = source_of(numbers)
    assert isinstance(source, IteratorSource)
    assert (source.name, source.length, source.seekable, numbers.read) == ("Numbers", None, False, 0)
    assert list(source.rows(0)) == [1, 2]
    assert numbers.read == 1


def test_only_what_can_be_iterated_is_taken_for_a_source() -> None:
    for data in (5, None, object(), lambda: [1]):
        assert source_of(data) is None
