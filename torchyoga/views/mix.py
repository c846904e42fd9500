"""Several DataRefs as one, in proportions that hold in every prefix."""

from __future__ import annotations

import json
import numbers
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import numpy as np

from ..errors import SchemaError, StateError
from ..order.by_file import equal_runs
from ..order.change import changed, counts_at, going_on
from ..order.contract import ARRANGED, AnyOrder, Appended, Arrangement, Pin, Shuffle, described
from ..order.mixed import MixOrder, unpacked
from ..order.mixture import MixStage, MixTerms, Mixture, Source, Version, fractions_of, tag_of, whole_weights
from ..order.state import State
from ..process.digests import hexdigest
from ..process.lazy import cached_property
from ..process.messages import warn_user
from ..process.numbers import as_int, distinct
from ..reading.contract import identity, nameless_pin, title_of
from ..reading.dataref import DataRef
from ..rows.block import Block, Data, Rows
from ..rows.collector import block_of
from ..rows.column import Column
from ..rows.node import LENGTHS, VALID, Node, path_name
from ..rows.schema import Projection, Schema
from ..rows.types import Ints, Row, RowT, Seeds
from .chosen import check_alike, in_one_order
from .joined import Evenly, JoinedRef, RowMap, by_source
from .over import ChangedBlocks, ProjectedRef, RowView

if TYPE_CHECKING:
    from typing_extensions import Self


_OF_DATA = ("view", "sources", "passes", "files")  # entries of a state


def warn_if_arranged(ref: DataRef, what: str) -> None:
    """Warns if rows are taken of a view that decides which of them come: here they are always the same.

    Args:
        ref: what is taken.
        what: is made of it, for the message.
    """
    if ref._arrangement is not None:
        warn_user(
            f"{what}: {title_of(ref)} decides itself which rows come when. What is made of it has the rows "
            "of its first epoch without shuffle, again and again. Make it the other way round: of each "
            "source first, then mix, weigh, stage or bucket"
        )


