"""Batches arrive from workers in slots of shared memory, and stay the same while they are held."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import forked
from loops import idle_ring, ring_of
from own import Made, Mapped
from starts import FRESH_STARTS
from torch.utils.data import get_worker_info
from waiting import PATIENCE

import torchyoga as yoga
from torchyoga.loading import shared_memory as ring_module
from torchyoga.loading.parcel import packed
from torchyoga.loading.shared_memory import Ring
from torchyoga.process.buffers import Slot, address_of, held, is_placing, placing
from torchyoga.rows.types import mapped
from torchyoga.testing import assert_rows_equal

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs anonymous memory files")
# It gets what it needs as one of a fork server does, after an import of torch by each process.
SPAWNED = pytest.param("spawn", marks=pytest.mark.soak)


def test_arrays_in_the_slot_are_not_copied_and_arrays_that_do_not_fit_travel_separately() -> None:
    ring = Ring(1)
    slot = ring.send()
    place = Slot(ring.slots[slot][:4096])
    with placing(place):
        inside = place.empty(256)
    inside[:] = 5
    found = packed([torch.from_numpy(inside), torch.ones(10_000)], ring.key, slot, place)
    one, other = found.unpacked()
    assert one.data_ptr() == ring.slots[slot].ctypes.data
    assert one.tolist() == [5] * 256
    assert torch.equal(other, torch.ones(10_000))
    assert packed("text", ring.key, slot, place) == "text"


def test_a_slot_is_free_when_nothing_holds_it() -> None:
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


def doubled(ref: yoga.DataRef, index: int) -> Any:
    row = ref[index]
    return {"x": row["x"] * 2 + random.random(), "y": row["y"], "s": row["s"], "noise": torch.rand(2)}


@pytest.mark.parametrize("method", ["fork", *FRESH_STARTS])
def test_all_batches_held_are_as_without_workers(ref: yoga.DataRef, method: str) -> None:
    for data, collate in ((ref, yoga.jagged), (Mapped(101, partial(doubled, ref)), None)):
        expected = list(yoga.DataLoader(data, batch_size=3, shuffle=True, seed=0, collate_fn=collate))
        loader = yoga.DataLoader(
            data,
            3,
            True,
            seed=0,
            num_workers=2 - (method == "spawn"),
            collate_fn=collate,
            multiprocessing_context=method,
        )
        assert_rows_equal(list(loader), expected)  # many more than there are slots


def test_two_iterators_at_once_do_not_share_their_slots(ref: yoga.DataRef) -> None:
    loader = yoga.DataLoader(
        ref, batch_size=4, num_workers=1, multiprocessing_context="fork", collate_fn=yoga.jagged
    )
    one = iter(loader)
    kept = [next(one) for _ in range(3)]
    copies = [batch["x"].clone() for batch in kept]
    whole = [batch["x"] for batch in iter(loader)]
    assert len(whole) == 26
    assert all(torch.equal(batch["x"], copy) for batch, copy in zip(kept, copies, strict=True))


def test_the_memory_is_used_again_and_given_back(ref: yoga.DataRef) -> None:
    others = set(multiprocessing.active_children())
    loader = yoga.DataLoader(
        ref, batch_size=4, num_workers=1, multiprocessing_context="fork", collate_fn=yoga.jagged
    )
    list(loader)
    ring = idle_ring(loader)
    list(loader)
    assert idle_ring(loader) is ring
    name = f"memfd:torchyoga-{ring.key}-"
    with open("/proc/self/maps") as maps:
        assert name in maps.read()
    del loader, ring
    gc.collect()
    with open("/proc/self/maps") as maps:
        assert name not in maps.read()
    assert set(multiprocessing.active_children()) <= others


def faulty(row: int) -> int:
    if row == 9:
        raise OSError("row 9 cannot be read")
    return row


@pytest.mark.parametrize("workers", [0, 1])
def test_of_batches_that_travel_together_only_the_failing_one_fails(workers: int) -> None:
    ref = Made(40, faulty, row_bytes=8)  # small rows, so that batches travel together
    iterator = iter(yoga.DataLoader(ref, batch_size=4, num_workers=workers))
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
        info.dataset.offset = 100 + worker_id  # type: ignore[attr-defined]

    class Shifted(Mapped):
        offset = 0

        def __getitem__(self, index: int) -> int:
            return index + self.offset

    loader = yoga.DataLoader(Shifted(40), batch_size=4, num_workers=1, worker_init_fn=init)
    assert next(iter(loader)).tolist() == [100, 101, 102, 103]


class Replay:
    """A function that mixes each batch with the one six before it, which it keeps."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, rows: Any) -> Any:
        now = yoga.jagged(rows)
        self.kept.append(now["x"])
        return {"now": now["x"], "old": self.kept[-7:][0]}


