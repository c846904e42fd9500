"""Streams and DataRefs: the random-access layer, and the sequential one over it."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from infiles import InFiles
from own import Announced, Squares

import torchyoga as yoga
from torchyoga import Stream
from torchyoga.errors import StateError
from torchyoga.formats.contract import FORMATS
from torchyoga.reading.stream import read_batches
from torchyoga.testing import check_resume

ORDERS: list[dict[str, Any]] = [
    {"shuffle": "block", "shuffle_window": 2},
    {"shuffle": "block", "shuffle_window": 2, "locality": "shard"},
    {"shuffle": True, "locality": "shard"},
    {"shuffle": False, "locality": "shard"},
]


class Lossy(Squares):
    """It loses its last row."""

    def take(self, rows: np.ndarray) -> list[int]:
        return super().take(rows[rows < len(self) - 1])


@pytest.mark.parametrize(
    "read",
    [
        list,
        lambda ref: ref[[9, 1, 2]],
        lambda ref: ref[9],
        lambda ref: list(ref.stream(shuffle=True)),
        lambda ref: list(yoga.DataLoader(ref, 5)),
        lambda ref: list(ref.map(str)),
        lambda ref: yoga.concat([ref, Squares()])[[9, 0]],
        lambda ref: list(torch.utils.data.DataLoader(ref, 5)),
    ],
)
def test_fewer_rows_than_were_asked_for_are_refused(read: Any) -> None:
    with pytest.raises(
        ValueError, match=r"Lossy\.take was asked for \d+ rows?, \[.*9.*\], and returned \d+; it"
    ):
        read(Lossy())


@pytest.fixture(params=FORMATS)
def ref(request: pytest.FixtureRequest, tmp_path: Path) -> yoga.DataRef:
    return yoga.Storage(tmp_path, request.param).submit(
        [{"x": np.full(2, i), "y": i} for i in range(20)], "rows", "1"
    )


def numbers(rows: Any) -> list[int]:
    return [row["y"] for row in rows]


@pytest.mark.parametrize("options", [{"shuffle": True}, *ORDERS])
def test_a_stream_has_the_order_of_a_sampler(options: Any) -> None:
    for world, drop in itertools.product((1, 2, 3), (False, True)):
        rank, remainder = world - 1, "drop" if drop else "keep"
        stream = InFiles().stream(
            shuffle_seed=7, shard_rank=rank, num_shards=world, drop_shard_remainder=drop, **options
        )
        sampler = yoga.ResumableSampler(InFiles(), world, rank, seed=7, remainder=remainder, **options)  # type: ignore[arg-type]
        for _ in range(2):
            assert list(stream) == list(sampler)
        assert len(stream) == len(sampler)


class Foreseeing(Announced, Squares):
    """A DataRef that notes the order that it is to follow."""

    is_cold, ahead_bytes = False, None


def test_a_source_gets_the_whole_order_of_a_stream_before_the_first_row(tmp_path: Path) -> None:
    source = Foreseeing(12)
    for rank in range(2):
        stream = source.stream(start_offset=4, shuffle=True, shuffle_seed=3, shard_rank=rank, num_shards=2)
        rows = iter(stream)
        first = next(rows)
        order, progress = source.announced[-1]
        assert progress() == 1
        followed = [row**2 for row in itertools.chain(*order)]
        assert [first, *rows] == followed
        assert len(followed) == 4


def test_the_offset_counts_rows_of_all_shards_in_the_first_epoch_only() -> None:
    streams = [Squares(11).stream(start_offset=5, shard_rank=rank, num_shards=2) for rank in (0, 1)]
    assert [list(stream) for stream in streams] == [[25, 49, 81], [36, 64, 100]]
    assert [len(list(stream)) for stream in streams] == [6, 5]
    assert list(Squares(10).stream(start_offset=27)) == [49, 64, 81]


def test_the_order_may_stay_that_of_the_first_epoch() -> None:
    stream = Squares(30).stream(shuffle=True, skip_shuffle_at_epoch_end=True)
    first = list(stream)
    assert first == list(stream) == list(Squares(30).stream(shuffle=True))
    blocks = InFiles().stream(shuffle="block", skip_shuffle_at_epoch_end=True)
    assert list(blocks) == list(blocks) == list(InFiles().stream(shuffle="block"))
    with pytest.raises(StateError, match="shuffle 'block once'"):
        InFiles().stream(shuffle="block").load_state_dict(blocks.state_dict())
    with pytest.raises(StateError, match="shuffle 'once'"):
        Squares(30).stream(shuffle=True).load_state_dict(stream.state_dict())


@pytest.mark.parametrize("options", ORDERS)
def test_resume_after_every_row_whatever_the_shuffle(options: Any) -> None:
    check_resume(lambda: InFiles((4, 3, 0, 3)).stream(shard_rank=1, num_shards=2, **options))


def test_resume_after_every_row_and_every_batch(ref: yoga.DataRef) -> None:
    check_resume(lambda: ref[:6].stream(shuffle=True, shuffle_seed=1))

    class Batches:
        def __init__(self) -> None:
            self.stream = ref.stream(shuffle=True)
            self.state_dict, self.load_state_dict = self.stream.state_dict, self.stream.load_state_dict

        def __iter__(self) -> Any:
            return (rows.exact() for rows in self.stream.batches(6))  # type: ignore[attr-defined]

    check_resume(Batches)


def test_batches_have_their_columns(ref: yoga.DataRef) -> None:
    stream = ref.stream(shuffle=True)
    sizes = []
    for batch in stream.batches(8):
        sizes.append(len(batch))
        assert numbers(batch) == batch.block.data[1].values.tolist()  # type: ignore[attr-defined]
    assert sizes == [8, 8, 4]
    assert [len(batch) for batch in stream.batches(8, drop_last=True)] == [8, 8]
    assert stream.epoch == 2
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        next(stream.batches(0))


def test_an_iterator_of_a_stream_from_before_a_load_raises() -> None:
    stream = Squares().stream()
    rows = iter(stream)
    next(rows)
    stream.load_state_dict(stream.state_dict())
    with pytest.raises(StateError, match=r"call iter\(\) again"):
        next(rows)


class Hasty(Squares):
    """It gives no more than two rows at once."""

    def take(self, rows: np.ndarray) -> list[int]:
        if len(rows) > 2:
            raise OSError("too many")
        return super().take(rows)


def test_batches_that_cannot_be_read_several_at_once_are_read_one_by_one() -> None:
    firsts = (4, 0, 6, 2)
    batches = read_batches(Hasty(row_bytes=8), [np.arange(n, n + 2) for n in firsts])
    assert [*map(list, batches)] == [[n * n, (n + 1) ** 2] for n in firsts]


def test_rows_by_number(ref: yoga.DataRef) -> None:
    assert (len(ref), ref[3]["y"], ref[-1]["y"], ref[np.int64(4)]["y"]) == (20, 3, 19, 4)
    assert numbers(ref[[3, -1, 3]]) == [3, 19, 3]
    assert ref[[]] == []
    assert numbers(ref) == list(range(20))
    assert type(ref[0]) is type(ref[[0]][0]) is dict
    assert len(pickle.dumps(ref)) < 500
    for index in (20, -21, [0, 20], [-21]):
        with pytest.raises(IndexError, match="of a dataset of 20 rows"):
            ref[index]
    for wrong in (1.0, [0.5], None, [True], [[1]]):
        with pytest.raises(TypeError, match="rows are taken by"):
            ref[wrong]


def test_a_ref_describes_itself(ref: yoga.DataRef) -> None:
    assert repr(ref).startswith("<DataRef 'rows' '1': 20 rows, ")
    assert "x: ndarray int64 2, y: int>" in repr(ref)
    assert str(ref.schema) == "column  type           shape\nx       ndarray int64  2\ny       int"


@given(
    length=st.integers(1, 20),
    batch_size=st.integers(1, 7),
    world=st.integers(1, 3),
    offset=st.integers(0, 45),
    steps=st.integers(0, 30),
    drop_last=st.booleans(),
)
def test_the_state_after_some_steps_is_that_of_taking_them(
    length: int, batch_size: int, world: int, offset: int, steps: int, drop_last: bool
) -> None:
    def made() -> Stream:
        return ref.stream(offset, shuffle=True, num_shards=world, drop_shard_remainder=True)

    ref = yoga.from_arrays(np.arange(length))
    stream, again = made(), made()
    if not stream.cursor.steps(batch_size, drop_last):
        with pytest.raises(ValueError, match="an epoch has no batch of"):
            stream.state_after(10**6, batch_size, drop_last)
        return
    left = steps
    while left:
        for _ in stream.batches(batch_size, drop_last):
            left -= 1
            if not left:
                break
    state = again.state_after(steps, batch_size, drop_last)
    # At the end of an epoch a stream may not know yet that it has no rows left.
    taken = stream.state_dict()
    assert rest_of(state, made(), batch_size, drop_last) == rest_of(taken, made(), batch_size, drop_last)
    assert again.state_dict() == made().state_dict()  # asking changes nothing


def rest_of(state: dict[str, Any], stream: Stream, batch_size: int, drop_last: bool) -> list[list[int]]:
    stream.load_state_dict(state)
    return [[int(row) for row in batch] for _ in range(2) for batch in stream.batches(batch_size, drop_last)][
        :5
    ]


def test_steps_are_counted_from_the_last_load() -> None:
    stream = yoga.from_arrays(np.arange(10)).stream(start_offset=4)
    assert stream.state_after(3)["position"] == 7
    stream.load_state_dict(stream.state_after(3))
    list(stream)
    assert stream.state_after(1)["position"] == 8
    stream.set_epoch(5)
    assert (stream.state_after(2)["epoch"], stream.state_after(2)["position"]) == (5, 2)
    with pytest.raises(ValueError, match="steps must be at least 0"):
        stream.state_after(-1)


def test_every_ref_knows_its_files(tmp_path: Path) -> None:
    assert Squares(10_000).file_starts.tolist() == [0, 4096, 8192, 10_000]
    whole = InFiles()
    assert whole[5:20].file_starts.tolist() == [0, 6, 11, 12, 15]
    assert whole[5:6].file_starts.tolist() == [0, 1]
    assert whole[5:5].file_starts.tolist() == [0]
    assert whole[::-1].file_starts.tolist() == [0, 23]
    for some in (whole[1::3], whole[2:20:5], whole[5:20]):
        rows = np.array(list(some))
        changes = 1 + np.flatnonzero(np.diff(np.searchsorted(whole.file_starts, rows, "right")))
        assert some.file_starts.tolist() == [0, *changes.tolist(), len(rows)]
    version = yoga.Storage(tmp_path).submit(list(range(50)), "rows", "1", progress=False)
    assert version.file_starts.tolist() == [0, 50]
    assert yoga.Storage(tmp_path).submit([], "none", "1").file_starts.tolist() == [0]
