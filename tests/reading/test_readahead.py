"""Reading ahead of a sampler gives the same rows as reading when asked."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchyoga.reading.readahead import Lookahead, batches_per_read
from torchyoga.rows.block import Collector, Rows


class Table:
    """Squares as gathered rows; counts how often it is read."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.reads = 0
        self.row_bytes, self.is_cold = 8, False
        self.fails_at = fails_at

    def take(self, rows: np.ndarray) -> Rows:
        self.reads += 1
        if self.fails_at in rows.tolist():
            raise OSError("this row cannot be read")
        collector = Collector()
        for row in rows.tolist():
            collector.add(row * row, row)
        return Rows(collector.take())


def test_batches_of_the_order_are_read_together() -> None:
    table, order = Table(), np.random.default_rng(0).permutation(1000)
    ahead = Lookahead(table, order.tolist(), order)
    for start in range(0, 1000, 10):
        batch = order[start : start + 10].tolist()
        found = ahead.rows(batch)
        assert found is not None
        assert found.exact() == [row * row for row in batch]  # type: ignore[attr-defined]
    assert table.reads < 10


@given(st.lists(st.integers(0, 30), max_size=60), st.data())
def test_whatever_is_asked_for_the_rows_are_right(order: list[int], data: st.DataObject) -> None:
    ahead = Lookahead(Table(), order, np.array(order, np.int64))
    for _ in range(8):
        start = data.draw(st.integers(0, max(0, len(order) - 1)))
        asked = data.draw(
            st.one_of(st.just(order[start : start + 5]), st.lists(st.integers(0, 30), min_size=1, max_size=5))
        )
        found = ahead.rows(asked) if asked else None
        if found is not None:
            assert found.exact() == [row * row for row in asked]  # type: ignore[attr-defined]


def test_a_batch_across_two_announcements_is_not_read_ahead_but_the_next_is() -> None:
    order = list(range(100, 140))
    ahead = Lookahead(Table(), order, np.array(order))
    assert ahead.rows([7, 8, 100, 101]) is None
    found = ahead.rows([102, 103])
    assert found is not None
    assert found.exact() == [102**2, 103**2]  # type: ignore[attr-defined]


def test_a_later_row_that_fails_does_not_fail_this_batch() -> None:
    order = list(range(40))
    table = Table(fails_at=25)
    table.row_bytes = 2**18  # two batches at once
    ahead = Lookahead(table, order, np.array(order))
    delivered = 0
    for start in range(0, 20, 5):
        found = ahead.rows(order[start : start + 5])
        delivered += found is not None
    assert delivered >= 1  # the others are read by themselves by the caller


def test_large_batches_are_read_one_by_one() -> None:
    assert batches_per_read(3 * 2**20) == 1
    assert batches_per_read(1) == 16
    assert batches_per_read(0) == 16
