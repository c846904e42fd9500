"""A state of an earlier version, carried over to one that begins with its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import StateError
from .contract import AnyOrder, Appended
from .full import ORDER_VERSION
from .grown import CARRIED_VERSION, Grown
from .saved import Pin
from .state import MOST_JOINED, State

__all__ = ["Appended", "Prefixes", "carried", "check_appended"]

Prefixes = Sequence[tuple[str, int]]


def check_appended(appended: object) -> None:
    """Raises ValueError unless it is None, "next" or "now"."""
    if appended not in (None, "next", "now"):
        raise ValueError(f"appended must be 'next', 'now' or None, found {appended!r:.100}")


def carried(
    saved: State,
    whole: AnyOrder,
    fingerprint: str | None,
    prefixes: Prefixes,
    appended: Appended | None,
    seed: int,
    pins: Mapping[str, Pin],
) -> tuple[State, AnyOrder]:
    """A state of this dataset, or of its first rows, as one of this dataset, and the order it goes on in.

    Args:
        saved: the state.
        whole: the order of all rows.
        fingerprint: of the dataset.
        prefixes: fingerprint and rows of the versions that it begins with.
        appended: when the new rows come: after the epoch under way, or in the rest of it.
        seed: that of the state, or the one given here.
        pins: what identifies the dataset besides.

    Raises:
        StateError: the state is of another dataset, or there are new rows and `appended` is None, or it
            cannot be done.
    """
    saved = whole.adopted(saved, fingerprint, pins)
    is_own = saved.fingerprint == fingerprint or (saved.fingerprint, saved.rows) not in prefixes
    if not is_own and saved.rows == whole.length_in(saved.epoch):  # the same rows, with other columns
        saved, is_own = replace(saved, fingerprint=fingerprint), True
    if is_own and not saved.is_carried:
        mine = {**pins, "length": whole.length_in(saved.epoch), "seed": seed, "fingerprint": fingerprint}
        saved.check_same({**whole.pins(saved.epoch), **mine})
        return saved, whole
    first = _first(whole, saved.joined[0][0] if saved.joined else saved.length)
    expected = {**first.pins(saved.epoch), **pins, "length": saved.length, "seed": seed}
    saved.check_same({**expected, "fingerprint": fingerprint if is_own else saved.fingerprint})
    if is_own:
        if saved.rows != whole.length:
            raise StateError(
                f"the state has a dataset of {saved.rows} rows, but here it has {whole.length}: it is of "
                "another dataset, or damaged"
            )
        if saved.joined and (whole.keeps_prefixes or whole.joining(1, 0, 2, 0) is None):
            raise StateError("the state has joined rows, which only a full shuffle has; it is damaged")
        return saved, Grown(whole, first, saved.epoch, saved.joined, saved.length)
    if appended is None:
        raise StateError(
            f"the state is of {saved.rows} rows, and {whole.length - saved.rows} rows were appended since: "
            f"here are {whole.length}. Pass appended='next' to finish the epoch under way without them, or "
            "appended='now' to mix them into the rest of it; the loader and load_state_dict() take it"
        )
    if saved.position in (0, saved.length) and not saved.left:
        epoch = saved.epoch + bool(saved.position)
        begun = replace(saved, epoch=epoch, position=0, left=(), share=None, proof=None, steps=0, again=0)
        pins, version = whole.pins(epoch), ORDER_VERSION
        ordinary = replace(begun, length=whole.length, version=version, pins=pins, joined=(), grown=None)
        return replace(ordinary, fingerprint=fingerprint), whole
    if saved.version not in (ORDER_VERSION, CARRIED_VERSION):
        raise StateError(
            f"the epoch of the state was begun in version {saved.version} of the order, which no rows can "
            "join; finish the epoch over the version of the dataset that it was begun on"
        )
    found = replace(saved, fingerprint=fingerprint, version=CARRIED_VERSION)
    if appended == "next":
        return (
            replace(found, grown=whole.length),
            Grown(whole, first, saved.epoch, saved.joined, saved.length),
        )
    return _joining(found, whole, first)


def _joining(saved: State, whole: AnyOrder, first: AnyOrder) -> tuple[State, AnyOrder]:
    """A state whose epoch all new rows join."""
    if whole.joining(1, 0, 2, 0) is None:
        raise StateError(
            "appended='now' needs shuffle=True or False over all rows: a block shuffle and files of each "
            "rank's own are laid out for the epoch; pass appended='next'"
        )
    if whole.keeps_prefixes:
        plain = replace(saved, joined=(), grown=None, length=whole.length, version=ORDER_VERSION)
        return plain, whole
    if saved.share is not None and saved.share.num_replicas > 1:
        raise StateError(
            "the state is of one rank of several alone, as with in_order=False, so ranks would not agree "
            "where rows join; pass appended='next', or train with in_order=True"
        )
    # Positions that are left over lie before the join, and stay what they are.
    start = saved.position + sum(map(len, saved.left))
    joined = (*saved.joined, (saved.length, start))
    if len(joined) > MOST_JOINED:
        raise StateError(
            f"rows have joined the epoch of the state {MOST_JOINED} times, and a state holds no more; pass "
            "appended='next'"
        )
    if saved.joined and start < saved.joined[-1][1]:
        raise StateError(
            f"rows joined the epoch at position {saved.joined[-1][1]}, and the state is at {start}, before "
            "it; pass appended='next'"
        )
    found = replace(saved, joined=joined, length=whole.length, grown=None)
    return found, Grown(whole, first, saved.epoch, joined, whole.length)


def _first(whole: AnyOrder, rows: int) -> AnyOrder:
    """The order of the first rows, as it was before the others were appended."""
    first = whole.prefix(rows)
    if first is not None:
        return first
    raise StateError(
        "the sources of the state have grown, and weights of rows, or files that were laid anew, do not know "
        "the order before; finish the epoch over the version of the state, or pass strict=False to take its "
        "epoch and position"
    )
