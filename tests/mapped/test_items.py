"""Items by number, compared with a plain array: any blocks, any pieces, any space for decoded blocks."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from children import status_of_child
from hypothesis import example, given
from hypothesis import strategies as st
from waiting import running

from torchyoga.formats import mapped
from torchyoga.formats.items import Cut, Decoded, Items, Mapped, Numbering
from torchyoga.formats.mapped import Bytes, Memory
from torchyoga.process import copies
from torchyoga.process.buffers import address_of

SIZE = 6  # bytes of a piece


def empty(nbytes: int) -> Bytes:
    return np.full(nbytes, 255, np.uint8)


class Model:
    """Items of some pieces, each with its own bytes, and blocks of them, somewhere in memory."""

    def __init__(self, lengths: list[int], pieces: int) -> None:
        self.num_items, self.pieces = sum(lengths), pieces
        self.starts = np.cumsum([0, *lengths])[:-1].astype(np.int64)
        numbers = np.arange(self.num_items * pieces, dtype="<u4").reshape(self.num_items, pieces)
        self.items = np.zeros((self.num_items, pieces, SIZE), np.uint8)
        self.items[..., :4] = numbers[..., None].view(np.uint8)
        self.items[..., 4:] = np.arange(2)
        self.blocks = [
            np.ascontiguousarray(self.items[start : start + n].transpose(1, 0, 2))
            for start, n in zip(self.starts, lengths, strict=True)
        ]
        self.decoded: list[tuple[int, int]] = []

    def mapped(self) -> Mapped:
        whole = np.concatenate([np.empty(0, np.uint8), *(block.reshape(-1) for block in self.blocks[::-1])])
        ends = np.cumsum([block.nbytes for block in self.blocks[::-1]])
        begins = (ends - [block.nbytes for block in self.blocks[::-1]])[::-1]
        addresses = np.array(
            [
                [address_of(whole) + begin + piece * SIZE * block.shape[1] for piece in range(self.pieces)]
                for begin, block in zip(begins, self.blocks, strict=True)
            ]
        ).astype(np.int64)
        items = Mapped(self.pieces, SIZE, Memory([whole]))
        items.append(self.starts, self.num_items, addresses)
        return items

    def decode(self, block: int, piece: int, out: Bytes) -> None:
        self.decoded.append((block, piece))
        out[: self.blocks[block][piece].size] = self.blocks[block][piece].reshape(-1)

    def decoding(self, capacity: int) -> Decoded:
        largest = max(block[0].nbytes for block in self.blocks)
        return Decoded([self.starts], [self.num_items], self.pieces, SIZE, self.decode, largest, capacity)


LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) > 0)
CAPACITY = st.none() | st.integers(0, 150)


def made(lengths: list[int], pieces: int, capacity: int | None) -> tuple[Model, Items]:
    model = Model(lengths, pieces)
    return model, model.mapped() if capacity is None else model.decoding(capacity)


@given(LENGTHS, st.integers(1, 3), CAPACITY, st.data())
def test_items_are_picked_from_any_blocks(
    lengths: list[int], pieces: int, capacity: int | None, data: Any
) -> None:
    model, items = made(lengths, pieces, capacity)
    for _ in range(3):
        numbers = np.array(data.draw(st.lists(st.integers(0, model.num_items - 1), max_size=9)), np.int64)
        found = items.pick(numbers, empty)
        assert found.tobytes() == model.items[numbers].tobytes()
        part = items.pick(numbers, empty, 2, 3)
        assert part.tobytes() == model.items[numbers][..., 2:5].tobytes()


@given(LENGTHS, CAPACITY, st.data())
def test_spans_are_copied_across_blocks(lengths: list[int], capacity: int | None, data: Any) -> None:
    model, items = made(lengths, 1, capacity)
    place = st.integers(0, model.num_items)
    for _ in range(3):
        spans = [sorted(pair) for pair in data.draw(st.lists(st.tuples(place, place), max_size=6))]
        first, last = np.array(spans, np.int64).reshape(-1, 2).T
        found = items.spans(first, last, empty)
        assert found.tobytes() == b"".join(model.items[a:b].tobytes() for a, b in spans)


def test_a_block_is_decoded_once_while_there_is_room() -> None:
    model = Model([4] * 10, 2)
    items = model.decoding(8 * 4 * SIZE)  # space for 4 blocks of 2 pieces
    for block in (0, 1, 2, 3, 0, 1, 2, 3):
        items.pick(np.arange(4 * block, 4 * block + 4), empty)
    assert model.decoded == [(b, p) for b in range(4) for p in range(2)]
    items.pick(np.array([17]), empty)  # block 4 takes the place of block 0, the least recently used
    items.pick(np.array([4, 8, 12]), empty)
    assert len(model.decoded) == 10
    items.pick(np.array([0]), empty)
    assert len(model.decoded) == 12


def test_a_block_that_cannot_be_decoded_is_not_kept() -> None:
    model = Model([2, 2], 1)
    broken = True

    def decode(block: int, piece: int, out: Bytes) -> None:
        model.decode(block, piece, out)
        if block == 1 and broken:
            out[:] = 99
            raise OSError("the chunk is damaged")

    items = Decoded([model.starts], [4], 1, SIZE, decode, 2 * SIZE, 10**6)
    for numbers in ([0, 3], [3], [2]):
        with pytest.raises(OSError, match="damaged"):
            items.pick(np.array(numbers), empty)
        assert items.pick(np.array([1]), empty).tobytes() == model.items[1].tobytes()
    broken = False
    assert items.pick(np.array([3, 0]), empty).tobytes() == model.items[[3, 0]].tobytes()


def test_threads_take_turns() -> None:
    model = Model([3] * 50, 1)
    items = model.decoding(4 * 3 * SIZE)
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        barrier.wait(300)
        for _ in range(200):
            numbers = rng.integers(0, 150, rng.integers(1, 20))
            assert items.pick(numbers, empty).tobytes() == model.items[numbers].tobytes()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8), timeout=300))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_while_a_thread_decodes_goes_on() -> None:
    model = Model([2] * 8, 1)
    entered, leave = threading.Event(), threading.Event()

    def decode(block: int, piece: int, out: Bytes) -> None:
        if block == 7:
            entered.set()
            leave.wait(300)
        model.decode(block, piece, out)

    items = Decoded([model.starts], [16], 1, SIZE, decode, 2 * SIZE, 10**6)
    items.pick(np.arange(4), empty)

    def picks_all() -> None:
        leave.set()
        assert items.pick(np.arange(16), empty).tobytes() == model.items.tobytes()

    with running(lambda: items.pick(np.array([15]), empty)):
        assert entered.wait(300)
        assert status_of_child(picks_all) == 0
        leave.set()


@pytest.mark.quick("0-True-6", "0-True-784", "0-True-12288", "1-True-12289", "8-False-784")
@pytest.mark.parametrize("row_bytes", [1, 6, 784, 12_288, 12_289, 70_003, 300_000])
@pytest.mark.parametrize(("shift", "is_known"), [(0, True), (1, True), (8, False)])
def test_large_reads_are_the_same_from_every_thread_and_torch_divides_other_work_as_before(
    monkeypatch: pytest.MonkeyPatch, row_bytes: int, shift: int, is_known: bool
) -> None:
    if not is_known:
        monkeypatch.setattr(copies, "_openmp", lambda: None)
    monkeypatch.setattr(mapped, "_OWN_READ", 2**20)
    count = max(3, 3 * 2**20 // row_bytes)
    data = np.random.default_rng(0).integers(0, 256, shift + count * row_bytes, dtype=np.uint8)[shift:]
    memory = Memory([data])
    rows = np.random.default_rng(1).integers(0, count, count)
    expected = data.reshape(count, row_bytes)[rows]

    def read() -> tuple[Bytes, int]:
        torch.set_num_threads(3)
        found = memory.gather(address_of(data) + rows * row_bytes, row_bytes, empty)
        return found.reshape(count, row_bytes), torch.get_num_threads()

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(1) as pool:
            reads = [pool.submit(read).result() if n % 2 else read() for n in range(20)]
    finally:
        torch.set_num_threads(before)
    assert all(np.array_equal(found, expected) for found, _ in reads)
    assert {threads for _, threads in reads} == {3}


def test_a_thousand_runs_are_added_without_copying_those_before_each_time() -> None:
    numbering = Numbering()
    held: list[np.ndarray] = []  # so that no two have the same address
    for _ in range(1000):
        numbering.append(np.array([0, 3]), 5)
        held += [table for table in vars(numbering).values() if isinstance(table, np.ndarray)]
    assert len({address_of(table) for table in held}) < 50
    assert numbering.blocks(np.array([0, 4, 999 * Numbering.RUN + 3])).tolist() == [0, 1, 1999]


RUNS = st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=6)


@given(RUNS, st.integers(0, 6))
@example([[2, 3]], 0)
@example([[2, 2, 1], [3], [1, 2]], 1)
@example([[2, 2], [3, 3, 3]], 1)
@example([[2, 2], [], [3]], 0)
@example([[0]], 0)
def test_runs_are_numbered_alike_one_by_one_and_together(runs: list[list[int]], first: int) -> None:
    one_by_one, together = Numbering(), Numbering()
    expected, before = {}, 0
    for number, lengths in enumerate(runs):
        starts = np.cumsum([0, *lengths])[:-1]
        one_by_one.append(starts, sum(lengths))
        for block, (start, length) in enumerate(zip(starts.tolist(), lengths, strict=True), before):
            expected |= {number * Numbering.RUN + item: block for item in range(start, start + length)}
        before += len(lengths)
    for some, run in ((runs[:first], 0), (runs[first:], len(runs[:first]))):
        starts = [start for lengths in some for start in np.cumsum([0, *lengths])[:-1].tolist()]
        counts, num_items = [len(lengths) for lengths in some], [sum(lengths) for lengths in some]
        arrays = (np.array(numbers, np.int64) for numbers in (starts, counts, num_items))
        together.extend(Cut(run, *arrays))
    items = np.array(list(expected), np.int64)
    assert together.blocks(items).tolist() == one_by_one.blocks(items).tolist() == list(expected.values())
    assert together.starts.tolist() == one_by_one.starts.tolist()


def test_arrays_that_are_cut_otherwise_have_another_cut() -> None:
    def cut(*calls: tuple[int, list[int], list[int], list[int]]) -> bytes:
        numbering = Numbering()
        for run, *numbers in calls:
            numbering.extend(Cut(run, *(np.array(each) for each in numbers)))
        return numbering.cut

    cuts = [
        cut((0, [0, 2], [2], [4])),
        cut((0, [0, 3], [2], [4])),
        cut((0, [0, 2], [1, 1], [2, 4])),
        cut((0, [0, 2], [2], [4]), (1, [0, 2], [2], [4])),
    ]
    assert len({*cuts}) == len(cuts)
    assert cuts[0] == cut((0, [0, 2], [2], [4]))


@pytest.mark.skipif(sys.platform != "linux", reason="where torch's OpenMP is known to be found")
def test_torch_can_be_told_not_to_divide_work() -> None:
    assert copies.can_be_undivided()
    with copies.undivided():
        assert torch.get_num_threads() == 1