class Keeping(yoga.DataRef):
    """A DataRef over another one that keeps what it has returned."""

    def __init__(self, ref: yoga.DataRef) -> None:
        self.ref = ref
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return len(self.ref)

    def take(self, rows: Any) -> Any:
        self.kept.append(self.ref.take(rows))
        return self.kept[-7:][0][: len(rows)]


def test_batches_that_user_code_keeps_are_not_written_over(ref: yoga.DataRef) -> None:
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


# -- a child forked while a batch is held holds it, too


def numbered(batches: int, **options: Any) -> yoga.DataLoader:
    """Batch i holds 2 i and 2 i + 1."""
    return yoga.DataLoader(list(range(2 * batches)), 2, num_workers=2, **options)


def by_process(work: Callable[[], None]) -> Callable[[], int]:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()

    def ended() -> int:
        process.join()
        return process.exitcode

    return ended


@pytest.mark.quick("forked-False")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("begun", [forked, by_process])
def test_batches_that_a_forked_child_holds_stay_as_they_are(begun: Any, persistent: bool) -> None:
    loader = numbered(60, persistent_workers=persistent)
    list(loader)  # so that every slot has been used
    batches, (reading, writing) = iter(loader), os.pipe()
    children = []
    for step in range(8):
        batch = next(batches)

        def look(batch: Any = batch, step: int = step) -> None:
            os.read(reading, 1)  # once the parent has drawn all
            assert batch.tolist() == [2 * step, 2 * step + 1]

        children.append(begun(look))
        del batch, look
    try:
        assert [batch.tolist() for batch in batches] == [[2 * i, 2 * i + 1] for i in range(8, 60)]
    finally:
        os.write(writing, b"." * 8)
        codes = [ended() for ended in children]
        os.close(reading), os.close(writing)
    assert codes == [0] * 8


@pytest.mark.rest
@pytest.mark.parametrize("method", ["fork", "forkserver", SPAWNED])
def test_new_slots_replace_those_given_up(method: str) -> None:
    """Also in older workers, so that batches still come in slots; the memory of the old slots is freed."""
    batches = iter(numbered(80, multiprocessing_context=method, persistent_workers=True, prefetch_factor=2))
    held_now, in_slots = next(batches), 0
    ring = ring_of(batches)
    for step in range(1, 80):
        assert forked(bool)() == 0
        held_now = next(batches)
        assert held_now.tolist() == [2 * step, 2 * step + 1]
        in_slots += any(slot is not None and held([slot])[0] for slot in ring.slots) and is_in(held_now, ring)
    assert in_slots > 70
    assert max(mapped_slots(os.getpid(), ring)) > 20
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    assert all(len(mapped_slots(process, ring)) <= len(ring.slots) + 1 for process in processes)


def is_in(batch: torch.Tensor, ring: Ring) -> bool:
    found = [slot for slot in ring.slots if slot is not None]
    return any(0 <= batch.data_ptr() - slot.ctypes.data < slot.size for slot in found)


def mapped_slots(process: int | None, ring: Ring) -> list[int]:
    """The numbers of slots that a process has mapped; rings of other tests may not be collected yet."""
    maps = Path(f"/proc/{process}/maps").read_text()
    return [int(number) for number in re.findall(rf"memfd:torchyoga-{ring.key}-(\d+)", maps)]


