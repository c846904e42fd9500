"""The laws of views, for every view and for nests of several; and that the kit sees what breaks them."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own import Made, Own
from quick import examples
from records import in_a_version

import torchyoga as yoga
from torchyoga.errors import StateError
from torchyoga.rows import block
from torchyoga.testing import check_view

Rows = list[dict[str, Any]]


def row_of(number: int) -> dict[str, Any]:
    return {"id": number, "group": number // 7, "x": float(number % 5)}


ROWS = [row_of(number) for number in range(45)]
HUGE = Made(10**9, row_of, yoga.Schema.of(ROWS[0]), "huge")  # rows that are made when they are taken


base = in_a_version(ROWS)


def noisy(c: Any, draw: Any) -> Any:
    return {**c, "x": c["x"] + draw.normal()}


def negated(c: Any) -> Any:
    return {**c, "x": -c["x"]}


def augmented(row: Any) -> Any:
    return {**row, "x": row["x"] + np.random.rand()}


def swapped(row: Any) -> Any:
    return {**row, "x": -row["x"]}


def stacked(rows: Rows, size: int, stride: int) -> Rows:
    """Windows of rows as a list of them."""
    return [
        {name: np.array([row[name] for row in rows[start : start + size]]) for name in rows[0]}
        for start in range(0, len(rows) - size + 1, stride)
    ]


BOUNDS = st.integers(-50, 50) | st.none()
NONE = (), st.tuples()  # arguments
# An operation: what it makes of a DataRef, what of a list, and its arguments: some, and any.
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Rows], tuple[Any, ...], Any]] = {
    "slice": (
        lambda ref, *bounds: ref[slice(*bounds)],
        lambda rows, *bounds: rows[slice(*bounds)],
        (40, 3, -2),
        st.tuples(BOUNDS, BOUNDS, st.sampled_from([1, 2, -1, -3])),
    ),
    "where": (
        lambda ref, every, rest: ref.where("id", lambda y: y % every == rest % every),
        lambda rows, every, rest: [row for row in rows if row["id"] % every == rest % every],
        (3, 1),
        st.tuples(st.integers(1, 4), st.integers(0, 3)),
    ),
    "select": (
        lambda ref, numbers: ref.select([number % len(ref) for number in numbers] if len(ref) else []),
        lambda rows, numbers: [rows[number % len(rows)] for number in numbers] if rows else [],
        ([5, 1, -1, 1],),
        st.tuples(st.lists(st.integers(0, 10**6), max_size=30)),
    ),
    "order_by": (
        lambda ref, column, descending: ref.order_by(column, descending=descending),
        lambda rows, column, descending: sorted(rows, key=lambda row: row[column] * (1 - 2 * descending)),
        ("x", False),
        st.tuples(st.sampled_from(["id", "group", "x"]), st.booleans()),
    ),
    "repeat": (
        lambda ref, times: ref.repeat(times),
        lambda rows, times: rows * times,
        (2,),
        st.tuples(st.integers(0, 3)),
    ),
    "concat": (
        lambda ref, last: yoga.concat([ref, ref[: len(ref) // 2]] if last else [ref[::2], ref]),
        lambda rows, last: rows + rows[: len(rows) // 2] if last else rows[::2] + rows,
        (False,),
        st.tuples(st.booleans()),
    ),
    "split": (
        lambda ref, seed, part: ref.split([0.4, 0.6], seed=seed)[part],
        lambda rows, seed, part: [rows[int(n)] for n in part_of(len(rows), seed, part)],
        (5, 1),
        st.tuples(st.integers(0, 5), st.integers(0, 1)),
    ),
    "map_batches": (lambda ref: ref.map_batches(negated), lambda rows: [*map(swapped, rows)], *NONE),
    "map": (lambda ref: ref.map(swapped, schema=ref.schema), lambda rows: [*map(swapped, rows)], *NONE),
    "columns": (
        lambda ref: ref.columns(["x", "id", "group"]),
        lambda rows: [{name: row[name] for name in ("x", "id", "group")} for row in rows],
        *NONE,
    ),
    "windows": (
        lambda ref, size, stride: ref.windows(size, stride),
        stacked,
        (4, 3),
        st.tuples(st.integers(1, 5), st.integers(1, 4)),
    ),
}


def part_of(count: int, seed: int, part: int) -> Any:
    """The numbers of the rows in a part of so many."""
    return yoga.from_arrays(np.arange(count)).split([0.4, 0.6], seed=seed)[part]


# A view, and what it is of a list.
View = tuple[Callable[[yoga.DataRef], yoga.DataRef], Callable[[Rows], Any] | None]


def alone(name: str) -> View:
    on_ref, on_list, arguments, _ = OPERATIONS[name]
    return lambda ref: on_ref(ref, *arguments), lambda rows: on_list(rows, *arguments)


VIEWS: dict[str, View] = {
    **{name: alone(name) for name in OPERATIONS},
    "column": (lambda ref: ref["x"], lambda rows: [row["x"] for row in rows]),
    "random map": (lambda ref: ref.map(augmented), lambda rows: rows),
    "draw": (lambda ref: ref.map_batches(noisy), lambda rows: rows),
    "bucketed": (
        lambda ref: ref.bucketed([n * 7 % 11 for n in range(len(ref))], pool=16, batch=4),
        lambda rows: rows,
    ),
    "zip of columns": (
        lambda ref: ref["x"].zip(ref["id"]),
        lambda rows: [(row["x"], row["id"]) for row in rows],
    ),
    "columns of a zip": (
        lambda ref: ref.zip(ref[::-1], prefix="b_").columns(["b_x", "group", "b_id"]),
        lambda rows: [
            {"b_x": b["x"], "group": a["group"], "b_id": b["id"]}
            for a, b in zip(rows, rows[::-1], strict=True)
        ],
    ),
    "zip of a concat": (
        lambda ref: (
            yoga.concat([ref[:9], ref]).columns(["id"]).zip(yoga.concat([ref, ref[:9]]).columns(["x"]))
        ),
        lambda rows: [
            {"id": a["id"], "x": b["x"]} for a, b in zip(rows[:9] + rows, rows + rows[:9], strict=True)
        ],
    ),
    "empty": (lambda ref: ref[7:7], lambda rows: []),
}
# Those of which it is not easily said.
ARRANGED: dict[str, Callable[[yoga.DataRef], yoga.DataRef]] = {
    "split by": lambda ref: ref.split([0.5, 0.5], by="group")[0],
    "chunks": lambda ref: ref.windows({"x": range(-1, 3)}, group_by="group", edge="repeat", static=["id"]),
    "mix": lambda ref: yoga.mix({"all": ref, "few": ref[:4]}, {"all": 3, "few": 1}, rows=70),
    "mix with sources": lambda ref: yoga.mix({"a": ref[:20], "b": ref[20:]}, source_column="source", cell=8),
    "mix of random rows": lambda ref: yoga.mix(
        {"a": ref.map(augmented, schema=ref.schema), "b": ref[::2]}, {"a": 1, "b": 1}, until="all"
    ),
    "weighted": lambda ref: ref.weighted([n % 4 for n in range(len(ref))], rows=60),
    "balanced": lambda ref: ref.balanced("group", batch=14, rows=50),
    "columns of a mix": lambda ref: yoga.mix({"a": ref, "b": ref}, {"a": 1, "b": 2}, rows=40)[5:].columns(
        ["x"]
    )[::3],
    "zip of random rows": lambda ref: ref.columns(["id"]).zip(
        ref.map(augmented, schema=ref.schema)[::-1], prefix="b_"
    ),
}
VIEWS |= {name: (make, None) for name, make in ARRANGED.items()}
# Those that are made by a look at the rows.
LOOKING = {"where", "order_by", "split", "split by", "chunks", "mix with sources", "weighted", "balanced"}
LOOKING |= {"bucketed"}


# Nests have these operations, too.
@pytest.mark.slow("select", "repeat", "concat", "column")
@pytest.mark.slow("zip of columns", "zip of a concat", "columns of a mix", "mix with sources")
@pytest.mark.parametrize("name", VIEWS)
def test_the_laws_hold_for_each_view(base: yoga.DataRef, name: str) -> None:
    make, of_list = VIEWS[name]
    check_view(make, base, of_list and of_list(ROWS), huge=None if name in LOOKING else HUGE)


HELD = [
    {"id": n, "age": None if n % 3 else n, "ids": [None if k == 1 else k for k in range(n % 4)]}
    for n in range(20)
]
held = in_a_version(HELD)


def test_the_laws_hold_for_rows_with_none_and_lists(held: yoga.DataRef) -> None:
    plain = [{**row, "age": row["age"] or -1, "ids": [k or 0 for k in row["ids"]]} for row in HELD]
    plain[0]["age"] = 0
    check_view(lambda ref: ref.filled({"age": -1, "ids": 0}), held, plain)
    masks = [{**row, "age": row["age"] or 0, "age_is_valid": row["age"] is not None} for row in HELD]
    check_view(lambda ref: ref.masked(["age"]), held, masks)
    check_view(
        lambda ref: (
            yoga.concat([ref[::2].filled({"age": -1}), ref.filled({"age": -1})[5:]]).columns(["age"]).masked()
        ),
        held,
        [{"age": row["age"]} for row in plain[::2] + plain[5:]],
    )
    check_view(
        lambda ref: ref.where("age", lambda y: ~np.ma.getmaskarray(y)).map_batches(dict)[::-1],
        held,
        [row for row in HELD if row["age"] is not None][::-1],
    )


@pytest.mark.slow("filled packs", "windows", "batches")
@pytest.mark.parametrize("kind", ["packs", "filled packs", "windows", "batches", "other weights"])
def test_the_laws_hold_for_what_is_made_of_documents(held: yoga.DataRef, kind: str) -> None:
    def made(ref: yoga.DataRef) -> yoga.DataRef:
        ref = ref.columns(["id", "ids"]).filled({"ids": 0})
        mix = yoga.mix({"a": ref[:12], "b": ref[12:]}, {"a": 2, "b": 1}, rows=40, source_column="source")
        weights = {"a": 1, "b": 3}
        makers: dict[str, Callable[[], yoga.DataRef]] = {
            "packs": lambda: mix.packed("ids", 5, labels="shifted"),
            "filled packs": lambda: mix.packed("ids", 5, padded=0),
            "windows": lambda: mix.token_windows("ids", 3, documents=True),
            "batches": lambda: mix.token_batches("ids", 9),
            "other weights": lambda: mix.reweighted(weights, at=yoga.DataLoader(mix, 1, True).state_dict()),
        }
        return makers[kind]()

    check_view(made, held, workers=0 if kind == "other weights" else 2)


def test_the_laws_hold_with_workers(base: yoga.DataRef) -> None:
    check_view(
        lambda ref: ref.zip(ref[::-1], prefix="b_").repeat(2).map_batches(noisy)[3:].map(augmented),
        base,
        workers=2,
    )


# -- nests


def some_of(names: Iterable[str]) -> st.SearchStrategy[Any]:
    """The name of an operation, and what it is given."""
    return st.one_of([st.tuples(st.just(name), OPERATIONS[name][3]) for name in OPERATIONS if name in names])


@pytest.mark.filterwarnings("ignore:split", "ignore:there are no windows")
@settings(max_examples=examples(40))
@given(
    operations=st.lists(some_of(OPERATIONS.keys() - {"windows"}), min_size=1, max_size=3),
    last=some_of(OPERATIONS),
)
def test_the_laws_hold_for_nests(base: yoga.DataRef, operations: list[Any], last: Any) -> None:
    def made(whole: Any, of_list: bool) -> Any:
        for name, arguments in [*operations, last]:
            whole = OPERATIONS[name][of_list](whole, *arguments)[:400]
        return whole

    check_view(lambda ref: made(ref, False), base, made(ROWS, True))


# -- states of other views


TEXTS = [{"id": n, "group": n % 5, "ids": np.arange(3 + n * 7 % 4, dtype=np.int32)} for n in range(48)]
OTHER_TEXTS = [{"id": n, "group": n % 3, "ids": np.arange(3 + n * 5 % 4, dtype=np.int32)} for n in range(60)]
TEXT = yoga.Schema.of(TEXTS[0], ragged=["ids"])
texts = in_a_version(TEXTS, TEXT)
LENGTHS = [n * 7 % 13 for n in range(48)]


def mixed(own: Any, cell: int = 16, rows: int = 40, weight: int = 1, turned: bool = False) -> yoga.DataRef:
    sources = {"a": own[:30], "b": own[30:]}
    weights = {"a": weight, "b": 1}
    return yoga.mix(
        dict(reversed(list(sources.items()))) if turned else sources, weights, rows=rows, cell=cell
    )


PARTS: dict[str, Callable[[Any], yoga.DataRef]] = {
    "slice": lambda mix: mix[:30],
    "select": lambda mix: mix.select([3, 1, 2]),
    "repeat": lambda mix: mix.repeat(2),
    "map": lambda mix: mix[:30].map_batches(dict),
    "concat": lambda mix: yoga.concat([mix, mix]),
    "zip": lambda mix: mix.zip(mix, prefix="other "),
}
# Of each view: how it is made, and other values of its arguments.
Changes = tuple[Callable[..., Any], list[dict[str, Any]]]
ARGUMENTS: dict[str, Changes] = {
    "slice": (
        lambda own, a=0, b=20, step=1: own[a:b:step],
        [{"a": 20, "b": 40}, {"a": 1}, {"b": 19}, {"step": 2}],
    ),
    "where": (lambda own, rest=0: own.where("id", lambda y: y % 2 == rest), [{"rest": 1}]),
    "select": (lambda own, first=0: own.select([first, 9, 11, 4]), [{"first": 5}]),
    "order_by": (lambda own, **more: own.order_by("group", **more), [{"descending": True}]),
    "repeat": (lambda own, times=2: own[: 48 // times].repeat(times), [{"times": 3}]),
    "concat": (lambda own, at=30: yoga.concat([own[at:], own[:at]]), [{"at": 20}]),
    "split": (lambda own, **more: own.split([0.5, 0.5], **more)[0], [{"seed": 1}]),
    "windows": (
        lambda own, size={"id": range(3)}, **more: own.order_by("group").windows(size, **more),
        [
            *({"size": {"id": some}} for some in (range(4), [0, 1, 3])),
            *({"size": {"group": range(3)}}, {"size": {"id": range(3), "group": [0]}}),
            *({"stride": 2}, {"edge": "repeat"}, {"group_by": "group"}, {"static": ["group"]}),
        ],
    ),
    "mix": (mixed, [{"cell": 8}, {"rows": 50}, {"weight": 3}, {"turned": True}]),
    **{
        f"{name} of a mix": (lambda own, of=of, **more: of(mixed(own, **more)), [{"weight": 3}])
        for name, of in PARTS.items()
    },
    "weighted": (
        lambda own, start=0, **more: own.weighted(np.arange(start, start + 48), **more),
        [{"start": 1}, {"rows": 30}],
    ),
    "balanced": (
        lambda own, column="group", **more: own.balanced(column, **more),
        [{"batch": 16}, {"rows": 30}, {"column": "id"}, {"shares": dict(enumerate([1, 2, 1, 1, 1]))}],
    ),
    "bucketed": (
        lambda own, lengths=LENGTHS, pool=16, batch=4: own.bucketed(lengths, pool=pool, batch=batch),
        [{"lengths": LENGTHS[::-1]}, {"pool": 32}, {"batch": 8}],
    ),
    "packed": (
        lambda own, budget=12, **more: own.packed("ids", budget, **more),
        [
            *({"budget": 13}, {"long": "drop"}, {"max_rows": 2}, {"balance": True}, {"seed": 1}),
            *({"labels": "ids"}, {"first_position": 2}),
        ],
    ),
    "token_windows": (
        lambda own, size=8, **more: own.token_windows("ids", size, **more),
        [
            *({"size": 9}, {"stride": 4}, {"jitter": True}, {"separator": 0}),
            *({"jitter": True, "seed": 1}, {"documents": True}),
            *({"labels": "shifted"}, {"labels": None}, {"ignore_index": -100}, {"dtype": "int64"}),
        ],
    ),
    "token_windows with a separator": (
        lambda own, separator=7: own.token_windows("ids", 8, separator=separator),
        [{"separator": 8}],
    ),
    "token_batches": (
        lambda own, budget=24, **more: own.token_batches("ids", budget, **more),
        [
            *({"budget": 25}, {"pool": 16}, {"max_rows": 2}, {"multiple_of": 2}, {"seed": 1}),
            *({"padding": 1}, {"collate": yoga.jagged}),
        ],
    ),
}


def rows_of(ref: Any, state: Any = None, steps: int = 3) -> tuple[list[str], Any]:
    """The first rows from a state on, as text, and the state behind them."""
    loader = yoga.DataLoader(ref, 2, shuffle=True, seed=7, collate_fn=list)
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    batches = iter(loader)
    found = [str(row) for rows, _ in zip(batches, range(steps), strict=False) for row in rows]
    return found, loader.state_dict()


@pytest.mark.filterwarnings("ignore:zip.*decides itself which rows:UserWarning")
@pytest.mark.parametrize("has_name", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_state_of_a_view_with_other_arguments_is_refused(
    texts: yoga.DataRef, name: str, has_name: bool
) -> None:
    """Or gives the same rows; without a fingerprint of the rows, too, of which a state knows nothing else."""
    own = texts if has_name else Own(TEXTS, TEXT)
    make, changes = ARGUMENTS[name]
    views = {"own": own, **{str(change): make(own, **change) for change in ({}, *changes)}}
    if has_name and name not in ("mix", "weighted", "balanced"):  # whose arrangement a state tells
        assert len({str(view.fingerprint) for view in views.values()}) == len(views)
    states = {of: rows_of(view)[1] for of, view in views.items()}
    assert max(len(json.dumps(state)) for state in states.values()) < 1024
    later = {of: rows_of(view, states[of])[0] for of, view in views.items()}
    for of, other in itertools.permutations(views, 2):
        with contextlib.suppress(StateError):
            assert rows_of(views[other], states[of])[0] == later[of], (of, other)
    if not has_name and name not in ("weighted", "bucketed"):  # which take a number for each of the rows
        with pytest.raises(StateError):
            rows_of(make(Own(OTHER_TEXTS, TEXT)), states["{}"])


def test_states_say_which_arguments_to_keep() -> None:
    own = Own(TEXTS, TEXT)
    for view, other, message in [
        (
            own.bucketed(LENGTHS, batch=4),
            own.bucketed(LENGTHS, batch=8),
            r"of bucketed\(batch=4.*, but here it is bucketed\(batch=8.*: make the view as it was",
        ),
        (own.bucketed(LENGTHS, pool=64), own.bucketed(LENGTHS[::-1]), "pool=64, .* but here .*pool=8192"),
        (own.balanced("group", batch=8), own.balanced("group"), r"\(batch=8.* batch= and cell= count"),
        (mixed(own, cell=8), mixed(own), r"of mix\(cell=8.*, but here it is mix\(cell=16"),
        (
            mixed(own),
            mixed(Own(OTHER_TEXTS, TEXT)),
            "of other data, or made otherwise.* make them of the version of the state",
        ),
        (own, own.bucketed(LENGTHS), "of rows as they are, but here it is bucketed"),
        (own.bucketed(LENGTHS), own, "of bucketed.*, but here it is rows as they are"),
        (own[:9], own[9:18], "of view.*, but here it is view.*: make the view as it was"),
        (own.packed("ids", 12), own.packed("ids", 13), "of packed.*budget=12.*, but here .*budget=13"),
        (own.packed("ids", 12), own.packed("ids", 12, max_rows=2), "but here it is packed.*max_rows=2"),
        (
            mixed(own).packed("ids", 12),
            mixed(own, weight=3).packed("ids", 12),
            r"of epochs of \d+ rows, here .* follows from the weights, .*reweighted\(weights, at=state\)",
        ),
        (
            mixed(own).packed("ids", 12),
            mixed(own).packed("ids", 12, padded=0),
            "such as packs of another budget or width",
        ),
        (own.token_windows("ids", 8), own.token_windows("ids", 8, jitter=True), "but here .*jitter=True"),
    ]:
        _, state = rows_of(view)
        with pytest.raises(StateError, match=message):
            rows_of(other, state)
        loader = yoga.DataLoader(other, 2, shuffle=True, seed=7)
        loader.load_state_dict(state, strict=False)
        assert loader.state_dict()["position"] == state["position"]


def test_a_state_that_tells_no_view_loads_as_before() -> None:
    own = Own(TEXTS, TEXT)
    for view in (own, own[::-1], own.bucketed(LENGTHS, batch=4), mixed(own), own.packed("ids", 12)):
        _, state = rows_of(view)
        later, _ = rows_of(view, state)
        earlier = {key: value for key, value in state.items() if key != "view"}
        assert rows_of(view, earlier)[0] == later
        for damaged in (1.5, ["bucketed"], "bucketed(" * 1000, ""):
            with pytest.raises(StateError):
                rows_of(view, {**state, "view": damaged})


def test_ranks_with_other_views_prove_nothing() -> None:
    own = Own(TEXTS, TEXT)
    ranks = [own.bucketed(LENGTHS, batch=4), own.bucketed(LENGTHS, batch=8)]
    receipts = [yoga.ResumableSampler(ref, 2, rank, seed=7).receipt() for rank, ref in enumerate(ranks)]
    with pytest.raises(
        StateError, match=r"rank 1 has view 'bucketed\(batch=8.*rank 0's has 'bucketed\(batch=4"
    ):
        yoga.prove(receipts)


# -- the kit can fail


class Wrong(yoga.DataRef):
    """Every second row of another DataRef; what it does wrong is overridden."""

    def __init__(self, whole: yoga.DataRef) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return (len(self.whole) + 1) // 2

    def rows_at(self, numbers: Any) -> Any:
        return 2 * numbers

    def take(self, rows: Any) -> Any:
        return self.whole.take(self.rows_at(rows))

    @property
    def _prefetch(self) -> Any:
        return self.whole[::2]._prefetch

    @property
    def fingerprint(self) -> Any:
        return None if self.whole.fingerprint is None else f"half {self.whole.fingerprint}"


class OtherRows(Wrong):
    def rows_at(self, numbers: Any) -> Any:
        return np.minimum(2 * numbers, 40)


class Fat(Wrong):
    def __init__(self, whole: yoga.DataRef) -> None:
        super().__init__(whole)
        self.copy = np.zeros(10**5, np.uint8)


class Silent(Wrong):
    _prefetch: Any = None


class Astray(Wrong):
    @property
    def _prefetch(self) -> Any:
        return self.whole[1:]._prefetch


class Changing(Wrong):
    made = 0

    @property
    def file_starts(self) -> Any:
        return np.array([0, self.number % (len(self) + 1), len(self)])

    def __init__(self, whole: yoga.DataRef) -> None:
        super().__init__(whole)
        Changing.made += 1
        self.number = Changing.made


class Nameless(Wrong):
    fingerprint: Any = "always the same"


class Shorter(Wrong):
    def in_epoch(self, epoch: int) -> Any:
        return self.whole[:3]


class Looking(Wrong):
    def __init__(self, whole: yoga.DataRef) -> None:
        super().__init__(whole)
        whole.take(np.arange(min(20_000, len(whole))))


class Seedless(Wrong):
    """Random rows that do not depend on the seeds they are given."""

    _is_random: Any = True

    def _take_seeded(self, rows: Any, seeds: Any) -> Any:
        return [{**row, "x": id(row) + float(np.random.default_rng().random())} for row in self.take(rows)]


class Twice(Wrong):
    """Counts the columns of a second projection among those of the whole."""

    of: Any = None

    def _projected(self, of: Any) -> Any:
        found = Twice(self.whole)
        found.of = of
        return found

    def take(self, rows: Any) -> Any:
        found = self.whole.take(self.rows_at(rows))
        return found if self.of is None or not len(rows) else block.Rows(found.block.projected(self.of))

    @property
    def schema(self) -> Any:
        return self.whole.schema if self.of is None else self.of.schema


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Twice, r"columns\(.*\)\.columns\(\['"),
        (OtherRows, r"the view: row 2[12].*: found 40, expected"),
        (Fat, "pickled, the view takes 100... bytes more than its base"),
        (Silent, "rows of the base are not read ahead"),
        (Astray, "taken, but not announced"),
        (Changing, "two equal views have other file_starts|it has other file_starts|file_starts is"),
        (Nameless, "a state of the view can be loaded for|the base has no fingerprint"),
        (Shorter, "in another epoch the view has another number of rows"),
        (Looking, "to make the view of 1000000000 rows and take two, 20002 rows were taken"),
        (Seedless, "take|row"),
    ],
)
def test_the_kit_sees(base: yoga.DataRef, kind: type[Wrong], text: str) -> None:
    whole = yoga.from_arrays({"id": np.arange(45)}) if kind is Looking else base
    expected = [{"id": np.int64(n)} for n in range(0, 45, 2)] if kind is Looking else ROWS[::2]
    if kind is Nameless:
        whole = Own(ROWS)
    with pytest.raises(AssertionError, match=text):
        check_view(kind, whole, expected, huge=HUGE)


def test_the_kit_sees_nothing_where_nothing_is_wrong(base: yoga.DataRef) -> None:
    check_view(Wrong, base, ROWS[::2], huge=HUGE)
