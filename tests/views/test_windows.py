"""Windows of rows: those of loops over lists, in any groups, files and nests; each once under any ranks."""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own import Announced, Filed, Made
from quick import examples
from records import in_every_format
from smallfiles import make_files_of

import torchyoga as yoga
from torchyoga.errors import SchemaError
from torchyoga.testing import assert_rows_equal
from torchyoga.views.windows import Anchors, gap_stops, group_starts

# That windows over selected rows reach over gaps is meant here, but for the test of the warning.
pytestmark = pytest.mark.filterwarnings("ignore:windows. in .* rows follow each other:UserWarning")

LENGTHS = (9, 1, 4, 14, 2, 30)
EPISODES = [episode for episode, length in enumerate(LENGTHS, 5) for _ in range(length)]


def row_of(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "episode": EPISODES[number],
        "task": f"task {EPISODES[number]}",
        "boxes": np.arange(number % 4),
        "obs": {
            "image": torch.full((2, 3), number, dtype=torch.bfloat16),
            "state": np.array([number, -number], "<i4"),
        },
        "done": number % 7 == 0,
        "pair": (np.float32(number), number / 2),
        "nothing": None,
    }


ROWS = [row_of(number) for number in range(len(EPISODES))]
SCHEMA = yoga.Schema.of(ROWS[0], ragged=["boxes"])
STACKED = ["id", "episode", "obs", "done", "pair"]


class Own(Filed):
    def __init__(self, rows: Any = ROWS, schema: Any = SCHEMA, file_rows: int = 7) -> None:
        super().__init__(rows, schema, file_rows)


ref = in_every_format(Own(), 7)


def stacked(values: Any) -> Any:
    """What a window has of a column with these values, or of rows."""
    first = values[0]
    if isinstance(first, dict):
        return {key: stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked(parts) for parts in zip(*values, strict=True))
    if isinstance(first, torch.Tensor):
        return torch.stack(values)
    return np.array(values, first.dtype if isinstance(first, np.ndarray) else None)


def runs(keys: list[Any]) -> list[range]:
    starts = [n for n in range(len(keys)) if not n or keys[n] != keys[n - 1]]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(keys)], strict=True)]


def anchored(groups: list[range], offsets: list[int], stride: int, edge: str) -> list[tuple[int, range]]:
    """The anchor of each window, and its group."""
    found = []
    for group in groups:
        if edge == "repeat":
            found += [(anchor, group) for anchor in group[::stride]]
            continue
        fit = [a for a in group if all(a + offset in group for offset in offsets)]
        found += [(a, group) for a in fit if (a - fit[0]) % stride == 0]
    return found


def at(anchor: int, group: range, offsets: list[int]) -> list[int]:
    return [min(max(anchor + offset, group[0]), group[-1]) for offset in offsets]