def test_without_a_way_to_other_slots_batches_travel_as_torch_sends_them() -> None:
    ring = Ring(1)
    slot = ring.send()
    ring.arrived()
    batch = packed([torch.ones(3)], ring.key, slot, ring.place(slot)).unpacked()
    assert forked(bool)() == 0
    other = ring.send()
    assert other == slot + 1
    worker = Ring.__new__(Ring)
    worker.__dict__.update(ring.__getstate__())
    place = worker.place(other)
    place.memory[:3] = 7
    assert ring.place(other).memory[:3].tolist() == [7] * 3  # type: ignore[union-attr]
    worker.process = 2**22 + 1  # a slot that nothing holds
    worker.slots = [None]
    assert worker.place(other) is None
    assert batch[0].tolist() == [1] * 3


def test_a_worker_releases_slots_that_were_given_up_and_not_replaced() -> None:
    ring, (seen, replaced) = Ring(2), (os.pipe(), os.pipe())
    slots = [ring.send(), ring.send()]
    batches = [packed([torch.ones(3)], ring.key, slot, ring.place(slot)).unpacked() for slot in slots]
    description = pickle.dumps(ring)

    def work() -> None:
        worker, inherited = pickle.loads(description), len(mapped_slots(os.getpid(), ring))
        assert all(worker.place(slot) is not None for slot in slots)
        assert len(mapped_slots(os.getpid(), ring)) == inherited + 2
        os.write(seen[1], b".")
        os.read(replaced[0], 1)
        assert worker.place(2) is not None
        assert len(mapped_slots(os.getpid(), ring)) == inherited + 2, "in place of the one before it"

    ended = forked(work)
    os.close(seen[1])  # so that nothing waits for a child that has failed
    os.read(seen[0], 1)
    batches.clear()
    for _ in slots:
        ring.arrived()
    assert ring.send() == 2
    os.write(replaced[1], b".")
    for end in (seen[0], *replaced):
        os.close(end)
    assert ended() == 0


def test_a_batch_that_comes_while_another_thread_forks_is_copied() -> None:
    ring = Ring(1)
    slot = ring.send()
    parcel = packed([torch.ones(3), np.ones(3)], ring.key, slot, ring.place(slot))
    ring_module._before_fork()
    try:
        found = parcel.unpacked()
        assert not is_in(found[0], ring)
        assert address_of(found[1]) != address_of(ring.slots[0][64:])  # type: ignore[index]
    finally:
        ring_module._after_fork()
    ring.arrived()
    assert ring.send() == slot
    assert is_in(parcel.unpacked()[0], ring)


def test_a_forked_child_does_not_send_in_its_parents_slots() -> None:
    ring = Ring(2)

    def send() -> None:
        assert ring.send() == -1
        assert next(iter(numbered(3))).tolist() == [0, 1]

    assert forked(send)() == 0
    assert ring.send() == 0


def test_arrays_in_another_slot_or_behind_the_used_part_are_copied() -> None:
    rings = sorted((Ring(1) for _ in range(2)), key=lambda ring: address_of(ring.slots[0]))  # type: ignore[arg-type]
    slot = rings[0].send()  # before anything holds it
    lower, higher = (ring.slots[0] for ring in rings)
    higher[:8], lower[64:72] = 5, 7
    elsewhere, behind = torch.from_numpy(higher[:8]), torch.from_numpy(lower[64:72])
    parcel = packed([elsewhere, behind, torch.ones(64)], rings[0].key, slot, rings[0].place(slot))
    higher[:8] = 0
    found = parcel.unpacked()
    assert found[0].tolist() == [5] * 8
    assert found[1].tolist() == [7] * 8
    assert found[2].tolist() == [1] * 64


def test_a_child_forked_after_an_epoch_has_slots_of_its_own() -> None:
    loader = numbered(10)
    list(loader)
    idle = idle_ring(loader)
    assert idle is not None

    def iterate() -> None:
        batches = iter(loader)
        first = next(batches)
        ring = ring_of(loader)
        assert ring is not idle
        assert is_in(first, ring)
        assert [batch.tolist() for batch in [first, *batches]] == [[2 * i, 2 * i + 1] for i in range(10)]

    assert forked(iterate)() == 0
    assert idle_ring(loader) is idle


# -- anything made from a tensor holds it


EXPORTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda tensor: tensor.numpy(),
    "memoryview": lambda tensor: memoryview(tensor.numpy()),
    "from_dlpack": lambda tensor: np.from_dlpack(tensor),
    "capsule": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "storage": lambda tensor: tensor.untyped_storage(),
    "view": lambda tensor: tensor.reshape(-1)[1:].view(torch.uint8),
    "graph": lambda tensor: (torch.ones_like(tensor.float()).requires_grad_() * tensor).grad_fn,
    "shared": lambda tensor: tensor.share_memory_(),
}


