"""Memory is used again once nothing holds it, and not before."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from children import status_of_child

from torchyoga.process.buffers import BufferPool, Slot, address_of, counts_can_be_trusted, held, placing

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

SIZE = 2**20


def test_reference_counts_show_what_is_held() -> None:
    assert counts_can_be_trusted()
    arrays = [np.empty(8, np.uint8), np.empty(8, np.uint8), None]
    assert held(arrays)[:2] == [False, False]
    view = arrays[1][2:].reshape(2, 3)[1:]  # type: ignore[index]
    assert held(arrays)[:2] == [False, True]
    del view
    for _ in range(10_000):  # the interpreter may have optimised the function meanwhile
        assert not held(arrays)[0]
    kept = arrays[0]
    for _ in range(10_000):
        assert held(arrays)[0]
    assert kept is not None


@pytest.mark.parametrize(
    "made",
    [
        lambda found: found[5:],
        lambda found: memoryview(found)[5:],
        lambda found: torch.from_numpy(found).view(torch.int32)[1:],
        lambda found: torch.from_numpy(found)[5:].untyped_storage(),
        lambda found: torch.utils.dlpack.to_dlpack(torch.from_numpy(found)),
        lambda found: np.from_dlpack(torch.from_numpy(found))[::2],
        lambda found: np.frombuffer(memoryview(found), np.int64)[3:],
    ],
)
def test_whatever_is_made_from_a_buffer_holds_it(made: Any) -> None:
    pool = BufferPool()
    address = address_of(pool.empty(SIZE))
    assert address_of(pool.empty(SIZE)) == address
    export = made(pool.empty(SIZE))
    assert address_of(pool.empty(SIZE)) != address
    del export
    assert address in (address_of(pool.empty(SIZE)), address_of(pool.empty(SIZE)))


def test_a_buffer_of_another_size_is_not_cut_up() -> None:
    pool = BufferPool()
    address = address_of(pool.empty(SIZE))
    assert address_of(pool.empty(SIZE // 4)) != address
    assert address_of(pool.empty(2 * SIZE)) != address
    assert address_of(pool.empty(SIZE // 2 + 1)) == address


def test_the_memory_kept_is_bounded() -> None:
    pool = BufferPool(4 * SIZE)
    for _ in range(3):
        many = [pool.empty(SIZE) for _ in range(10)]
        assert len({address_of(found) for found in many}) == 10
        assert sum(found.size for found in pool._kept) <= 4 * SIZE
        del many


def test_memory_of_a_slot_is_handed_out_first() -> None:
    pool, place = BufferPool(), Slot(np.empty(3 * SIZE, np.uint8))
    with placing(place):
        found = [pool.empty(SIZE) for _ in range(4)]
    inside = [0 <= address_of(each) - address_of(place.memory) < place.memory.size for each in found]
    assert inside == [True, True, True, False]


def test_threads_and_forks_never_share_a_buffer() -> None:
    pool, wrong = BufferPool(8 * SIZE), list[int]()

    def fill(number: int) -> None:
        mine: list[Any] = []
        for turn in range(400):
            found = pool.empty(SIZE // 8 + 64 * number)
            found[:] = number
            mine = [*mine[-(turn % 5) :], found]
            if any((each[[0, -1]] != number).any() for each in mine):
                wrong.append(number)

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = pool.empty(SIZE // 8)
        before[:] = 77

        def child(before: Any = before) -> None:
            for number in range(20):
                pool.empty(SIZE // 8)[:] = number
            assert (before == 77).all()

        assert status_of_child(child) == 0
        for number in range(20):
            pool.empty(SIZE // 8)[:] = number
        assert (before == 77).all()
    for thread in threads:
        thread.join()
    assert not wrong
