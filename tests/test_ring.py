"""Batches cross from worker processes in slots of shared memory, and stay as they are while they are held."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

import torchyoga as yoga
from torchyoga.buffers import Place, placing
from torchyoga.nest import mapped
from torchyoga.ring import Parcel, Ring, packed
from torchyoga.testing import assert_rows_equal

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory without a name")


class Pair(NamedTuple):
    one: Any
    other: Any


BATCH = {
    "float": torch.arange(6.0).reshape(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
    "empty": torch.ones(0, 4),
    "bool": [torch.tensor([True, False]), "text", None, 3],
    "pair": Pair(torch.arange(3, dtype=torch.uint8), np.arange(4.0)),
    "across": torch.arange(6).reshape(2, 3).t(),
    "image": torch.ones(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "grad": torch.ones(2, requires_grad=True),
    "array": np.array(["a"]),
    "own": OrderedDict(x=torch.ones(2)),
}


def test_any_batch_crosses_as_it_is() -> None:
    ring = Ring(2)
    slot = ring.send()
    found = packed(BATCH, ring.key, slot, ring.place(slot))
    assert type(found) is Parcel
    got = found.unpacked()
    assert_rows_equal(
        [got[key] for key in BATCH if key != "own"], [v for k, v in BATCH.items() if k != "own"]
    )
    assert type(got["own"]) is OrderedDict
    assert type(got["pair"]) is Pair
    assert got["image"].is_contiguous(memory_format=torch.channels_last)
    got["float"] += 1  # a batch may be written into


def test_what_lies_in_the_slot_is_not_copied_and_what_does_not_fit_travels_by_itself() -> None:
    ring = Ring(1)
    slot = ring.send()
    place = Place(ring.slots[slot][:4096])
    with placing(place):
        inside = place.empty(256)
    assert inside is not None
    inside[:] = 5
    found = packed([torch.from_numpy(inside), torch.ones(10_000)], ring.key, slot, place)
    one, other = found.unpacked()
    assert one.data_ptr() == ring.slots[slot].ctypes.data
    assert one.tolist() == [5] * 256
    assert torch.equal(other, torch.ones(10_000))
    assert packed("text", ring.key, slot, place) == "text"


def test_a_slot_is_free_when_nobody_holds_it() -> None:
    ring = Ring(2)
    first, second = ring.send(), ring.send()
    assert {first, second} == {0, 1}
    assert ring.send() == -1
    batch = packed([torch.ones(3)], ring.key, first, ring.place(first)).unpacked()
    for _ in range(3):
        ring.arrived()
    assert ring.is_idle
    view = batch[0][1:]
    del batch
    assert ring.send() == second
    ring.arrived()
    assert view.tolist() == [1, 1]
    del view
    assert {ring.send(), ring.send()} == {0, 1}


@pytest.fixture
def ref(tmp_path: Path) -> yoga.DataRef:
    rows = [{"x": np.full(3, i, np.float32), "y": i, "s": str(i), "z": np.arange(i)} for i in range(101)]
    return yoga.Storage(tmp_path).submit(rows, "rows", "1", progress=False)


class Doubled(Dataset[Any]):
    """A transform over a DataRef."""

    def __init__(self, ref: yoga.DataRef) -> None:
        self.ref = ref

    def __len__(self) -> int:
        return len(self.ref)

    def __getitem__(self, index: int) -> Any:
        row = self.ref[index]
        return {"x": row["x"] * 2, "y": row["y"], "s": row["s"]}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_all_batches_held_are_as_without_workers(ref: yoga.DataRef, method: str) -> None:
    for data, collate in ((ref, yoga.jagged), (Doubled(ref), None)):
        expected = list(yoga.DataLoader(data, batch_size=3, shuffle=True, seed=0, collate_fn=collate))
        loader = yoga.DataLoader(
            data, 3, True, seed=0, num_workers=2, collate_fn=collate, multiprocessing_context=method
        )
        assert_rows_equal(list(loader), expected)  # many more than there are slots


def test_batches_in_use_are_never_written_over(ref: yoga.DataRef) -> None:
    loader = yoga.DataLoader(ref, batch_size=2, num_workers=2, collate_fn=lambda rows: rows[0]["x"] + 0)
    rng = np.random.default_rng(0)
    held: list[tuple[Any, Any]] = []
    for _ in range(3):
        for batch in loader:
            held.append((batch, batch.copy()))
            held = [pair for pair in held if rng.random() < 0.8]
            assert all(np.array_equal(batch, copy) for batch, copy in held)


def test_two_iterators_at_once_do_not_share_their_slots(ref: yoga.DataRef) -> None:
    loader = yoga.DataLoader(ref, batch_size=4, num_workers=1, collate_fn=yoga.jagged)
    one = iter(loader)
    kept = [next(one) for _ in range(3)]
    copies = [batch["x"].clone() for batch in kept]
    whole = [batch["x"] for batch in iter(loader)]
    assert len(whole) == 26
    assert all(torch.equal(batch["x"], copy) for batch, copy in zip(kept, copies, strict=True))


def test_the_memory_is_used_again_and_given_back(ref: yoga.DataRef) -> None:
    loader = yoga.DataLoader(ref, batch_size=4, num_workers=1, collate_fn=yoga.jagged)
    list(loader)
    ring = loader._idle_ring
    assert ring is not None
    list(loader)
    assert loader._idle_ring is ring
    del loader, ring
    gc.collect()
    with open("/proc/self/maps") as maps:
        assert "memfd:torchyoga" not in maps.read()
    assert not multiprocessing.active_children()


class Faulty(yoga.DataRef):
    """A DataRef of small rows, so that batches travel together; one of them cannot be read."""

    row_bytes = 8

    def __len__(self) -> int:
        return 40

    def take(self, rows: Any) -> Any:
        if 9 in rows:
            raise OSError("row 9 cannot be read")
        return [int(row) for row in rows]


@pytest.mark.parametrize("workers", [0, 1])
def test_of_batches_that_travel_together_only_the_failing_one_fails(workers: int) -> None:
    iterator = iter(yoga.DataLoader(Faulty(), batch_size=4, num_workers=workers))
    got: list[Any] = []
    for _ in range(11):
        try:
            got.append(next(iterator).tolist())
        except OSError as error:
            got.append("row 9 cannot be read" in str(error))
        except StopIteration:
            got.append("over")
    assert got == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        True,
        *([i, i + 1, i + 2, i + 3] for i in range(12, 40, 4)),
        "over",
    ]


def test_a_worker_sees_the_users_dataset() -> None:
    def init(worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.offset = 100 + worker_id  # type: ignore[attr-defined]

    class Shifted(Dataset[int]):
        offset = 0

        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            return index + self.offset

    loader = yoga.DataLoader(Shifted(), batch_size=4, num_workers=1, worker_init_fn=init)
    assert next(iter(loader)).tolist() == [100, 101, 102, 103]


def test_without_such_memory_batches_travel_as_torch_sends_them(
    ref: yoga.DataRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert Ring.made(2) is None
    loader = yoga.DataLoader(ref, batch_size=4, num_workers=2, collate_fn=yoga.jagged)
    assert_rows_equal(list(loader), list(yoga.DataLoader(ref, batch_size=4, collate_fn=yoga.jagged)))


class Replay:
    """Mixes each batch with the one six before it, which it keeps."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, rows: Any) -> Any:
        now = yoga.jagged(rows)
        self.kept.append(now["x"])
        return {"now": now["x"], "old": self.kept[-7:][0]}


class Keeping(yoga.DataRef):
    """Keeps what it has given, over another DataRef."""

    def __init__(self, ref: yoga.DataRef) -> None:
        self.ref = ref
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return len(self.ref)

    def take(self, rows: Any) -> Any:
        self.kept.append(self.ref.take(rows))
        return self.kept[-7:][0][: len(rows)]


def test_what_the_users_code_keeps_is_not_written_over(ref: yoga.DataRef) -> None:
    for collate, data in ((Replay(), ref), (Replay(), Keeping(ref)), (yoga.jagged, Keeping(ref))):
        options: Any = {"batch_size": 2, "collate_fn": collate, "shuffle": True, "seed": 0, "drop_last": True}
        expected = [copied(batch) for batch in yoga.DataLoader(data, **options)]
        if isinstance(collate, Replay):
            collate.kept.clear()
        if isinstance(data, Keeping):
            data.kept.clear()
        found = [copied(batch) for batch in yoga.DataLoader(data, num_workers=1, **options)]
        assert_rows_equal(found, expected)


def copied(batch: Any) -> Any:
    return mapped(batch, lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
