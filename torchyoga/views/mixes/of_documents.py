"""Mixtures of packs, windows and batches of each source, whose weights are shares of these.

What is made of a mixture is mixed of what is made of its sources: a pack has documents of one source, and
each source goes its own way through its documents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, SupportsIndex, TypeVar, cast

import numpy as np

from ...order.mixture import fractions_of, whole_weights
from ...reading.contract import row_numbers
from ...reading.dataref import DataRef
from ...rows.data import bounds_of
from ...rows.types import Ints
from ..packs.packed import PackedRef
from ..packs.report import PackReport
from ..tokens.plan import BatchReport
from ..tokens.token_batches import TokenBatchesRef
from ..tokens.token_windows import TokenWindowsRef
from .mix import MixRef, Recipe, checked, mixture_of


def packs_of(recipe: Recipe, make: Callable[[DataRef], PackedRef | MixedPacks]) -> MixedPacks:
    """A mixture of packs of each source: see `DataRef.packed`."""
    return _made_of(MixedPacks, "packed", recipe, make)


def windows_of(recipe: Recipe, make: Callable[[DataRef], TokenWindowsRef | MixedWindows]) -> MixedWindows:
    """A mixture of windows of each source: see `DataRef.token_windows`."""
    return _made_of(MixedWindows, "token_windows", recipe, make)


def batches_of(recipe: Recipe, make: Callable[[DataRef], TokenBatchesRef | MixedBatches]) -> MixedBatches:
    """A mixture of batches of each source: see `DataRef.token_batches`."""
    return _made_of(MixedBatches, "token_batches", recipe.numbered, make)


_Kind = TypeVar("_Kind", bound=MixRef)


def _made_of(kind: type[_Kind], what: str, recipe: Recipe, make: Callable[[DataRef], DataRef]) -> _Kind:
    """The mixture of what is made of each source.

    Args:
        kind: what is made.
        what: the method that makes it.
        recipe: of the mixture.
        make: makes it.
    """
    before, names = recipe.mixture, recipe.mixture.names
    if before.is_staged:
        raise ValueError(
            f"{what}: the weights of this mixture change on the way, at places that are counted in its rows, "
            f"not in what {what} makes of them. Change the weights of that: mix.{what}(...).staged([...]) "
            f"or mix.{what}(...).reweighted(weights, at=state) with a state of its own loader"
        )
    made = [_of_source(name, ref, make) for name, ref in zip(names, recipe.sources, strict=True)]
    asked, weights = before.asked, before.stages[-1].weights
    for own, ref, weight in zip(before.sources, made, weights, strict=True):
        if weight and not len(ref):
            raise ValueError(
                f"of the source {own.name!r}, of {own.rows} rows, there is not one "
                f"{type(ref).__name__.removesuffix('Ref')}: its documents are empty, left out or too few; "
                "leave it out, or give it the weight 0"
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
    return checked(kind(made, mixture, recipe.column))


def _of_source(name: str, ref: DataRef, make: Callable[[DataRef], DataRef]) -> DataRef:
    try:
        return make(ref)
    except (KeyError, TypeError, ValueError) as error:
        raise type(error)(f"source {name!r}: {error.args[0] if error.args else error}") from error


class MixedPacks(MixRef):
    """Packs of documents of several sources in fixed shares: what `mix(...).packed(...)` is."""

    sources: tuple[PackedRef, ...]

    def report(self) -> PackReport:
        """The outcome of packing all sources: how many packs, how full they are, what was left out."""
        some = [source.report() for source in self.sources]
        sums = {
            field.name: sum(getattr(one, field.name) for one in some)
            for field in dataclasses.fields(PackReport)
        }
        return PackReport(**{**sums, "budget": some[0].budget, "most": max(one.most for one in some)})

    def members(self, packs: SupportsIndex | Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """The documents (S,) in these packs, of the rows that it has itself, and where each begins (B + 1,).

        They are numbered as if all sources were laid end to end.
        """

        def of_packs(own: PackedRef, numbers: Ints) -> tuple[Ints, Ints]:
            rows, bounds = own.members(numbers)
            return np.diff(bounds), rows

        counts, documents = _members(self, packs, of_packs)
        return documents, bounds_of(counts)


class MixedWindows(MixRef):
    """Windows of documents of several sources in fixed shares: what `mix(...).token_windows(...)` is."""

    sources: tuple[TokenWindowsRef, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents of all sources, with separators."""
        return sum(source.num_tokens for source in self.sources)

    @property
    def tokens_left_out(self) -> int:
        """Tokens that are in no window of a pass over their source."""
        return sum(source.tokens_left_out for source in self.sources)

    def members(self, numbers: SupportsIndex | Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """How many documents each of these windows (B,) has tokens of, and which, window after window.

        They are numbered as if all sources were laid end to end.
        """
        return _members(self, numbers, type(self.sources[0]).members)


class MixedBatches(MixRef):
    """Batches of rows of several sources in fixed shares: what `mix(...).token_batches(...)` is."""

    sources: tuple[TokenBatchesRef, ...]

    def report(self) -> BatchReport:
        """How many batches all sources have, how much of them is padding, and how many rows were left out."""
        some = [source.report() for source in self.sources]
        taken = sum(one.elements / (1 - one.padding) for one in some if one.elements)
        elements = sum(one.elements for one in some)
        return BatchReport(
            sum(one.batches for one in some),
            sum(one.rows for one in some),
            max(one.most_rows for one in some),
            elements,
            1 - elements / taken if taken else 0.0,
            sum(one.dropped for one in some),
        )

    def members(self, numbers: SupportsIndex | Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """How many rows each of these batches (B,) is made of, and which, batch after batch.

        They are numbered as if all sources were laid end to end.
        """
        return _members(self, numbers, type(self.sources[0]).members)


def _members(
    mixed: MixRef,
    numbers: SupportsIndex | Sequence[int] | Ints,
    read: Callable[[Any, Ints], tuple[Ints, Ints]],
) -> tuple[Ints, Ints]:
    """How many documents each of some rows (B,) of a mixture is made of, and these; `read` says it of one."""
    rows = row_numbers(np.atleast_1d(np.asarray(numbers)), len(mixed))
    begins = bounds_of([len(source.whole) for source in cast(Any, mixed.sources)])
    found: list[Ints] = [rows] * len(rows)
    for source, number, places, own in mixed.dealt(rows):
        counts, documents = read(source, own)
        each = np.split(documents + begins[number], bounds_of(counts)[1:-1])
        for place, some in zip(places.tolist(), each, strict=True):
            found[place] = some
    return np.array(list(map(len, found)), np.int64), np.concatenate([rows[:0], *found])
