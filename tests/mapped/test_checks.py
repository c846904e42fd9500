"""Every unit is compared once, when it is first read, whatever the blocks are and whichever thread reads."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchyoga.mapped.checks import Checks, num_units, unit_bytes_of, unit_checksums


@given(st.integers(0, 100_000))
def test_units_are_whole_items_of_a_page_or_more(item_bytes: int) -> None:
    size = unit_bytes_of(item_bytes)
    assert size % max(1, item_bytes) == 0
    assert 4096 <= size < 4096 + max(1, item_bytes)


@given(st.binary(max_size=50), st.integers(1, 20))
def test_checksums_of_units(data: bytes, size: int) -> None:
    found = unit_checksums(np.frombuffer(data, np.uint8), size)
    assert found.tolist() == [zlib.crc32(data[i : i + size]) for i in range(0, len(data), size)]
    assert num_units(np.array([len(data)]), size).tolist() == [len(found)]


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(1, 9)), max_size=4),
    st.data(),
)
def test_missing_units_against_a_set(files: list[tuple[list[int], int]], data: Any) -> None:
    checks = Checks()
    sizes: list[tuple[int, int]] = []  # bytes of each block, and of its units
    for nbytes, unit in files:
        checks.append(num_units(np.array(nbytes), unit), unit)
        sizes += [(n, unit) for n in nbytes]
    done: set[tuple[int, int]] = set()
    every = {(block, nth) for block, (n, unit) in enumerate(sizes) for nth in range(-(-n // unit))}
    assert checks.complete == (not every)
    full = [block for block, (n, _) in enumerate(sizes) if n]
    for _ in range(8 if full else 0):
        blocks = data.draw(st.lists(st.sampled_from(full), min_size=1, max_size=4))
        spans = []
        for block in blocks:
            low = data.draw(st.integers(0, sizes[block][0] - 1))
            spans.append((low, data.draw(st.integers(low, sizes[block][0]))))
        low, high = np.array(spans).T
        wanted = {
            (block, nth)
            for block, (a, b) in zip(blocks, spans, strict=True)
            for nth in range(a // sizes[block][1], (b - 1) // sizes[block][1] + 1 if b > a else 0)
        }
        units, found = checks.missing(np.array(blocks), low, high)
        named = set()
        places = np.stack(checks.places(units, found), axis=1).tolist()
        for (nth, begin, size), block in zip(places, found.tolist(), strict=True):
            assert (begin, size) == (nth * sizes[block][1], sizes[block][1])
            named.add((block, nth))
        checks.mark(units)
        assert named == wanted - done
        done |= wanted
        assert checks.complete == (done == every)
        assert not len(checks.missing(np.array(blocks), low, high)[0])


def test_a_file_without_checksums_counts_as_checked() -> None:
    checks = Checks()
    checks.append(np.array([3, 9]), 10, done=True)
    assert checks.complete
    checks.append(np.array([0, 0]), 10)
    assert checks.complete
    checks.append(np.array([1]), 10)
    assert not checks.complete