def quietly(act: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return act()


# -- what windows are


def test_all_columns_of_so_many_rows(ref: yoga.DataRef) -> None:
    windows = ref.columns(STACKED).windows(3, stride=2, group_by="episode")
    expected = [
        stacked([{name: ROWS[n][name] for name in STACKED} for n in at(*spot, [0, 1, 2])])
        for spot in anchored(runs(EPISODES), [0, 1, 2], 2, "drop")
    ]
    assert_rows_equal(list(windows), expected)
    assert_rows_equal([windows[-1]], expected[-1:])
    assert expected[0]["pair"][0].dtype == np.float32


def test_columns_have_offsets_of_their_own_and_masks(ref: yoga.DataRef) -> None:
    offsets = {"id": [-2, 0, 5], "obs": [0, -1]}
    windows = ref.windows(
        {"id": (-2, 0, 5), "obs": range(0, -2, -1)}, 2, "episode", edge="repeat", static=["task", "boxes"]
    )
    expected = []
    for anchor, group in anchored(runs(EPISODES), [], 2, "repeat"):
        pads = {name: np.array([anchor + o not in group for o in some]) for name, some in offsets.items()}
        near = stacked([ROWS[n]["obs"] for n in at(anchor, group, [0, -1])])
        expected.append(
            {
                "id": np.array(at(anchor, group, [-2, 0, 5])),
                "id_is_pad": pads["id"],
                "task": ROWS[anchor]["task"],
                "boxes": ROWS[anchor]["boxes"],
                "obs": {
                    "image": near["image"],
                    "image_is_pad": pads["obs"],
                    "state": near["state"],
                    "state_is_pad": pads["obs"],
                },
            }
        )
    assert_rows_equal(list(windows), expected)
    alone = ref[["id", "episode"][0]].windows(4, 3)
    assert [row.tolist() for row in alone] == [list(range(n, n + 4)) for n in range(0, len(ROWS) - 3, 3)]
    both = ref.columns(["id", "task"]).windows(4, 25, edge="repeat", static=["task"])
    assert_rows_equal(
        both[-1], {"id": np.array([50, 51, 52, 53]), "task": "task 10", "is_pad": np.zeros(4, np.bool_)}
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], Any, list[int], int, str]:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    offsets: Any = draw(
        st.integers(1, 6)
        | st.lists(st.integers(-6, 6), min_size=1, max_size=5, unique=True)
        | st.builds(range, st.integers(-5, 5), st.integers(6, 9), st.integers(1, 4))
    )
    listed = list(range(offsets)) if isinstance(offsets, int) else list(offsets)
    return lengths, offsets, listed, draw(st.integers(1, 5)), draw(st.sampled_from(["drop", "repeat"]))


@settings(max_examples=examples(150))
@given(case=cases(), files=st.integers(1, 9), grouped=st.booleans())
def test_windows_are_those_of_loops(case: Any, files: int, grouped: bool) -> None:
    lengths, offsets, listed, stride, edge = case
    keys = [f"{n}" for n, length in enumerate(lengths) for _ in range(length)]
    made = [{"x": n, "key": key} for n, key in enumerate(keys)]
    base = Own(made, yoga.Schema.of(made[0]), files)
    given_ = {"x": offsets} if not isinstance(offsets, int) else offsets
    static = ["key"]
    windows = quietly(lambda: base.windows(given_, stride, "key" if grouped else None, edge, static))
    groups = runs(keys) if grouped else [range(len(keys))]
    expected = anchored(groups, listed, stride, edge)
    assert len(windows) == len(expected)
    rows = list(windows)
    assert [row["x"].tolist() for row in rows] == [at(*spot, listed) for spot in expected]
    assert [row["key"] for row in rows] == [keys[anchor] for anchor, _ in expected]
    if edge == "repeat":
        name = "is_pad" if isinstance(offsets, int) else "x_is_pad"
        masks = [row[name].tolist() for row in rows]
        assert masks == [[a + o not in group for o in listed] for a, group in expected]
    numbers, anchors = np.arange(len(expected)), [anchor for anchor, _ in expected]
    assert windows.anchors(numbers).tolist() == anchors
    every = sorted({*listed, 0})
    assert windows.members(numbers).tolist() == [at(*spot, every) for spot in expected]
    before = {sum(anchor < start for anchor in anchors) for start in base.file_starts.tolist()}
    assert windows.file_starts.tolist() == sorted(before)


@pytest.mark.filterwarnings("ignore:there are no windows:UserWarning")
@pytest.mark.parametrize("grouped", [False, True])
def test_no_window_reaches_over_a_gap(grouped: bool) -> None:
    count = 7
    for far in itertools.product([False, True], repeat=count - 1):
        times = np.cumsum([0.0, *(5.5 if is_far else 0.5 for is_far in far)])
        times[-1] -= 11.0 * far[-1]  # further back is a gap, too
        keys = [int(grouped and n > 2) for n in range(count)]
        ref = yoga.from_arrays({"x": np.arange(count), "t": times, "key": np.array(keys)})
        groups = runs(list(zip(keys, np.cumsum([0, *far]).tolist(), strict=True)))
        for size, stride, edge in itertools.product((1, 2, 4), (1, 2, 3), ("drop", "repeat")):
            by = "key" if grouped else None
            windows = ref.windows({"x": range(size)}, stride, by, edge, time="t", max_gap=0.5)
            expected = anchored(groups, list(range(size)), stride, edge)
            assert [row["x"].tolist() for row in windows] == [
                at(*spot, list(range(size))) for spot in expected
            ]


