"""A state as a value that checks itself, to and from a dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import StateError
from .by_file import MOST_SHARDS
from .contract import AnyOrder, Appended, Pin, Saved, are_counts, digest, in_effect
from .epoch import Epoch, Skipped
from .full import ORDER_VERSION
from .place import Place, Ranges
from .proof import PRIME, weight_until

KEYS = ("version", "seed", "epoch", "position", "length", "shuffle", "fingerprint")
_PINS = ("shuffle", "window", "files", "shards", "stages", "view", "sources", "passes")
_LISTS = {"stages": 2, "sources": 1, "passes": 2}  # how deep: in a dict they are lists, here tuples
_PLAIN = (bool, int, str, type(None))
_MORE = ("grown", "steps", "left", "proof", "again", "left_out")
_KNOWN = {*KEYS, *_MORE}
_ARGUMENTS = {"window": "shuffle_window"}  # the name of the argument
_LENIENT = "or pass strict=False to take its epoch and position"
_SEED_BITS = 4096
_MOST_LEFT = 2**16  # ranges in a state; a loader has at most one for each unfinished batch


Prefixes = Sequence[tuple[str, int]]

_NONE = Skipped()


@dataclass(frozen=True)
class State:
    """How far an epoch of an order is, and which order it is; see docs/resume.md for the fields.

    Attributes:
        seed: that of the order.
        length: rows of the epoch.
        pins: fields that identify the order, so that it is not continued in another one: `shuffle`, and for
            some orders `window`, `files`, `shards`, `stages`, `view`, `sources` and `passes`.
        fingerprint: of the dataset.
        at: how far the epoch is.
        left_out: rows of earlier epochs that were left out.
        grown: rows of the dataset, if those of the epoch are fewer; else None.
        extra: further fields of a loader.
    """

    seed: int
    length: int
    pins: Mapping[str, Pin]
    fingerprint: str | None
    at: Epoch
    left_out: Skipped = _NONE
    grown: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    def to_dict(self) -> Saved:
        """The state as a small dict that can be written as JSON."""
        at, out = self.at, self.left_out
        place = at.place
        found = self.place_to_dict()
        for name, depth in _LISTS.items():
            if name in self.pins:
                pin = self.pins[name]
                pin = in_effect(pin, self.first, self.place) if name == "stages" else pin
                found[name] = _converted(list, pin, depth)
        found |= {
            "steps": at.steps if place.position else 0,
            "left": written(place.left) if place.left else [],
            "proof": f"{at.proof(self.seed):x}",
        }
        if at.again and place.position:
            found["again"] = at.again
        if out.rows:
            found["left_out"] = list(out.written)
        return {**found, **self.extra}

    def place_to_dict(self) -> Saved:
        """The part of the dict that identifies the place and the order; stages as a digest."""
        found: Saved = {
            "version": ORDER_VERSION,
            "seed": self.seed,
            "epoch": self.at.place.epoch,
            "position": self.at.place.position,
            "length": self.length,
            **self.pins,
        }
        found.pop("sources", None)
        found.pop("passes", None)
        if "stages" in found:
            found["stages"] = digest(found["stages"])
        found["fingerprint"] = self.fingerprint
        if self.grown is not None:
            found["grown"] = self.grown
        return found

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self.at.place.epoch

    @property
    def position(self) -> int:
        """Rows of the epoch that are delivered, over all ranks."""
        return self.at.place.position

    @property
    def left(self) -> Ranges:
        """Positions that come next, if later batches came early."""
        return self.at.place.left

    @property
    def place(self) -> int:
        """The place, over all epochs, behind all that was delivered; some rows before it may be left."""
        return self.epoch * self.length + self.at.place.end

    @property
    def first(self) -> int:
        """The first place, over all epochs, that is still to come."""
        return self.epoch * self.length + self.at.place.first

    @property
    def rows(self) -> int:
        """Rows of the dataset that it is of."""
        return self.length if self.grown is None else self.grown

    @classmethod
    def from_dict(cls, state: Mapping[str, object], only_place: bool = False) -> State:
        """The state that a dict describes.

        Args:
            state: what `to_dict` returned, here or in any other process.
            only_place: ignore how the place was reached.

        Raises:
            StateError: it is damaged, or of a later version.
        """
        found = _checked(state)
        grown = found.get("grown")
        if grown is not None and not (are_counts(grown) and found["length"] < grown < 2**62):
            raise StateError("the state's grown is damaged; pass what state_dict() gave")
        pins, extra = dict[str, Pin](), dict[str, object]()
        for name, value in found.items():
            if name in _PINS:
                pins[name] = _converted(tuple, value, _LISTS[name]) if name in _LISTS else value
            elif name not in _KNOWN and not only_place:
                extra[name] = value
        if only_place:
            at, left_out = Epoch(Place(found["epoch"], found["position"]), None), _NONE
        else:
            at, left_out = _read_way(found)
        return cls(found["seed"], found["length"], pins, found["fingerprint"], at, left_out, grown, extra)

    def check_same(self, mine: Mapping[str, object]) -> None:
        """Raises StateError if it is of another order than the one that `mine` describes.

        Args:
            mine: `length`, `seed`, `fingerprint` and the pins.
        """
        found = {**self.pins, "length": self.length, "seed": self.seed, "fingerprint": self.fingerprint}
        if "view" in self.pins and self.pins["view"] != mine.get("view"):
            self._check_view(mine.get("view"), is_as_long=self.length == mine["length"])
        for key in ("length", "seed", "shuffle", "fingerprint", "window"):
            if found.get(key) != mine.get(key):
                use = "Use that, leave seed= out," if key == "seed" else "Use that,"
                raise StateError(
                    f"the state has {_ARGUMENTS.get(key, key)} {_shown(found.get(key))}, but here it is "
                    f"{_shown(mine.get(key))}: it is of another dataset or loader. {use} {_LENIENT}"
                )
        if ("shards" in found) != ("shards" in mine):
            kinds = {True: "'shard'", False: "'global'"}
            raise StateError(
                f"the state is of locality {kinds['shards' in found]}, but here it is "
                f"{kinds['shards' in mine]}; use that, {_LENIENT}"
            )
        for key in ("sources", "passes"):
            if key in self.pins and "sources" not in mine:
                raise StateError(
                    f"the state has the {key} of a mixture, {_shown(self.pins[key])}, but what is read here "
                    f"is none. Load it into a loader of that mixture, {_LENIENT}"
                )
        stages = mine.get("stages")
        if self.pins.get("stages") != stages:
            self._check_stages(stages if isinstance(stages, tuple) else None)
        if found.get("files") != mine.get("files"):
            raise StateError(
                "the state is of the same rows in other files, which make another order; were they "
                f"converted? Use the files it was saved with, {_LENIENT}. It has files "
                f"{found.get('files')!r:.99}, here they are {mine.get('files')!r:.99}"
            )

    def _check_view(self, mine: object, is_as_long: bool) -> None:
        """Raises StateError if it is of another view; unless other numbers of rows say more about that."""
        found, here = (view if isinstance(view, str) else None for view in (self.pins["view"], mine))
        is_alike = found and here and found.partition("(")[0] == here.partition("(")[0]
        if is_as_long or is_alike:
            raise StateError(
                f"the state is of {found or 'rows as they are':.200}, but here it is "
                f"{here or 'rows as they are':.200}: make the view as it was, whose batch= and cell= count "
                f"rows of all ranks, {_LENIENT}"
            )

    def _check_stages(self, mine: Pin) -> None:
        """Raises StateError if what decided which rows came is not what decides here."""
        if self.pins.get("stages") is None or mine is None:
            has = "none here" if mine is None else "none there"
            raise StateError(
                "the state and this dataset do not have the same kind of weights or stages: there are "
                f"{has}; the state is of another dataset"
            )
        if not self.has_come_by(mine):
            raise StateError(
                f"up to the state, at position {self.position} of epoch {self.epoch}, rows came by the "
                f"weights or stages {_shown(self.pins['stages'])}, here by {_shown(mine)}; the past cannot "
                "be changed. For other weights from there on use reweighted(weights, at=state); a Checkpoint "
                "keeps that state in its newest step: see docs/mixtures.md, Other weights in mid-training"
            )

    def has_come_by(self, mine: Pin) -> bool:
        """True if the stages up to its place are the ones here, as far as it still needs them."""
        try:
            one, other = (in_effect(pin, self.first, self.place - 1) for pin in (self.pins["stages"], mine))
        except ValueError:
            return False
        return one == other


def without_keys(state: object, keys: Sequence[str]) -> StateError:
    """The error that says which keys a state should have, and which it has."""
    found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
    return StateError(
        f"expected a state with the keys {list(keys)}, found {found}; pass what state_dict() gave"
    )


def _checked(state: object) -> Saved:
    """A state, as it is, if it names a place of an order; StateError otherwise."""
    if not isinstance(state, Mapping) or not set(KEYS) <= set(state):
        if isinstance(state, Mapping) and "sampler" in state:
            raise StateError(
                f"the state is of the sampler {state['sampler']}, which decided which rows came; load it "
                "into a torchyoga.DataLoader with such a sampler"
            )
        raise without_keys(state, KEYS)
    for key in ("version", "epoch", "position", "length"):
        if not are_counts(state[key]):
            raise StateError(f"the state's {key} must be an int of at least 0, found {_shown(state[key])}")
    for key in ("shuffle", "fingerprint", "window", "files", "view", "stages", "sources", "passes"):
        value = state.get(key)
        if type(value) not in _PLAIN and not _is_plain(value, _LISTS[key] + 1 if key in _LISTS else 0):
            raise StateError(f"the state's {key} is damaged; pass what state_dict() gave")
    if state["version"] != ORDER_VERSION:
        raise StateError(
            f"the state is of version {state['version']}, this torchyoga reads version "
            f"{ORDER_VERSION}; load it with the torchyoga that saved it"
        )
    if state["position"] > state["length"]:
        raise StateError(f"the state's position {state['position']} lies past its length {state['length']}")
    if type(state["seed"]) is not int or state["seed"].bit_length() > _SEED_BITS:
        raise StateError(f"the state's seed must be an int, found {_shown(state['seed'])}")
    shards = state.get("shards")
    if "shards" in state and (type(shards) is not int or not 0 < shards <= MOST_SHARDS):
        raise StateError(f"the state's shards must be an int in 1..{MOST_SHARDS}, found {_shown(shards)}")
    return dict(state)


def _read_way(state: Saved) -> tuple[Epoch, Skipped]:
    """How far an epoch is, by the fields that say how its place was reached, and what was left out before.

    They may be missing: then batches came in order, and nothing was lost.
    """
    epoch, position, steps = state["epoch"], state["position"], state.get("steps")
    try:
        left = _read_ranges(state["left"]) if state.get("left") else ()
        proof = int(state["proof"], 16) if state.get("proof") is not None else None
        again = state.get("again", 0)
        out_rows, out_epoch = state.get("left_out") or (0, 0)
        is_sound = are_counts(again, out_rows, out_epoch, steps or 0)
        out = Skipped(out_rows, out_epoch) if out_rows else _NONE
        is_sound = is_sound and type(steps) in (int, type(None))
        # Positions that are left are not delivered yet.
        num_left = sum(map(len, left))
        is_sound = is_sound and position + num_left <= state["length"]
        is_sound = is_sound and not (left and left[-1][-1] >= position + num_left)
    except (TypeError, ValueError, IndexError, OverflowError, AttributeError):
        is_sound = False
    if not is_sound:
        raise StateError(
            "the state's steps, left or proof are damaged, or its again or left_out; pass what "
            "state_dict() gave"
        )
    place = Place(epoch, position, left)
    fault = 0 if proof is None or not position else (proof - weight_until(state["seed"], place)) % PRIME
    return Epoch(place, steps, fault, again), out


def written(ranges: Ranges) -> list[list[int]]:
    """Ranges as lists of start, stop and, if it is more than 1, step; neighbours joined."""
    joined: list[range] = []
    for some in ranges:
        if joined and joined[-1].step == some.step and joined[-1][-1] + some.step == some.start:
            some = range(joined.pop().start, some.stop, some.step)
        joined.append(some)
    return [[some.start, some.stop, some.step][: 2 + (some.step > 1)] for some in joined]


def _read_ranges(lists: Sequence[Sequence[int]]) -> Ranges:
    """The ranges of a state, if they are in order."""
    if len(lists) > _MOST_LEFT or not all(len(some) in (2, 3) and are_counts(*some) for some in lists):
        raise ValueError
    ranges = tuple(range(start, *others) for start, *others in lists)
    end = 0
    for some in ranges:
        if not some or some.step < 1 or some.start < end:
            raise ValueError
        end = some[-1] + 1
    return ranges


def _is_plain(value: Any, depth: int) -> bool:
    """True for lists of bools, ints, texts and None that nest at most so deeply."""
    is_list = depth > 0 and type(value) in (list, tuple)
    return is_list and all(_is_plain(one, depth - 1) for one in value if type(one) not in _PLAIN)


def _converted(kind: Callable[[Any], Any], pin: Any, depth: int) -> Any:
    """A pin as a list, or as a tuple, and what it consists of down to a depth."""
    if not isinstance(pin, list | tuple):
        return pin
    if depth > 1:
        return kind([_converted(kind, one, depth - 1) for one in pin])
    return kind([kind(one) if type(one) in (list, tuple) else one for one in pin])


def _shown(value: object) -> str:
    """A value as messages show it."""
    try:
        return f"{value!r:.100}"
    except ValueError:  # Python refuses to write the digits of a huge int
        return "a huge number"


def carried(
    saved: State,
    whole: AnyOrder,
    fingerprint: str | None,
    prefixes: Prefixes,
    appended: Appended | None,
    seed: int,
    pins: Mapping[str, Pin],
) -> tuple[State, AnyOrder]:
    """A state of this dataset, or of its first rows, as one of this dataset, and the order of its epoch.

    Args:
        saved: the state.
        whole: the order of all rows.
        fingerprint: of the dataset.
        prefixes: fingerprint and rows of the versions that it begins with.
        appended: "next" if new rows come after the epoch under way; None if there are to be none.
        seed: that of the state, or the one given here.
        pins: what identifies the dataset besides.

    Raises:
        StateError: the state is of another dataset, or there are new rows and `appended` is None, or the
            order before them is not known.
    """
    is_own = saved.fingerprint == fingerprint or (saved.fingerprint, saved.rows) not in prefixes
    epoch = saved.at.place.epoch
    if not is_own and saved.rows == whole.length_in(epoch):  # the same rows, with other columns
        saved, is_own = replace(saved, fingerprint=fingerprint), True
    if is_own and saved.grown is None:  # its epoch was not begun before rows were appended
        mine = {**pins, "length": whole.length_in(epoch), "seed": seed, "fingerprint": fingerprint}
        saved.check_same({**whole.pins(epoch), **mine})
        return saved, whole
    first = _first(whole, saved.length)
    expected = {**first.pins(epoch), **pins, "length": saved.length, "seed": seed}
    saved.check_same({**expected, "fingerprint": fingerprint if is_own else saved.fingerprint})
    if is_own:
        if saved.rows != whole.length:
            raise StateError(
                f"the state has a dataset of {saved.rows} rows, but here it has {whole.length}: it is of "
                "another dataset, or damaged"
            )
        return saved, first
    if appended is None:
        raise StateError(
            f"the state is of {saved.rows} rows, and {whole.length - saved.rows} rows were appended since: "
            f"here are {whole.length}. Pass appended='next' to finish the epoch under way without them; "
            "the loader and load_state_dict() take it"
        )
    if saved.position in (0, saved.length) and not saved.left:
        at = Epoch(Place(epoch + bool(saved.position), 0))
        own = whole.pins(at.place.epoch)
        begun = replace(saved, at=at, length=whole.length, pins=own, fingerprint=fingerprint, grown=None)
        return begun, whole
    found = replace(saved, fingerprint=fingerprint, grown=whole.length)
    return found, first


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
