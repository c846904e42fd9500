"""Windows of tokens: those of slices of all documents laid end to end, in any files, orders and epochs."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaged import flip
from hypothesis import given, settings
from hypothesis import strategies as st
from own import Filed
from quick import examples
from records import in_every_format
from smallfiles import make_blocks_of

import torchyoga as yoga
from torchyoga.reading.dataref import DataRef
from torchyoga.rows.block import joined_runs
from torchyoga.testing import check_view

LENGTHS = (5, 0, 1, 7, 3, 0, 12, 1, 1, 4, 0, 26, 2, 9)


def documents_of(lengths: Any) -> list[np.ndarray]:
    """Documents no two of whose tokens are the same."""
    ends = np.cumsum([0, *lengths])
    return [np.arange(a, b, dtype=np.int32) for a, b in itertools.pairwise(ends.tolist())]


def own_of(documents: list[np.ndarray], file_rows: int = 4) -> Filed:
    rows = [{"ids": document, "k": number} for number, document in enumerate(documents)]
    return Filed(rows, yoga.Schema.of({"ids": np.zeros(1, np.int32), "k": 1}, ragged=["ids"]), file_rows)


ref = in_every_format(own_of(documents_of(LENGTHS)), 4)


def of_tokens(row: Any) -> list[tuple[int, int]]:
    """The document of each token of a window, and its place there."""
    lengths = row["lengths"]
    places = row["position_ids"] + np.repeat(row["begins"], lengths)
    assert row["document_ids"].tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()
    assert (row["position_ids"][np.cumsum(lengths)[:-1]] == 0).all()
    return list(zip(np.repeat(row["rows"], lengths).tolist(), places.tolist(), strict=True))


def check(
    ref: DataRef, lengths: Any, size: int, epoch: int = 0, masked: bool = False, **options: Any
) -> None:
    """Windows are slices of all documents laid end to end; with `documents` they say of which ones."""
    stride, labels, separator = options["stride"], options["labels"], options["separator"]
    jitter, shift = options.get("jitter", False), int(labels == "shifted")
    ended = [] if separator is None else [separator]
    documents = [[*document.tolist(), *ended] for document in documents_of(lengths)]
    tokens = [token for document in documents for token in document]
    of = [(row, place) for row, document in enumerate(documents) for place in range(len(document))]
    foreseen = [-100 if place == 0 else token for token, (_, place) in zip(tokens, of, strict=True)]
    whole: Any = ref.token_windows("ids", size, ignore_index=-100 if masked and labels else None, **options)
    windows = whole.in_epoch(epoch)
    spare = len(tokens) - size - shift
    span = min(stride, spare + 1) if jitter else 1
    expected = max(0, (spare - (span - 1)) // stride + 1) if spare >= 0 else 0
    assert len(windows) == len(whole) == expected
    assert windows.num_tokens == len(tokens)
    if not expected:
        return
    flat = [row["ids"].tolist() for row in windows]

    def cut(line: list[int], first: int) -> list[list[int]]:
        return [line[a:][:size] for a in range(first, first + expected * stride, stride)]

    begins = [first for first in range(span) if cut(tokens, first) == flat]
    assert begins
    assert jitter or begins == [0]
    if labels and (masked or len(begins) == 1):
        told = [cut(foreseen if masked else tokens, first + shift) for first in begins]
        assert [row["labels"].tolist() for row in windows] in told
        assert windows["labels"].schema.columns[0].dtype == ("<i8" if masked else "<i4")
    covered = {b for n in range(expected) for b in range(n * stride, n * stride + size + shift)}
    assert windows.tokens_left_out == len(tokens) - len(covered)
    about = list(ref.token_windows("ids", size, documents=True, **options).in_epoch(epoch))
    assert [row["ids"].tolist() for row in about] == flat
    made = ["ids", "position_ids", "document_ids", "rows", "lengths", "begins"]
    assert [name for name in about[0] if name != "labels" or labels is None] == made
    if len(begins) == 1:
        for number, window in enumerate(about):
            start = begins[0] + number * stride
            assert of_tokens(window) == of[start : start + size]
            if labels:  # none where a document or a window begins
                later = foreseen[start + 1 :][: size - 1 + shift]
                assert window["labels"].tolist() == [-100] * (1 - shift) + later


@pytest.mark.filterwarnings("ignore:there are no windows:UserWarning")
@pytest.mark.parametrize("separator", [None, 99])
@pytest.mark.parametrize("labels", ["same", "shifted", None])
def test_windows_are_slices_of_all_documents_end_to_end(
    ref: DataRef, separator: int | None, labels: Any
) -> None:
    for size, stride in itertools.product((1, 2, 5, 40), (1, 3, 5, 70)):
        check(ref, LENGTHS, size, stride=stride, labels=labels, separator=separator)


@settings(max_examples=examples(120))
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    size=st.integers(1, 7),
    epoch=st.integers(0, 5),
    masked=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "stride": st.integers(1, 12),
            "labels": st.sampled_from(["same", "shifted", None]),
            "separator": st.sampled_from([None, 1000]),
            "jitter": st.booleans(),
            "seed": st.just(3),
        }
    ),
    files=st.integers(1, 5),
)
@pytest.mark.filterwarnings("ignore:there are no windows:UserWarning")
def test_windows_of_any_documents_in_any_epoch(
    lengths: list[int], size: int, epoch: int, masked: bool, options: dict[str, Any], files: int
) -> None:
    check(own_of(documents_of(lengths), files), lengths, size, epoch, masked, **options)


def test_jitter_begins_at_every_token_and_each_epoch_at_one(ref: DataRef) -> None:
    windows = ref.token_windows("ids", 5, stride=4, jitter=True, seed=1)
    begun = [int(windows.in_epoch(epoch)[0]["ids"][0]) for epoch in range(60)]
    assert set(begun) == {0, 1, 2, 3}
    assert begun == [int(windows.in_epoch(epoch)[0]["ids"][0]) for epoch in range(60)]
    assert begun != [
        int(ref.token_windows("ids", 5, stride=4, jitter=True).in_epoch(e)[0]["ids"][0]) for e in range(60)
    ]
    assert ref.token_windows("ids", 60, jitter=True)[0]["ids"].shape == (60,)


OPTIONS = [
    {"size": 4},
    {"size": 3, "stride": 2, "jitter": True, "separator": 7, "documents": True},
    {"size": 4, "jitter": True, "documents": True, "dtype": "int64"},
]


@pytest.mark.quick("own-plain", "lmdb-*")
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "jitter", "wide"])
def test_laws(ref: DataRef, options: dict[str, Any]) -> None:
    expected = list(ref.token_windows("ids", **options))
    check_view(lambda base: base.token_windows("ids", **options), ref, expected)


@pytest.mark.slow("hdf5")
def test_over_other_views(ref: DataRef) -> None:
    """Slices, where, concat, repeat and map_batches."""
    documents = documents_of(LENGTHS)

    def tokens(view: DataRef) -> list[int]:
        return [int(row["ids"][0]) for row in view.token_windows("ids", 1, labels=False)]

    assert tokens(ref[::-2]) == np.concatenate(documents[::-2]).tolist()
    long = ref.where("ids", lambda c: c.lengths > 2)
    assert tokens(long) == np.concatenate([d for d in documents if len(d) > 2]).tolist()
    both = yoga.concat([ref[3:5], ref, ref[11:]])
    assert tokens(both) == np.concatenate([*documents[3:5], *documents, *documents[11:]]).tolist()
    assert tokens(ref.repeat(2)) == np.concatenate(documents * 2).tolist()
    changed = ref.map_batches(
        lambda c: {**c, "ids": yoga.RaggedColumn(c["ids"].values + 1, c["ids"].lengths)}
    )
    assert tokens(changed) == (np.concatenate(documents) + 1).tolist()


def test_rows_made_with_random_numbers_are_those_of_one_epoch(ref: DataRef) -> None:
    def noisy(row: Any) -> Any:
        return {"ids": row["ids"] + np.int32(np.random.randint(1000))}

    schema = ref.columns(["ids"]).schema
    windows = ref.map(noisy, schema=schema).token_windows("ids", 4)
    assert not windows._is_random
    assert [r["ids"].tolist() for r in windows] == [r["ids"].tolist() for r in windows.in_epoch(5)]


def test_only_what_is_wanted_is_read() -> None:
    ref = own_of(documents_of(LENGTHS))
    windows = ref.token_windows("ids", 4, documents=True, lengths=np.array(LENGTHS))
    assert not ref.calls
    windows.take(np.array([9, 9, 10]))
    assert ref.calls == [[11]]
    ref.calls.clear()
    windows.columns(["document_ids", "rows"]).take(np.arange(5))
    assert not ref.calls


@pytest.mark.parametrize("labels", ["same", "shifted"])
@pytest.mark.parametrize("dtype", [None, "int64"])
def test_labels_may_be_masked_in_place(ref: DataRef, dtype: Any, labels: Any) -> None:
    batch = next(iter(yoga.DataLoader(ref.token_windows("ids", 4, labels=labels, dtype=dtype), 4)))
    batch["labels"][:] = -100
    assert batch["ids"].tolist() == np.arange(16).reshape(4, 4).tolist()
    assert batch["ids"].is_contiguous()
    assert batch["labels"].is_contiguous()


def test_text_and_lists_are_documents(storage: yoga.Storage) -> None:
    rows = [{"text": "aé", "list": [1, 2]}, {"text": "", "list": []}, {"text": "bc", "list": [3]}]
    schema = yoga.Schema.of(rows[0], ragged=["list"])
    ref = storage.submit(rows, "texts", "1", schema=schema, progress=False)
    (window,) = ref.token_windows("text", 7, labels=False, separator=0, dtype="int64")
    assert bytes(window["text"].astype(np.uint8).tolist()) == "aé\0\0bc".encode()
    assert [row["list"].tolist() for row in ref.token_windows("list", 2, stride=1, labels=False)] == [
        [1, 2],
        [2, 3],
    ]
    assert ref["text"].token_windows("value", 2)[0]["value"].dtype == np.uint8


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"size": 0}, ValueError, "tokens of a window must be in 1.., found 0|must be in 1"),
        ({"size": 2.0}, ValueError, "must be an int, found 2.0"),
        ({"size": 2, "stride": 0}, ValueError, "stride must be"),
        ({"size": 2, "column": "id"}, KeyError, "there is no column 'id'"),
        ({"size": 2, "column": "k"}, TypeError, "'k' does not hold documents"),
        ({"size": 2, "separator": 0.5}, ValueError, "separator=0.5 is not a value of column 'ids'"),
        ({"size": 2, "separator": 2**31}, ValueError, "separator=2147483648 is not a value"),
        ({"size": 2, "separator": "a"}, ValueError, "separator='a' is not a value"),
        ({"size": 2, "dtype": "int16"}, ValueError, "dtype=int16 cannot hold every value"),
        ({"size": 2, "dtype": "S4"}, ValueError, "cannot hold every value"),
        ({"size": 2, "lengths": [1]}, ValueError, "one for each of the 14 rows"),
        ({"size": 2, "lengths": [-1] * 14}, ValueError, "at least 0"),
        ({"size": 2, "lengths": [2**62] * 14}, ValueError, "at most 2\\*\\*62 together"),
        ({"size": 2, "lengths": [0.5] * 14}, TypeError, "whole numbers, found float64"),
        ({"size": 2, "seed": 1.5}, ValueError, "seed must be an int"),
        ({"size": 2, "labels": True}, ValueError, 'labels must be "same" as the tokens, .*; found True'),
        ({"size": 2, "labels": "ids"}, ValueError, "or None for none; found 'ids'"),
        (
            {"size": 2, "labels": None, "ignore_index": -1},
            ValueError,
            "ignore_index=-1 is a label, and there",
        ),
        ({"size": 2, "ignore_index": 0.5}, ValueError, "ignore_index must be an int"),
    ],
)
def test_what_cannot_be_is_said(ref: DataRef, arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ref.token_windows(**{"column": "ids", **arguments})


def test_a_window_longer_than_all_documents_is_warned_of(ref: DataRef) -> None:
    with pytest.warns(UserWarning, match=f"each needs 1000 tokens, and there are {sum(LENGTHS)}"):
        windows = ref.token_windows("ids", 1000)
    assert (len(windows), windows.tokens_left_out) == (0, sum(LENGTHS))


def test_lengths_that_are_wrong_are_found_when_they_are_used(ref: DataRef) -> None:
    windows = ref.token_windows("ids", 3, lengths=np.array(LENGTHS) + 1)
    with pytest.raises(IndexError, match="which has 5 elements"):
        list(windows)


def test_columns_of_one_name_are_refused() -> None:
    ref = own_of(documents_of([3])).map_batches(lambda c: {"labels": c["ids"]})
    with pytest.raises(ValueError, match="as another column of the windows would be"):
        ref.token_windows("labels", 2)
    assert ref.token_windows("labels", 2, labels=False)[0]["labels"].tolist() == [0, 1]


def test_pickles_hold_lengths_and_no_more() -> None:
    own = own_of(documents_of([3] * 2000))
    windows = own.token_windows("ids", 4, jitter=True).in_epoch(3)
    list(windows)
    assert len(pickle.dumps(windows)) < len(pickle.dumps(own)) + 8 * 2000 + 4096


def test_file_starts_are_where_windows_begin(ref: DataRef) -> None:
    windows = ref.token_windows("ids", 4)
    begins = np.append(0, np.cumsum(LENGTHS))[ref.file_starts]
    firsts = sorted({min(-(-int(begin) // 4), len(windows)) for begin in begins})
    assert windows.file_starts.tolist() == firsts


def test_parts_of_rows_are_those_of_whole_rows(ref: DataRef) -> None:
    documents = documents_of(LENGTHS)
    rng = np.random.default_rng(0)
    for column in (ref["ids"], ref[::-1]["ids"], yoga.concat([ref[5:], ref[:5]])["ids"]):
        rows = rng.integers(0, len(column), 50)
        whole = [column[int(row)] for row in rows]
        starts = np.array([rng.integers(0, len(one) + 1) for one in whole])
        stops = np.array([rng.integers(a, len(one) + 1) for a, one in zip(starts, whole, strict=True)])
        found = column._take_parts(rows, starts, stops)
        parts = [one[a:b] for one, a, b in zip(whole, starts, stops, strict=True)]
        assert found.tolist() == np.concatenate(parts).tolist()
        assert len(column._take_parts(rows[:0], starts[:0], stops[:0])) == 0
    for start, stop in ((0, len(documents[3]) + 1), (-1, 2), (2, 1)):
        with pytest.raises(IndexError, match="of row 3, which has 7 elements"):
            ref["ids"]._take_parts(np.array([3]), np.array([start]), np.array([stop]))
    with pytest.raises(TypeError, match="not a ragged column"):
        ref["k"]._take_parts(np.array([3]), np.array([0]), np.array([1]))


def test_runs_are_joined_and_cut_to_one_size() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        cuts = np.sort(rng.integers(0, 40, rng.integers(2, 9)))
        first, last = cuts[:-1], cuts[1:]
        order = np.arange(len(first)) if rng.integers(2) else rng.permutation(len(first))
        first, last = first[order], last[order]
        one, other = joined_runs(first, last)
        expected = [place for a, b in zip(first, last, strict=True) for place in range(a, b)]
        assert [place for a, b in zip(one, other, strict=True) for place in range(a, b)] == expected
        assert bool((other > one).all())
        assert len(one) <= int((last > first).sum())
    one, other = joined_runs(np.array([0, 7, 9, 2]), np.array([4, 9, 15, 6]))
    assert (one.tolist(), other.tolist()) == ([0, 7, 11, 2], [4, 11, 15, 6])


@pytest.mark.parametrize("format", ["lmdb", "hdf5"])
@pytest.mark.parametrize("options", [{}, {"compression": True}])
def test_windows_across_blocks_of_a_file(
    format: Any, options: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_blocks_of(3, monkeypatch.setattr)
    own = own_of(documents_of(LENGTHS * 3))
    compressed = {"compression": "gzip"} if options and format == "hdf5" else {}
    storage = yoga.Storage(tmp_path, format=format, **compressed)
    ref = storage.submit(list(own), "documents", "1", schema=own.schema, progress=False)
    tokens = np.concatenate([row["ids"] for row in own.rows])
    windows = ref.token_windows("ids", 6, labels=False)
    numbers = np.random.default_rng(0).permutation(len(windows))
    for some in (numbers, np.arange(len(windows)), numbers[:2], np.repeat(numbers[:9], 2)):
        found = [row["ids"].tolist() for row in windows.take(some)]
        assert found == [tokens[6 * n : 6 * n + 6].tolist() for n in some.tolist()]


@pytest.mark.damages("a byte of a document is changed")
def test_damage_is_found_where_it_is_read(tmp_path: Any) -> None:
    own = own_of(documents_of([70_000] * 4))
    yoga.Storage(tmp_path).submit(list(own), "documents", "1", schema=own.schema, progress=False)
    (file,) = (path for path in (tmp_path).rglob("*") if path.is_file() and path.stat().st_size > 4 * 70_000)
    flip(file, np.arange(200_000, 200_050, dtype=np.int32).tobytes())
    windows = yoga.Storage(tmp_path).fetch("documents", "1").token_windows("ids", 100)
    with pytest.raises(yoga.errors.CorruptError, match="checksum"):
        windows.take(np.array([2000]))


def test_members_of_windows_and_batches_that_there_are_not(tmp_path: Path) -> None:
    rows = [{"ids": np.arange(9)} for _ in range(5)]
    schema = yoga.Schema.of(rows[0], ragged=["ids"])
    ref = yoga.Storage(tmp_path).submit(rows, "rows", "1", schema=schema, progress=False)
    for made in (ref.token_windows("ids", 4), ref.token_batches("ids", 20)):
        found: Any = made
        counts, _ = found.members([-1])
        assert np.array_equal(counts, found.members([len(made) - 1])[0])
        with pytest.raises(IndexError, match=f"row {len(made)} of a dataset of {len(made)} rows"):
            found.members([len(made)])
        with pytest.raises(TypeError):
            found.members([0.5])


def test_windows_are_pairs_of_tokens_and_labels(tmp_path: Path) -> None:
    for number in range(2):
        np.save(tmp_path / f"shard{number}.npy", np.arange(300, dtype=np.uint16) + 300 * number)
    ref = yoga.from_tokens(f"{tmp_path}/*.npy", "uint16")
    options: dict[str, Any] = {"labels": "shifted", "dtype": "int64"}
    pairs, dicts = (ref.token_windows("tokens", 64, as_tuple=one, **options) for one in (True, False))
    assert type(pairs[0]) is tuple
    assert (len(pairs), pairs.tokens_left_out) == (len(dicts), dicts.tokens_left_out)
    mixed = yoga.mix({"a": ref}, rows=2).token_windows("tokens", 64, as_tuple=True, **options)
    for made in (pairs, mixed):
        loaders = [yoga.DataLoader(one, 3, shuffle=True, seed=7) for one in (made, dicts)]
        for (x, y), whole in zip(*loaders, strict=made is pairs):
            assert torch.equal(x[:, 1:], y[:, :-1])
            if made is pairs:
                assert torch.equal(x, whole["tokens"])
                assert torch.equal(y, whole["labels"])
    rows = [(row["tokens"], row["labels"]) for row in dicts]
    check_view(lambda base: base.token_windows("tokens", 64, as_tuple=True, **options), ref, rows)
    for wrong in ({"labels": None}, {"documents": True}):
        with pytest.raises(ValueError, match="as_tuple=True is for tokens and their labels"):
            ref.token_windows("tokens", 64, as_tuple=True, **wrong)