def test_times_of_any_kind_have_gaps() -> None:
    days = np.array(["2020-01-01", "2020-01-02", "2020-01-04", "NaT", "2020-01-05"], "M8[D]")
    for values, max_gap, stops in (
        (days, timedelta(days=1), [2, 3, 4]),
        (days, np.timedelta64(48, "h"), [3, 4]),
        (np.array([0, 5, 3, 2**63, 2**63 + 4], np.uint64), 4, [1, 3]),
        (np.array([-(2**63), 2**63 - 1, 2**63 - 3]), 2, [1]),
        (np.array([-100, 100, 120], np.int8), 200, []),
        (np.array([0, np.nan, 0, np.inf, np.inf], np.float32), 1e9, [1, 2, 3, 4]),
        (np.arange(2**17 + 2) // 2**16 * 9, 8, [2**16, 2**17]),  # a scan is of 2**16 rows
        (np.zeros(0), 1, []),
    ):
        assert gap_stops(yoga.from_arrays({"t": values}), "t", max_gap).tolist() == stops


def test_groups_are_runs_of_any_length_at_borders_of_scans() -> None:
    """A scan is of 2**16 rows."""
    for few in ([1] * 8 + [2] * 3, [1] * 4 + [2] * 4, [True] * 5 + [False], list("aaabbbbbbbbc"), [7]):
        keys = [key for key in few for _ in range(2**14)]
        ref = yoga.from_arrays({"key": np.array(keys)})
        if isinstance(keys[0], str):
            rows = [{"key": key} for key in keys]
            ref = Own(rows, yoga.Schema.of(rows[0]))
        assert group_starts(ref, "key").tolist() == [*(run[0] for run in runs(keys)), len(keys)]


# -- what cannot be


NOT_TOGETHER = r"with True are not all together: some begin at row 0, some at row 7; order_by\('done'\)"


@pytest.mark.parametrize(
    ("size", "options", "error", "text"),
    [
        (0, {}, ValueError, "rows of a window must be in 1..16777216, found 0"),
        (True, {}, ValueError, "must be an int, found True"),
        (2.0, {}, ValueError, "must be an int, found 2.0"),
        (2**70, {}, ValueError, "rows of a window must be"),
        ([0, 1], {}, TypeError, r"or offsets for each column, .* found \[0, 1\]"),
        ("id", {}, TypeError, "or offsets for each column"),
        ({"id": 5}, {}, TypeError, "the offsets of 'id' are a range or a list"),
        ({"id": {1, 2}}, {}, TypeError, "the offsets of 'id' are a range or a list"),
        ({"id": []}, {}, ValueError, "must be 1 to .* ints; found 0"),
        ({"id": range(0)}, {}, ValueError, "must be 1 to .* ints; found 0"),
        ({"id": range(2**70)}, {}, ValueError, "offset of 'id' must be in"),
        ({"id": range(2**60)}, {}, ValueError, "must be 1 to .* ints; found"),
        ({"id": [2**62]}, {}, ValueError, "offset of 'id' must be in"),
        ({"id": [0, True]}, {}, ValueError, "offset of 'id' must be an int, found True"),
        ({"id": [0, 0.5]}, {}, ValueError, "offset of 'id' must be an int, found 0.5"),
        ({"id": [1, 2, 1]}, {}, ValueError, r"must differ; found \[1, 2, 1\]"),
        ({}, {}, ValueError, "name one or more columns"),
        ({"ids": [0]}, {}, KeyError, "no column 'ids'; there are 'id', "),
        ({"obs": [0], "obs/state": [1]}, {}, ValueError, "'obs/state' is named twice"),
        ({"id": [0]}, {"static": ["id"]}, ValueError, "'id' is named twice"),
        ({"id": [0]}, {"static": "id"}, TypeError, r"static=\['id'\]"),
        ({"id": [0]}, {"static": ["tsk"]}, KeyError, "no column 'tsk'"),
        (3, {}, ValueError, "'task', 'boxes', 'nothing' cannot be stacked"),
        ({"task": [0]}, {}, ValueError, r"static=\['task'\]"),
        ({"id": [0]}, {"stride": 0}, ValueError, "stride must be"),
        ({"id": [0]}, {"stride": 1.5}, ValueError, "stride must be an int"),
        ({"id": [0]}, {"edge": "keep"}, ValueError, 'must be "drop" or "repeat"'),
        ({"id": [0]}, {"group_by": "key"}, KeyError, "no column 'key'"),
        ({"id": [0]}, {"group_by": "boxes"}, ValueError, "one number or text a row"),
        ({"id": [0]}, {"group_by": "obs/state"}, ValueError, "one number or text"),
        ({"id": [0]}, {"group_by": "obs"}, ValueError, "several columns"),
        ({"id": [0]}, {"group_by": "pair/1"}, TypeError, "holds float64"),
        ({"id": [0]}, {"group_by": "nothing"}, TypeError, "holds None"),
        ({"id": [0]}, {"group_by": "done"}, ValueError, NOT_TOGETHER),
        ({"id": [0]}, {"time": "id"}, ValueError, "time= and max_gap= go together"),
        ({"id": [0]}, {"time": "id", "max_gap": -1}, ValueError, "at least 0, found -1"),
        ({"id": [0]}, {"time": "id", "max_gap": np.nan}, ValueError, "at least 0, found nan"),
        ({"id": [0]}, {"time": "id", "max_gap": "1"}, TypeError, "a number or a timedelta"),
        ({"id": [0]}, {"time": "id", "max_gap": timedelta(1)}, TypeError, "holds int64, .* is for times"),
        ({"id": [0]}, {"time": "task", "max_gap": 1}, TypeError, "is for numbers"),
        ({"id": [0]}, {"time": "boxes", "max_gap": 1}, ValueError, "one number or time a row"),
        ({"pair/0": [0]}, {"edge": "repeat"}, ValueError, "adds '0_is_pad', .* but 'pair' is a tuple"),
    ],
)
def test_what_cannot_be_is_said(
    size: Any, options: dict[str, Any], error: type[Exception], text: str, ref: yoga.DataRef
) -> None:
    with pytest.raises(error, match=text):
        ref.windows(size, **options)


def test_what_cannot_be_of_other_rows_is_said(ref: yoga.DataRef) -> None:
    for rows, text in (
        (ref["id"], "adds 'is_pad', .* the row is a leaf"),
        (ref["pair"], "the row is a tuple"),
        (ref["obs"].windows(2, edge="repeat"), "a dict with a key 'is_pad' already"),
    ):
        with pytest.raises(ValueError, match=text):
            rows.windows(2, edge="repeat")
    keys = [{"key": key, "x": n} for n, key in enumerate("abbcba")]
    with pytest.raises(ValueError, match="with 'b' are not all together: some begin at row 1, some at row 4"):
        Own(keys, yoga.Schema.of(keys[0])).windows({"x": [0]}, group_by="key")


def test_a_window_that_fits_nowhere_warns_once() -> None:
    ref = yoga.from_arrays({"x": np.arange(9), "key": np.arange(9) // 3})
    with pytest.warns(UserWarning, match="needs 4 rows in sequence, found 3 at most with the same 'key'"):
        none = ref.windows(4, group_by="key")
    assert (len(none), list(none), none.file_starts.tolist()) == (0, [], [0])
    assert list(yoga.DataLoader(none, 2, shuffle=True)) == []
    with pytest.warns(UserWarning, match="needs 2305843009213693953 rows"):
        assert len(ref.windows({"x": [-(2**61)]})) == 0
    far = ref.windows({"x": [2**61]}, edge="repeat")
    assert (far[0]["x"].tolist(), far[0]["x_is_pad"].tolist()) == ([8], [True])


# -- what is read


def test_a_batch_is_one_read_of_each_offsets() -> None:
    base = Own()
    plain = base.columns(STACKED).windows(5, 2)
    base.calls.clear()
    plain.take(np.array([3, 0]))
    assert base.calls == [[6, 7, 8, 9, 10, 0, 1, 2, 3, 4]]
    base.calls.clear()
    plain.take(np.array([3, 2]))
    assert base.calls == [[4, 5, 6, 7, 8, 9, 10]]  # what two windows hold is made once
    windows = base.windows(
        {"id": range(-1, 1), "done": range(-1, 1), "obs": [0]}, edge="repeat", static=["task", "pair"]
    )
    base.calls.clear()
    windows.take(np.array([0, 8]))
    assert sorted(base.calls) == [[0, 7, 8], [0, 8]]
    for some, calls in (
        (windows["id"], [[0, 7, 8]]),
        (windows.columns(["task"]), [[0, 8]]),
        (windows["id_is_pad"], []),
        (windows.columns(["obs/state_is_pad", "pair/1"]), [[0, 8]]),
    ):
        base.calls.clear()
        kept = pickle.loads(pickle.dumps(some))
        assert_rows_equal(list(some.take(np.array([0, 8]))), list(kept.take(np.array([0, 8]))))
        assert base.calls == calls
    assert windows["id_is_pad"][0].tolist() == [True, False]
    assert windows["id_is_pad"]._row_bytes == 2


def test_values_are_not_copied_a_second_time(ref: yoga.DataRef) -> None:
    (data,) = ref.columns(["obs/state"]).windows(4).take(np.array([3, 1])).block.data  # type: ignore[attr-defined]
    assert data.values.base is not None
    assert data.values.flags.c_contiguous


class Followed(Announced, Own):
    _row_bytes: Any = 10


def test_all_rows_of_windows_are_announced_and_followed() -> None:
    base = Followed()
    windows = base.windows({"id": [0, 2], "done": [1]}, static=["task"])
    ahead = windows._readahead
    prefetch = ahead.prefetch
    assert (prefetch.is_cold, prefetch.ahead_bytes, ahead.row_bytes) == (True, 100, 40)
    prefetch.announce(np.array([5, 9]), True)
    assert base.announced == [([5, 7, 9, 11], True), ([5, 9], True), ([6, 10], True)]
    base.announced.clear()
    prefetch.follow(iter([np.array([5, 9]), np.array([0])]), lambda: 2)
    prefetch.follow([], lambda: None)
    prefetch.probe()
    (followed, reached), (nothing, nowhere), *probes = base.announced
    assert (followed, reached()) == ([[5, 6, 7, 9, 10, 11], [0, 1, 2]], 6)
    assert (nothing, nowhere(), probes) == ([], None, ["probe"] * 3)
    assert windows["done"]._readahead.row_bytes == 10  # type: ignore[union-attr]


# -- random rows, epochs


class Drawn(Own):
    """Rows that are made with a seed, anew in each epoch."""

    _is_random = True
    epoch = 0

    def _take_seeded(self, rows: Any, seeds: Any) -> list[Any]:
        drawn = zip(self.take(rows), seeds.tolist(), strict=True)
        return [{"x": row["x"], "a": seed, "b": seed, "c": seed, "epoch": self.epoch} for row, seed in drawn]

    def in_epoch(self, epoch: int) -> yoga.DataRef:
        made = Drawn(self.rows, self.schema)
        made.epoch = epoch
        return made


def test_rows_of_a_window_have_seeds_of_their_own() -> None:
    rows = [{"x": n, "a": 0, "b": 0, "c": 0, "epoch": 0} for n in range(20)]
    base = Drawn(rows, yoga.Schema.of(rows[0]))
    static = ["c", "epoch"]
    windows = base.windows({"x": [0], "a": range(-1, 2), "b": [1, 0]}, edge="repeat", static=static)
    assert windows._is_random
    seeds = np.array([5, 2**63 - 1, 5, 5], np.uint64)
    found = list(windows._take_seeded(np.array([3, 3, 4, 0]), seeds))
    for row, seed in zip(found, seeds.tolist(), strict=True):
        assert row["c"] == row["a"][1] == seed
        assert row["b"].tolist() == row["a"].tolist()[:0:-1]
        assert (row["a"] >= 0).all()
    assert len({n for row in found[:2] for n in row["a"].tolist()}) == 6
    assert found[0]["a"].tolist() == found[2]["a"].tolist()
    assert found[3]["a"][0] == 5, "the first row, repeated, is the same"
    again = list(windows._take_seeded(np.array([0, 3]), seeds[[3, 0]]))
    assert_rows_equal(again, [found[3], found[0]])
    later = windows.in_epoch(3)
    assert [row["epoch"] for row in later._take_seeded(np.array([0, 3]), seeds[:2])] == [3, 3]
    assert later.fingerprint == windows.fingerprint
    assert later.columns(["c"])._is_random
    assert windows.whole is base  # type: ignore[attr-defined]
    fixed = Own().columns(["id"]).windows(2)
    assert fixed.in_epoch(3) is fixed
    assert not fixed._is_random


# -- nests


def test_views_of_windows(ref: yoga.DataRef) -> None:
    some = ref.columns(["id", "episode"])
    ids = list(range(60))

    def found(view: yoga.DataRef) -> list[list[int]]:
        return [row["id"].tolist() for row in view]

    def runs_of(numbers: list[int], size: int) -> list[list[int]]:
        return [numbers[n : n + size] for n in range(len(numbers) - size + 1)]

    assert found(yoga.concat([some[:4], some[50:53]]).windows(3)) == runs_of([0, 1, 2, 3, 50, 51, 52], 3)
    windows = some.windows(4, 2)
    every = runs_of(ids, 4)[::2]
    assert found(windows.where("id", lambda y: y[:, 0] % 3 == 0)) == every[::3]
    assert [row.tolist() for row in windows["id"]] == every
    twice = windows.windows(3, 5)
    assert found(twice) == [every[n : n + 3] for n in range(0, len(every) - 2, 5)]
    assert found(twice[1:].where("id", lambda y: y[:, 0, 0] > 10)) == found(twice)[2:]
    padded = ref["obs"].windows(4, edge="repeat").windows(2)
    assert padded[-1]["is_pad"].tolist() == [[False, False, True, True], [False, True, True, True]]


def test_static_columns_are_looked_at_without_the_others(ref: yoga.DataRef) -> None:
    windows = ref.windows({"id": range(3)}, group_by="episode", static=["boxes", "episode"])
    every = ref.columns(["id", "episode"]).windows(3, group_by="episode", static=["id", "episode"])
    assert [row["id"] for row in every] == [row["id"][0] for row in windows]
    crowded = windows.where("boxes", lambda boxes: boxes.lengths > 2)
    assert [row["id"][0] % 4 for row in crowded] == [3] * len(crowded)
    assert windows["boxes"].lengths(np.array([3, 2])).tolist() == [3, 2]
    low, high = windows.split([0.5, 0.5], seed=2, by="episode")
    assert len(low) + len(high) == len(windows)
    assert not set(low["episode"]) & set(high["episode"])
    with pytest.raises(TypeError, match="not a ragged column"):
        windows["id"].lengths(np.arange(2))


def test_equal_windows_have_one_fingerprint(ref: yoga.DataRef) -> None:
    some = ref.windows({"id": range(3)})
    both = ref.windows({"id": range(3), "done": range(3)})
    assert ref.windows({"id": [0, 1, 2]}).fingerprint == some.fingerprint == both.columns(["id"]).fingerprint
    assert ref.windows({"id": (0, 2)}).fingerprint == ref.windows({"id": range(0, 4, 2)}).fingerprint
    assert some.fingerprint is not None
    assert "windows of" in repr(some)


# -- loaders


def test_worker_processes_give_the_same_batches(ref: yoga.DataRef) -> None:
    view = ref.windows({"id": range(3), "obs": [0, 4]}, 2, "episode", "repeat", ["task"])
    alone = yoga.DataLoader(view, 4, shuffle=True, seed=1)
    several = yoga.DataLoader(view, 4, shuffle=True, seed=1, num_workers=2)
    assert view._keeps_rows is isinstance(ref, Own)
    for _ in range(2):
        expected = list(alone)  # all are held at once, so that memory used again would be seen
        assert_rows_equal(list(several), expected)
    image, task = expected[0]["obs"]["image"], expected[0]["task"]
    assert (image.shape[1:], image.dtype, type(task)) == ((2, 2, 3), torch.bfloat16, list)


@pytest.mark.parametrize("shuffle", [False, True, "block"])
def test_files_of_a_store_are_downloaded_ahead(
    shuffle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files_of(7, monkeypatch.setattr)
    storage = yoga.Storage(f"memory://{tmp_path}", cache_dir=tmp_path / "cache")
    ref = storage.submit(ROWS, "rows", "1", schema=SCHEMA, progress=False)
    view = ref.windows({"id": range(-2, 3), "obs": [0, 1]}, 2, "episode", "repeat", ["task"])
    loader = yoga.DataLoader(view, 4, shuffle=shuffle, seed=1)
    found = [row for batch in loader for row in batch["id"].tolist()]
    groups = anchored(runs(EPISODES), [], 2, "repeat")
    assert sorted(found) == sorted(at(*spot, list(range(-2, 3))) for spot in groups)


def test_windows_of_very_many_rows_are_there_at_once() -> None:
    huge = Made(10**9, lambda row: {"x": row}, yoga.Schema.of({"x": 1}))
    assert len(pickle.dumps(Anchors(np.array([0, 10**9]), 3, 0, 3, False))) < 400
    assert huge.windows(4, 3).fingerprint is None
    rows = 2**31 * 10**9
    assert len(huge.repeat(2**31).windows({"x": [-5, 2**40]}, 2**40)) == (rows - 6 - 2**40) // 2**40 + 1


def test_windows_over_gaps_are_warned_of() -> None:
    rows = np.arange(20)
    ref = yoga.from_arrays({"x": rows, "is_good": rows % 7 != 3, "episode": rows // 10})
    with pytest.warns(
        UserWarning, match="in 2 places rows follow each other in a group of 'episode' that are not"
    ):
        ref.where("is_good", lambda good: good).windows(4, group_by="episode")
    with pytest.warns(UserWarning, match="in 1 places rows follow each other that are not"):
        ref.repeat(2).windows(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ref.where("episode", lambda episode: episode == 1).windows(4, group_by="episode")
        ref.where("x", lambda x: (x < 5) | (x >= 10)).windows(4, group_by="episode")
        ref[5:].windows(4)


def test_what_may_be_none_cannot_be_stacked(tmp_path: Path) -> None:
    tags = [0, None, 1, 1, 2, 2, None, 3, 3]
    rows = [
        {"x": None if n == 3 else n, "ids": [n] * (n % 3), "price": Decimal(n), "tag": tag}
        for n, tag in enumerate(tags)
    ]
    ref = yoga.Storage(tmp_path).submit(rows, "a", "1")
    with pytest.raises(ValueError, match=r"'x' may be None .* use filled\(\{'x': ...\}\)"):
        ref.windows({"x": range(3)})
    with pytest.raises(ValueError, match="'ids' may be None or is a list"):
        ref.windows({"ids": range(3)})
    with pytest.raises(ValueError, match="rows of 'price' cannot be stacked"):
        ref.windows({"price": range(3)})
    filled = ref.filled({"x": -1})
    found = filled.windows({"x": range(3)}, static=["ids", "price", "tag"])
    assert_rows_equal(found[2], {"x": np.array([2, -1, 4]), "ids": [2, 2], "price": Decimal(2), "tag": 1})
    assert list(found["tag"]) == tags[:7]
    with pytest.raises(TypeError, match="holds None"):
        filled.windows({"x": range(2)}, group_by="tag")


def test_windows_of_decoded_images(storage: yoga.Storage) -> None:
    """As of raw ones, where those of a window have one size."""
    raw = [{"image": np.full((8 + 4 * (n > 5), 6, 3), n, np.uint8), "n": n} for n in range(9)]
    ref = storage.submit(raw, "images", "1", codecs={"image": yoga.codecs.png()})
    found = ref.decoded().windows(3)
    expected = yoga.from_arrays({"image": np.stack([row["image"] for row in raw[:6]])}).windows(3)
    assert_rows_equal([row["image"] for row in found[:4]], [row["image"] for row in expected])
    batch = next(iter(yoga.DataLoader(found.columns(["image"]), 4)))
    assert batch["image"].shape == (4, 3, 8, 6, 3)
    with pytest.raises(
        SchemaError, match=r"row 4 has \(8, 6, 3\) and row 6 has \(12, 6, 3\).*image\(size=\.\.\.\)"
    ):
        found[[0, 4]]
    sized = ref.decoded({"image": yoga.codecs.image(size=5)}).windows(3)
    assert sized[4]["image"].shape == (3, 5, 5, 3)
    with pytest.raises(ValueError, match=r"'image' cannot be stacked.*by \.decoded.*image\(size=\.\.\.\)"):
        ref.windows(3)[0]


def test_windows_are_decoded_as_the_rows_are(storage: yoga.Storage) -> None:
    """Windows of encoded images, and views of those: decoding them decodes the rows first."""
    rows = [{"meta": {"image": np.full((8, 6, 3), n, np.uint8), "n": n}, "mask": np.eye(4)} for n in range(9)]
    codecs = {"meta/image": yoga.codecs.png()}
    ref = storage.submit(rows, "images", "1", codecs=codecs)
    windows = ref.windows(3, edge="repeat")
    assert_rows_equal(list(windows.decoded()), list(ref.decoded().windows(3, edge="repeat")))
    assert windows.decoded().fingerprint == ref.decoded().windows(3, edge="repeat").fingerprint
    for some in (windows[::2], windows.columns(["meta/image"])[2:].repeat(2), windows["meta/image"]):
        found = pickle.loads(pickle.dumps(some)).decoded()
        batch = next(iter(yoga.DataLoader(found, 2)))
        image = batch if isinstance(batch, torch.Tensor) else batch["meta"]["image"]
        assert image.shape == (2, 3, 8, 6, 3)
    small = windows.decoded({"meta/image": yoga.codecs.image(size=5, layout="chw")})
    assert small[0]["meta"]["image"].shape == (3, 3, 5, 5)
    once = ref.windows({"meta/n": range(3)}, static=["meta/image"])
    assert once[1]["meta"]["image"] == ref[1]["meta"]["image"]
    assert once.decoded()[1]["meta"]["image"].shape == (8, 6, 3)
    crop = storage.fetch("images", "1")["meta/image"][0]
    lists = [{"crops": [crop] * n, **row["meta"]} for n, row in enumerate(rows)]
    lists_ref = storage.submit(lists, "lists", "1", codecs={"image": yoga.codecs.png()})
    both = {name: yoga.codecs.image() for name in ("crops", "image")}
    # A list makes one column of two.
    found = lists_ref.windows({"image": range(2)}, static=["n"]).decoded(both)[4]
    assert (found["n"], found["image"][:, 0, 0, 0].tolist()) == (4, [4, 5])
    with pytest.raises(ValueError, match=r"'crops.*' belongs to a list: decode before"):
        lists_ref.windows({"image": range(2)}, static=["crops"]).decoded(both)
    text = storage.submit([{"t": "a" * 9}] * 4, "text", "1", codecs={"t": yoga.codecs.zstd()})
    with pytest.raises(ValueError, match="'t' cannot be stacked, as they are text"):
        text.windows(2).decoded()


def test_columns_of_windows_come_in_any_order_and_in_part(storage: yoga.Storage) -> None:
    rows = [{"x": n, "y": n / 2, "m": {"a": n, "b": -n} if n % 2 else None} for n in range(6)]
    schema = yoga.Schema.of(rows[1], nullable=["m"])
    ref = storage.submit(rows, "rows", "1", schema=schema, progress=False)
    windows = ref.windows(2, static=["m"])
    assert_rows_equal(
        list(windows.columns(["m/b", "y", "x"])[3:4]),
        [{"m": {"b": -3}, "y": np.array([1.5, 2.0]), "x": np.array([3, 4])}],
    )
    assert list(windows.columns(["m/b"])[2:4]) == [{"m": None}, {"m": {"b": -3}}]