class ArrangedRef(RowView[RowT]):
    """Rows of another DataRef, each as often as an arrangement says.

    Its own rows, 0 to its length, are those of an epoch without shuffle.

    Args:
        whole: the other DataRef.
    """

    @abstractmethod
    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> AnyOrder:
        """The order of every epoch."""

    def unpacked(self, numbers: Ints) -> Ints:
        """The rows of the whole that numbers of its orders (B,) stand for."""
        return (numbers - ARRANGED.start) % len(self.whole)

    @property
    def _arrangement(self) -> Arrangement:
        """The maker of its orders."""
        return Arrangement(self.order)

    @cached_property
    def _plain(self) -> AnyOrder:
        """The order of its own rows."""
        return self.order(0, False, True, 1)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows of the whole behind rows of this view, or behind numbers of its orders."""
        own = np.flatnonzero(numbers < ARRANGED.start)
        if len(own):
            numbers = numbers.copy()
            numbers[own] = self._plain.rows(0, numbers[own])
        return self.unpacked(numbers)

    @property
    def file_starts(self) -> Ints:
        """Equal runs: rows of all files are mixed."""
        return equal_runs(len(self))


class MixArrangement(Arrangement):
    """The arrangement of a mixture, which goes on from states of fewer rows."""

    def __init__(self, order: Callable[[int, Shuffle, bool, int], AnyOrder], mixture: Mixture) -> None:
        super().__init__(order)
        self._mixture = mixture

    def going_on(
        self,
        order: AnyOrder,
        saved: State,
        appended: Appended | None,
        fingerprint: str | None,
        pins: Mapping[str, Pin],
    ) -> tuple[AnyOrder, State]:
        """The order in which a state goes on, if the mixture has other sources, rows or weights.

        What identifies the data is taken from here, if the state is of other sources.
        """
        assert isinstance(order, MixOrder)
        mixture = going_on(self._mixture, saved, appended)
        if mixture is None:
            return order, saved
        made = replace(order, mixture=mixture)
        own = {**pins, **made.pins(saved.epoch)}
        if saved.pins["sources"] == own["sources"]:
            return made, saved
        taken: dict[str, Pin] = {name: own[name] for name in own if name in _OF_DATA}
        return made, replace(saved, fingerprint=fingerprint, pins={**saved.pins, **taken})


class NumberedRef(ChangedBlocks):
    """The rows of another DataRef, and a number: of the source that it is of a mixture.

    Args:
        whole: the other DataRef; its rows are dicts.
        column: the name of the column that is added.
        number: of all rows.
    """

    def __init__(self, whole: DataRef, column: str, number: int) -> None:
        super().__init__(whole, column, number)
        self._column, self._number = column, number
        check_column(whole.schema, column)
        assert whole.schema is not None, "that was checked"
        self._schema = with_column(whole.schema, column)

    def _changed(self, block: Block) -> Block:
        numbers = Data(np.full(block.num_rows, self._number))
        return Block(self._schema, block.num_rows, (*block.data, numbers))

    def _projected(self, of: Projection) -> DataRef:
        """Some columns; of the whole only these are read."""
        assert self.whole.schema is not None, "that was checked"
        if len(self.whole.schema.columns) not in of.columns:
            return self.whole._projected(of)
        rest = _rest_of(self.whole.schema, of, self._column)
        return ProjectedRef(self, of) if rest is None else self.over(self.whole._projected(rest))

    def _pinned(self, whole: str) -> str:
        return hexdigest(f"{whole} numbered {self._number} {self._column}")


def check_column(schema: Schema | None, name: str) -> None:
    """Raises SchemaError if rows have no place for one more column of a name."""
    if schema is None:
        raise SchemaError(
            f"source_column={name!r} needs sources that say what their rows look like; give map a schema"
        )
    if schema.tree.kind != "dict":
        raise SchemaError(f"source_column={name!r} needs rows that are dicts, found a {schema.tree.kind}")
    if name in schema.tree.keys:
        raise SchemaError(f"the sources have a column {name!r} already; give source_column= another name")


def with_column(schema: Schema, name: str) -> Schema:
    """A schema with an int64 column at the end of its outermost dict."""
    tree = schema.tree
    widened = replace(tree, keys=(*tree.keys, name), children=(*tree.children, Node("leaf")))
    column = Column(path_name((name,)), "int", "<i8", (), 0)
    return replace(schema, tree=widened, columns=(*schema.columns, column))


def _rest_of(schema: Schema, of: Projection, name: str) -> Projection | None:
    """Columns of rows that become the projection `of` once `name` is added to them; None if none do."""
    names = [schema.columns[number].name for number in of.columns if number < len(schema.columns)]
    # What says where values are, or how long, comes with them.
    names = [one for one in names if not one.endswith((VALID, LENGTHS))]
    rest = Projection.of(schema, names) if names else None
    return rest if rest is not None and with_column(rest.schema, name) == of.schema else None


def with_numbers(rows: Sequence[Row], schema: Schema | None, name: str, numbers: Ints) -> Sequence[Row]:
    """Rows with one more column, of numbers.

    Args:
        rows: (B,)
        schema: what they look like.
        name: of the column.
        numbers: (B,) its values.
    """
    if not len(numbers):
        return rows
    block = block_of(rows, schema)
    return Rows(Block(with_column(block.schema, name), block.num_rows, (*block.data, Data(numbers))))


_Mix = TypeVar("_Mix", bound="MixRef")
Until = Literal["first", "all"]
_MOST_SOURCES, _MOST_CELL, _MOST_ROWS, _MOST_STAGES = 4096, 2**16, 2**60, 4096


def mix(
    sources: Mapping[str, DataRef],
    weights: Mapping[str, float] | Literal["size"] = "size",
    *,
    rows: int | None = None,
    until: Until | None = None,
    temperature: float = 1.0,
    source_column: str | None = None,
    columns: Sequence[str] | None = None,
    epochs: float | Mapping[str, float] | None = None,
    cell: int = 64,
) -> MixRef:
    """Rows of several DataRefs in fixed proportions, as one DataRef.

    At the end of each cell (see `cell`) every source is within 1.24 rows of its share of the epoch so far.
    Each source is shuffled by itself. A small source is read again when all its rows have come, in another
    order; an epoch of the mixture continues each source where the epoch before it stopped.

    Args:
        sources: each DataRef by its name. All have the same columns; see `columns`. In place of a source that
            is a mixture, its own sources are mixed, in the shares that they have there, and named as in
            "web/en"; the length of that mixture counts only for `weights="size"`.
        weights: a number of at least 0 for each source; 0 leaves it out. "size" is the number of its rows.
        rows: the number of rows of an epoch.
        until: where an epoch ends, in place of `rows`: "first", the default, before a row of any source would
            come twice; "all", when each source was read at least once.
        temperature: weights are raised to the power of 1 / temperature; above 1, small sources come more
            often.
        source_column: the name of an int64 column to add, which holds the number of each row's source.
        columns: the only columns to take from each source.
        epochs: the most times that a source is read over all epochs: a number for all sources, or a dict by
            name. `num_epochs` of the result says how many epochs of the mixture that allows. ValueError here
            if it is none, and when an epoch beyond them begins.
        cell: rows whose places are permuted among themselves, so that each rank sees all sources. Shares hold
            at the ends of cells; with the batch size of all ranks, in each batch.

    Returns:
        A DataRef. Loaders and streams over it keep the shares, with any `shuffle`. Its rows by number,
        `mix[0]` to `mix[len(mix) - 1]`, are those of a first epoch without a shuffle.

    Raises:
        ValueError: a weight is negative, not a number, for a name that is not a source, or below 5e-8 of all,
            where it could not be kept to within 1 %; all are 0; a source with a weight has no rows; or an
            epoch has more rows than `epochs` allows.
        SchemaError: the rows of two sources differ; the message names the first column that does.

    Example:
        >>> web, code = yoga.from_arrays({"x": np.arange(90)}), yoga.from_arrays({"x": -np.arange(30)})
        >>> mix = yoga.mix({"web": web, "code": code}, weights={"web": 3, "code": 1}, rows=1000)
        >>> mix.counts(100), len(mix)
        ({'web': 75, 'code': 25}, 1000)
        >>> batch = next(iter(yoga.DataLoader(mix, 64, shuffle=True, seed=7)))
        >>> int((batch["x"] < 0).sum()) in (15, 16)
        True
    """
    if rows is not None and until is not None:
        raise ValueError(f"give rows or until, not both; found rows={rows} and until={until!r}")
    length = None if rows is None else as_int("rows", rows, 1, _MOST_ROWS)
    size = as_int("cell", cell, 1, _MOST_CELL)
    names = _checked_names(sources)
    refs = [sources[name] if columns is None else sources[name].columns(columns) for name in names]
    sizes = list(map(len, refs))
    found = fractions_of(weights, names, sizes, temperature)
    _check_filled(names, sizes, found)
    parts = list(_flattened(map(_Part, names, refs, found, _passes(epochs, names))))
    names, refs = [part.name for part in parts], [part.ref for part in parts]
    if len(set(names)) < len(names):
        raise ValueError(
            f"two sources are called the same, {names[:20]}: those of a mixture within a mixture are named "
            "as in 'web/en'; name them otherwise"
        )
    for name, ref in zip(names, refs, strict=True):
        warn_if_arranged(ref, f"mix, source {name!r}")
    asked = MixTerms(temperature if isinstance(weights, str) else None, None if rows else until or "first")
    whole = whole_weights([part.weight for part in parts])
    most = [part.most for part in parts]
    refs = in_one_order(refs)
    return checked(MixRef(refs, mixture_of(names, refs, whole, most, length, size, asked), source_column))


def mixture_of(
    names: Sequence[str],
    refs: Sequence[DataRef],
    weights: tuple[int, ...],
    most: Sequence[float | None],
    rows: int | None,
    cell: int,
    asked: MixTerms,
) -> Mixture:
    """The mixture of some DataRefs: see `mix`; of as many rows as `asked.until` says, if none are given."""
    sources = tuple(map(Source, names, map(len, refs), most, map(versions_of, refs)))
    stages = (MixStage.first(weights),)
    mixture = Mixture(sources, stages, rows or 1, cell, is_counted=rows is None, asked=asked)
    return mixture if asked.until is None else replace(mixture, rows=length_until(mixture, asked.until))


def checked(made: _Mix) -> _Mix:
    """A mixture whose sources look alike, and whose first epoch takes no more of each than it may."""
    check_alike(made.sources, [f"source {name!r}" for name in made.names])
    made.order(0, True, True, 1).rows(0, 0)
    return made


class _Part(NamedTuple):
    """A source, its weight and the most passes over it."""

    name: str
    ref: DataRef
    weight: Fraction
    most: float | None


def _flattened(parts: Iterable[_Part]) -> Iterator[_Part]:
    """The sources of mixtures in place of these."""
    for part in parts:
        if part.ref._recipe is None:
            yield part
            continue
        recipe = part.ref._recipe.numbered
        if recipe.mixture.is_staged:
            raise ValueError(
                f"the source {part.name!r} is a mixture whose weights change on the way, and a source has "
                "one weight. Give its own sources to mix, in place of it, and change the weights of that: "
                "mix({...}).staged([...]), or mix({...}).reweighted(weights, at=state)"
            )
        own = recipe.mixture.stages[-1].weights
        for ref, mixed, weight in zip(recipe.sources, recipe.mixture.sources, own, strict=True):
            limits = [limit for limit in (part.most, mixed.most) if limit is not None]
            share = part.weight * weight / sum(own)
            yield _Part(f"{part.name}/{mixed.name}", ref, share, min(limits, default=None))


def _check_filled(names: Sequence[str], sizes: Sequence[int], weights: Sequence[Fraction]) -> None:
    """Raises ValueError if a source has a weight, but no rows."""
    for name, size, weight in zip(names, sizes, weights, strict=True):
        if weight and not size:
            raise ValueError(f"the source {name!r} has no rows; leave it out, or give it the weight 0")


def _checked_names(sources: object) -> list[str]:
    if not isinstance(sources, Mapping) or not sources:
        raise ValueError(f"mix takes a dict of a name and a DataRef for each source, found {sources!r:.80}")
    if len(sources) > _MOST_SOURCES:
        raise ValueError(f"a mixture has at most {_MOST_SOURCES} sources, found {len(sources)}")
    for name, ref in sources.items():
        if not isinstance(name, str):
            raise ValueError(f"sources are named by text, found {name!r:.80}")
        if not isinstance(ref, DataRef):
            raise TypeError(
                f"the source {name!r} is a {type(ref).__name__}; mix takes DataRefs, such as "
                "storage.submit(data, ...) or yoga.from_arrays(...) give"
            )
    return list(sources)


def _passes(epochs: float | Mapping[str, float] | None, names: Sequence[str]) -> tuple[float | None, ...]:
    """The most passes over each source."""
    given = epochs if isinstance(epochs, Mapping) else dict.fromkeys(names, epochs)
    for name, most in given.items():
        if name not in names:
            raise ValueError(f"epochs= names {name!r}; the sources are {list(names)}")
        is_number = isinstance(most, numbers.Real) and not isinstance(most, bool)
        if most is not None and not (is_number and most > 0):
            raise ValueError(f"epochs= of {name!r} must be a number above 0, found {most!r}")
    found = [given.get(name) for name in names]
    return tuple(most.item() if isinstance(most, np.generic) else most for most in found)


def versions_of(ref: DataRef) -> tuple[Version, ...]:
    """A source as it is, and as it was before rows were appended."""
    before = (Version(rows, tag_of(name)) for name, rows in ref._prefixes)
    return Version(len(ref), tag_of(identity(ref))), *before


def length_until(mixture: Mixture, until: Until) -> int:
    """The rows until the first, or the last, of the sources has been read once."""
    if until not in ("first", "all"):
        raise ValueError(f'until must be "first" or "all", found {until!r}')
    is_first = until == "first"
    # The place at which each would give its first row again; or its last one.
    ends = [mixture.place_of(n, size if is_first else size - 1) for n, size in enumerate(mixture.lengths)]
    places = [place for place in ends if place is not None]
    return min(places) if is_first else max(places) + 1


class MixRef(JoinedRef):
    """Rows of some DataRefs in fixed proportions: what `mix(...)` is.

    Args:
        sources: the DataRefs.
        mixture: what is mixed.
        source_column: the name of a column with the number of each row's source, if there is one.

    Attributes:
        mixture: what is mixed.
    """

    def __init__(
        self, sources: Sequence[DataRef], mixture: Mixture, source_column: str | None = None
    ) -> None:
        super().__init__(sources, RowMap(range(0)))  # which rows there are says the mixture
        self._own = mixture.first_epoch
        self.mixture = mixture
        self._column = source_column
        self._passes: dict[int, tuple[tuple[int, DataRef], ...]] = {}
        if source_column is not None:
            check_column(super().schema, source_column)

    def __len__(self) -> int:
        return self.mixture.rows

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.sources, self.mixture, self._column)

    @property
    def names(self) -> list[str]:
        """The names of the sources; the numbers in a source column count these."""
        return list(self.mixture.names)

    @property
    def num_epochs(self) -> int | None:
        """How many epochs the argument `epochs` of `mix` allows; None if any number will do.

        Example:
            >>> data = yoga.from_arrays({"x": np.arange(10)})
            >>> yoga.mix({"a": data, "b": data[:5]}, {"a": 1, "b": 1}, rows=4, epochs=2).num_epochs
            5
        """
        return self.mixture.num_epochs

    def counts(self, rows: int | None = None, *, at: Mapping[str, object] | None = None) -> dict[str, int]:
        """How many rows come from each source: of the first `rows` of all epochs together, or up to a state.

        Counts of `rows` are exact at the ends of cells and epochs; within a cell a row may come earlier or
        later. Counts up to a state are always exact, whatever changed on the way.

        Args:
            rows: the number of rows, from the start of epoch 0. After `reweighted`, at least as many as its
                state had reached.
            at: in place of `rows`, the `state_dict()` of a loader of this mixture, or of the mixture before
                it had all of its sources and rows.

        Raises:
            ValueError: the weights were changed after more than `rows` rows.
            StateError: the state is of another dataset.

        Example:
            >>> data = yoga.from_arrays({"x": np.arange(9)})
            >>> yoga.mix({"a": data, "b": data}, {"a": 0.7, "b": 0.3}, rows=100).counts(10**12)
            {'a': 700000000000, 'b': 300000000000}
        """
        mixture, counts = self._read(rows, at)
        found = dict(zip(mixture.names, counts, strict=True))
        return {name: found[name] for name in self.names}

    def _read(self, rows: int | None, at: Mapping[str, object] | None) -> tuple[Mixture, list[int]]:
        """How many rows of each source were read, and of which mixture the sources are."""
        if (rows is None) == (at is None):
            raise ValueError("pass rows, or at=state; not both, and not neither")
        if isinstance(rows, Mapping):
            raise TypeError("counts takes a number of rows; for a state write counts(at=state)")
        if rows is not None:
            return self.mixture, self.mixture.of_first(as_int("rows", rows, 0, _MOST_ROWS))
        if not isinstance(at, Mapping):
            raise TypeError(
                f"at= takes a state_dict(), found {at!r:.80}; for a number of rows write counts(rows)"
            )
        state = State.from_dict(at)
        if state.left_out.rows:
            raise StateError(
                f"{state.left_out.rows} rows of epochs that were left early are left out, and the state does "
                "not say how many of each source; finish epochs, or ask at a state before them"
            )
        return counts_at(self.mixture, state)

    def passes(self, rows: int | None = None, *, at: Mapping[str, object] | None = None) -> dict[str, float]:
        """How often each source is read in the first rows, of all epochs together, or up to a state.

        See `counts`. If rows were appended to a source, each pass is counted over the rows that it then had.

        Example:
            >>> data = yoga.from_arrays({"x": np.arange(10)})
            >>> yoga.mix({"a": data, "b": data[:5]}, {"a": 1, "b": 1}, rows=20).passes(20)
            {'a': 1.0, 'b': 2.0}
        """
        mixture, counts = self._read(rows, at)
        found = {one: mixture.passes_of(number, counts[number]) for number, one in enumerate(mixture.names)}
        return {name: found[name] for name in self.names}

    def reweighted(
        self,
        weights: Mapping[str, float] | Literal["size"],
        *,
        at: Mapping[str, object],
        temperature: float = 1.0,
    ) -> MixRef:
        """This mixture with other weights from a state on; no row of a source is lost or repeated.

        The mixture may have more sources than the state, and appended rows in them, which come in the next
        pass over their source. Each source goes on where it was, and new ones begin. `names` are those of the
        state, then the new ones, so the numbers in a source column keep their meaning.

        Load the same state, or a later one, into a loader of the result. The result does not know what came
        before the state: a loader without a state raises ValueError when it reads or peeks, and so does
        `counts` of fewer rows than the state had reached. A program may always write
        `mix = mix.reweighted(weights, at=state)` when it resumes: if the state has the same weights, nothing
        changes. Rows by number, as `mix[0]`, are as if the mixture always had the last weights.

        Args:
            weights: as `mix` takes them.
            at: the `state_dict()` of a loader of this mixture, or of a view of it with the same rows, or of
                the mixture before it had all of its sources and rows.
            temperature: as `mix` takes it.

        Raises:
            StateError: the state is of another dataset, or of an order without a new shuffle in each epoch;
                or a source of the state is not in this mixture, or has other rows here.
            ValueError: `mix` would refuse the weights, or its `epochs` allows no more rows.

        Example:
            >>> data = yoga.from_arrays({"x": np.arange(9)})
            >>> mix = yoga.mix({"a": data, "b": data}, {"a": 1, "b": 1}, rows=100)
            >>> loader = yoga.DataLoader(mix, 10, shuffle=True, seed=7)
            >>> batch = next(iter(loader))
            >>> mix = mix.reweighted({"a": 3, "b": 1}, at=loader.state_dict())
            >>> loader = yoga.DataLoader(mix, 10, shuffle=True, seed=7)
        """
        state = State.from_dict(at)
        found = self.whole_weights(weights, temperature)
        asked = self.mixture.asked._replace(temperature=temperature if isinstance(weights, str) else None)
        mixture, numbers = changed(replace(self.mixture, asked=asked), found, state)
        made = self._over(mixture, numbers)
        made.order(0, True, True, 1).rows(*divmod(state.place, len(made)))  # raises if `epochs` are too few
        return made

    def staged(self, stages: Sequence[tuple[int, Mapping[str, float]]]) -> MixRef:
        """This mixture with other weights from each stage on: a curriculum of sources.

        A stage begins at the end of the cell in which its position lies, or of the epoch: up to `cell - 1`
        rows later, 63 if `mix` was not given another `cell=`. Stages that begin after a state may be changed;
        `reweighted` takes the place of those to come. `packed`, `token_windows`, `token_batches` and `mix`
        take no mixture with stages: stage what they make.

        Args:
            stages: pairs (position, weights): the weights, as `mix` takes them, from the row at this position
                on, counted over all epochs and ranks. The first position is 0.

        Raises:
            ValueError: the positions do not rise from 0; or `mix` would refuse the weights of a stage; or a
                stage never begins, because the next one begins at the same row or `epochs` of `mix` ends
                before it. The message names the stage.

        Example:
            >>> data = yoga.from_arrays({"x": np.arange(9)})
            >>> mix = yoga.mix({"a": data, "b": data}, {"a": 1, "b": 1}, rows=1000)
            >>> mix = mix.staged([(0, {"a": 1, "b": 0}), (640, {"a": 1, "b": 1})])
            >>> mix.counts(640), mix.counts(1280)
            ({'a': 640, 'b': 0}, {'a': 960, 'b': 320})
        """
        if self.mixture.begin is not None:
            raise ValueError("this mixture goes on from a state; stages begin with a mixture, at position 0")
        if not 1 <= len(stages) <= _MOST_STAGES:
            raise ValueError(f"give 1 to {_MOST_STAGES} stages, found {len(stages)}")
        mixture = self.mixture.plain
        before = -1
        for number, stage in enumerate(stages):
            try:
                position, given = stage
            except (TypeError, ValueError):
                raise ValueError(
                    "stages are pairs of a position and weights, such as (50_000, {'web': 3, 'code': 1}); "
                    f"found {stage!r:.80}"
                ) from None
            most = _MOST_ROWS if number else 0
            before = as_int(f"the position of stage {number}", position, before + 1, most)
            try:
                weights = self.whole_weights(given)
            except ValueError as error:
                raise ValueError(f"stage {number}, from {position!r} rows on: {error}") from error
            mixture = mixture.with_stage(before, weights)
            if len(mixture.stages) == number:
                raise ValueError(
                    f"stage {number - 1} never begins: it and stage {number}, from {position!r} rows on, "
                    f"both begin at row {mixture.stages[-1].start}, the end of their cell. Leave one out, or "
                    f"give mix a smaller cell= than {mixture.cell}"
                )
        made, epochs = self._over(mixture), mixture.num_epochs
        made.order(0, True, True, 1).rows(0, 0)  # raises if `epochs` are too few
        if epochs is not None and (last := mixture.stages[-1].start) >= epochs * mixture.rows:
            raise ValueError(
                f"stage {len(stages) - 1} never begins: it would at row {last}, and epochs= of mix allows "
                f"{epochs} epochs of {mixture.rows} rows, which end before; let it begin earlier, or allow "
                "more"
            )
        return made

    def whole_weights(self, weights: object, temperature: float = 1.0) -> tuple[int, ...]:
        """The weights of the sources that a user gives, as whole numbers."""
        fractions = fractions_of(weights, self.names, self.mixture.lengths, temperature)
        _check_filled(self.names, self.mixture.lengths, fractions)
        return whole_weights(fractions)

    def _over(self, mixture: Mixture, numbers: Sequence[int] | None = None) -> Self:
        """These of its sources, or all of them, in another mixture."""
        sources = self.sources if numbers is None else [self.sources[number] for number in numbers]
        return type(self)(sources, mixture, self._column)

    def order(self, seed: int, shuffle: Shuffle, reshuffle: bool, window: int) -> MixOrder:
        """The order of every epoch: each source by itself, in the proportions."""
        if shuffle and not reshuffle and self.mixture.begin is None and self.mixture.is_staged:
            raise ValueError(
                "this mixture has stages, which are counted over all epochs; with "
                "skip_shuffle_at_epoch_end=True every epoch is the first one. Shuffle each epoch, or take "
                "the rows of the first one: mix[:]"
            )
        files = tuple(source.file_starts for source in self.sources) if shuffle == "block" else ()
        return MixOrder(self.mixture, seed, shuffle, reshuffle, window, files)

    @property
    def _recipe(self) -> Recipe:
        """The sources that it is made of, and how."""
        return Recipe(self.sources, self.mixture, self._column)

    @property
    def _arrangement(self) -> Arrangement:
        """The maker of its orders."""
        return MixArrangement(self.order, self.mixture)

    # -- rows

    _keeps_rows = JoinedRef._keeps_rows

    def take(self, rows: Ints) -> Sequence[Row]:
        """The rows of these numbers, which are its own or of its orders."""
        return self._named(super().take(rows), rows)

    def _take_seeded(self, rows: Ints, seeds: Seeds) -> Sequence[Row]:
        """The rows of these numbers, made with these seeds."""
        return self._named(super()._take_seeded(rows, seeds), rows)

    def _apart(self, rows: Ints) -> tuple[Ints, Ints]:
        source, _, numbers = self.unpacked(rows)
        return source, numbers

    def unpacked(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """The source of each row number (B,), its own or of its orders, which pass over it, and the row."""
        own = np.flatnonzero(numbers < self._own.rows)
        if len(own):
            numbers = numbers.copy()
            numbers[own] = self._plain.rows(0, numbers[own])
        return unpacked(self._own, numbers)

    @cached_property
    def _plain(self) -> MixOrder:
        """The order of its own rows."""
        return MixOrder(self._own, shuffle=False)

    def rows_at(self, numbers: Ints) -> Ints:
        """The rows behind rows of this view (B,), as numbers of the rows of all sources laid end to end."""
        source, _, rows = self.unpacked(numbers)
        return self._own.starts[source] + rows

    def _counts(self) -> Ints:
        return self._own.counts(np.array([self._own.rows]))[:, 0]

    @property
    def file_starts(self) -> Ints:
        """Equal runs: rows of all files are mixed."""
        return equal_runs(self._own.rows)

    @cached_property
    def _evenly(self) -> Evenly | None:
        """None as well if rows of a source depend on the pass over it."""
        return None if any(self._changes) else super()._evenly

    def _of_sources(self, rows: Ints) -> Iterator[tuple[DataRef, Ints, Ints]]:
        return ((ref, places, wanted) for ref, _, places, wanted in self.dealt(rows))

    def _copy(self) -> JoinedRef:
        return self._over(self.mixture)

    def dealt(self, rows: Ints) -> Iterator[tuple[DataRef, int, Ints, Ints]]:
        """For each source, in each pass that matters to it: it, its number, the places of its rows, these."""
        source, passes, numbers = self.unpacked(rows)
        for index, some in by_source(source):
            if not self._changes[index]:
                yield self.sources[index], index, some, numbers[some]
                continue
            turns = passes[some]
            for turn in distinct(turns).tolist():
                places = some[turns == turn]
                yield self.in_pass(index, turn), index, places, numbers[places]

    def in_pass(self, index: int, turn: int) -> DataRef:
        """A source as it is in a pass; it is kept for the last two passes, with what it has looked up."""
        ref = self.sources[index]
        if not self._changes[index]:
            return ref
        number = turn % self.mixture.most_passes(index)
        kept = self._passes.get(index, ())
        found = next((known for which, known in kept if which == number), None)
        if found is None:
            found = ref.in_epoch(number)
            self._passes[index] = (*kept[-1:], (number, found))
        return found

    @cached_property
    def _changes(self) -> list[bool]:
        """For each source, whether its rows depend on the epoch."""
        return [source.in_epoch(1) is not source for source in self.sources]

    def _named(self, rows: Sequence[Row], numbers: Ints) -> Sequence[Row]:
        """The rows with the source column, if there is one."""
        if self._column is None or not len(numbers):
            return rows
        source, _, _ = self.unpacked(numbers)
        return with_numbers(rows, super().schema, self._column, source)

    def in_epoch(self, epoch: int) -> Self:
        """Itself: row numbers tell the pass over each source."""
        return self

    def _projected(self, of: Projection) -> DataRef:
        """Some columns; of the sources only these are read."""
        if self._column is None:
            return type(self)([source._projected(of) for source in self.sources], self.mixture)
        schema = super().schema
        if schema is not None and len(schema.columns) not in of.columns:
            return type(self)(self.sources, self.mixture)._projected(of)
        rest = None if schema is None else _rest_of(schema, of, self._column)
        if rest is None:
            return ProjectedRef(self, of)
        return type(self)([source._projected(rest) for source in self.sources], self.mixture, self._column)

    @property
    def schema(self) -> Schema | None:
        """How a row looks."""
        found = super().schema
        return found if found is None or self._column is None else with_column(found, self._column)

    @cached_property
    def _view_pin(self) -> str | None:
        """How sources are mixed; states also say the weights."""
        mixture = self.mixture
        below = [mixture.names, mixture.lengths, [identity(source) for source in self.sources]]
        sources = nameless_pin(self, json.dumps(below))
        return described("mix", cell=mixture.cell, sources=sources)

    @cached_property
    def fingerprint(self) -> str | None:
        """A name for the content, made of the names of the sources; states say the weights."""
        below = [source.fingerprint for source in self.sources]
        if None in below:
            return None
        told = [below, self.mixture.lengths, self.mixture.names, self.mixture.cell, self._column]
        return hexdigest(json.dumps(["mix", *told]))

    def _title(self) -> str:
        stage = self.mixture.stages[-1]
        told = ", ".join(
            f"{name} {weight / sum(stage.weights):.4g}"
            for name, weight in zip(self.names[:8], stage.weights, strict=False)
        )
        more = f" and {len(self.names) - 8} more" if len(self.names) > 8 else ""
        return f"mix of {told}{more}"


@dataclass(frozen=True)
class Recipe:
    """A mixture taken apart, so that it can be made of views of its sources.

    Attributes:
        sources: the DataRefs that are mixed.
        mixture: how.
        column: the name of a column with the number of each row's source, if there is one.
    """

    sources: tuple[DataRef, ...]
    mixture: Mixture
    column: str | None

    def over(self, view: Callable[[DataRef], DataRef]) -> Recipe:
        """The mixture of a view of each source, which sees the numbers of sources as of the mixture."""
        return Recipe(tuple(map(view, self.numbered.sources)), self.mixture, None)

    @property
    def numbered(self) -> Recipe:
        """The same with the numbers of sources in these."""
        if self.column is None:
            return self
        sources = (NumberedRef(ref, self.column, number) for number, ref in enumerate(self.sources))
        return Recipe(tuple(sources), self.mixture, None)

    def made_of(self, kind: type[_Mix], what: str, make: Callable[[DataRef], DataRef]) -> _Mix:
        """A mixture of what is made of each source, whose weights are shares of that.

        What is made of a mixture is mixed of what is made of its sources: a pack has documents of one source,
        and each source goes its own way through its documents.

        Args:
            kind: of mixture.
            what: the method that makes it.
            make: makes it of one source.
        """
        before, names = self.mixture, self.mixture.names
        if before.is_staged:
            raise ValueError(
                f"{what}: the weights of this mixture change on the way, at places that are counted in its "
                f"rows, not in what {what} makes of them. Change the weights of that: "
                f"mix.{what}(...).staged([...]) or mix.{what}(...).reweighted(weights, at=state) with a "
                "state of its own loader"
            )
        made = [_of_source(name, ref, make) for name, ref in zip(names, self.sources, strict=True)]
        asked, weights = before.asked, before.stages[-1].weights
        for own, ref, weight in zip(before.sources, made, weights, strict=True):
            if weight and not len(ref):
                raise ValueError(
                    f"of the source {own.name!r}, of {own.rows} rows, there is not one "
                    f"{type(ref).__name__.removesuffix('Ref')}: its documents are empty, left out or too "
                    "few; leave it out, or give it the weight 0"
                )
        lengths, rows = list(map(len, made)), None
        if asked.temperature is not None:
            weights = whole_weights(fractions_of("size", names, lengths, asked.temperature))
        if asked.until is None:  # as many as hold the documents that an epoch had
            held = sum(
                Fraction(weight * documents, count)
                for weight, documents, count in zip(weights, before.lengths, lengths, strict=True)
                if weight
            )
            rows = max(1, round(before.rows * sum(weights) / held))
        most = [source.most for source in before.sources]
        mixture = replace(mixture_of(names, made, weights, most, rows, before.cell, asked), is_counted=True)
        return checked(kind(made, mixture, self.column))


def _of_source(name: str, ref: DataRef, make: Callable[[DataRef], DataRef]) -> DataRef:
    try:
        return make(ref)
    except (KeyError, TypeError, ValueError) as error:
        raise type(error)(f"source {name!r}: {error.args[0] if error.args else error}") from error