def contents(export: Any) -> Any:
    if type(export).__name__ == "PyCapsule":
        return torch.utils.dlpack.from_dlpack(export).tolist()
    if isinstance(export, torch.autograd.graph.Node):  # the gradient of a product is the other factor
        return export(torch.ones(2, 10_000))[0].tolist()
    return export.tolist()


@pytest.mark.rest
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_outlives_its_tensor(name: str, workers: int) -> None:
    arrays = yoga.from_arrays({"x": np.repeat(np.arange(84, dtype=np.int32)[:, None], 10_000, 1)})
    batches = iter(yoga.DataLoader(arrays, 2, num_workers=workers))
    export = EXPORTS[name](next(batches)["x"])
    expected = [0] * 10_000 + [1] * 10_000
    for _ in range(40):
        next(batches)
    found = torch.tensor(contents(export)).flatten()
    if name == "storage" or name == "view":
        assert len(found) > 70_000
        assert set(found.tolist()) == {0, 1}
        assert int(found.sum()) == 10_000
    else:
        assert found.tolist() == expected


def take_and_look(queue: Any, answers: Any) -> None:
    batch, array = queue.get()
    answers.put("here")
    assert queue.get() == "drawn"
    answers.put((batch.tolist(), array.tolist()))


@pytest.mark.parametrize("method", ["forkserver", SPAWNED])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_is_sent_to_a_process_stays_as_it_is(workers: int, method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    queue, answers = context.Queue(), context.Queue()
    process = context.Process(target=take_and_look, args=(queue, answers))
    process.start()
    batches = iter(yoga.DataLoader(list(range(120)), 2, num_workers=workers))
    queue.put((next(batches), next(batches).numpy()))
    assert answers.get(timeout=PATIENCE) == "here"
    assert sum(1 for _ in batches) == 58
    queue.put("drawn")
    assert answers.get(timeout=PATIENCE) == ([0, 1], [2, 3])
    process.join()


# -- where counts cannot be trusted


@pytest.mark.rest
def test_without_trust_in_counts_nothing_is_used_again_while_it_may_be_held(ref: yoga.DataRef) -> None:
    package = str(Path(yoga.__file__).parents[1])
    environment = {**os.environ, "TORCHYOGA_REUSE_MEMORY": "0", "PYTHONPATH": package}
    command = [sys.executable, str(Path(__file__).parents[1] / "untrusted.py")]
    subprocess.run(command, env=environment, check=True, timeout=PATIENCE)


def test_a_slot_that_is_just_being_made_is_not_there_yet() -> None:
    ring = Ring.made(1)
    worker = pickle.loads(pickle.dumps(ring))
    number = max(mapped_slots(os.getpid(), ring)) + 1
    descriptor = os.memfd_create(f"torchyoga-{ring.key}-{number}")
    try:
        assert worker.place(number) is None
        os.ftruncate(descriptor, ring.slots[0].nbytes)
        assert worker.place(number) is not None
    finally:
        os.close(descriptor)


class Gathers(yoga.DataRef[Any]):
    """A DataRef of a user's own, which says of each row whether it may lie in the shared memory at once."""

    _keeps_rows = False

    def __len__(self) -> int:
        return 8

    def take(self, rows: Any) -> Any:
        return [{"row": int(row), "is_placing": is_placing()} for row in rows]


class Looks(Gathers):
    def take(self, rows: Any) -> Any:
        self.seen = super().take(rows)
        return self.seen


@pytest.mark.parametrize(("make", "is_direct"), [(Gathers, True), (Looks, False)])
def test_a_dataref_of_ones_own_that_keeps_no_rows_is_gathered_into_slots(make: Any, is_direct: bool) -> None:
    for ref in (make(), make()[2:6], make().repeat(2), torch.utils.data.Subset(make(), [3, 1])):
        for batch in yoga.DataLoader(ref, 2, num_workers=1, multiprocessing_context="fork"):
            assert batch["is_placing"].tolist() == [is_direct] * 2
