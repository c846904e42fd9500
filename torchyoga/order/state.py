"""A state as a value that checks itself, to and from a dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..errors import StateError
from .by_file import MOST_SHARDS
from .full import ORDER_VERSION
from .place import Place, Ranges
from .proof import PRIME, is_count, weight_until
from .saved import Pin, Saved, digest, what_differs
from .stages import in_effect

__all__ = ["EpochEntry", "Skipped", "State", "without_keys", "written"]

KEYS = ("version", "seed", "epoch", "position", "length", "shuffle", "fingerprint")
_PINS = ("shuffle", "window", "files", "shards", "stages", "view", "sources", "passes")
_LISTS = {"stages": 2, "sources": 1, "passes": 2}  # how deep: in a dict they are lists, here tuples
_MORE = ("grown", "steps", "left", "share", "proof", "again", "left_out", "left_of")
_ARGUMENTS = {"window": "shuffle_window"}  # the name of the argument
_SEED_BITS = 4096
_MOST_LEFT = 2**16  # ranges in a state; a loader has at most one for each unfinished batch


class Skipped(NamedTuple):
    """Rows that were left out because the next epoch was begun before the end of one.

    Attributes:
        rows: how many, of all epochs before.
        epoch: the last of these epochs.
        of: how many of each source of a mixture, by its name; none if that is not known.
    """

    rows: int = 0
    epoch: int = 0
    of: tuple[tuple[str, int], ...] = ()

    def with_more(self, rows: int, epoch: int, of: Mapping[str, int]) -> Skipped:
        """These rows, and those of another epoch."""
        both = {name: count + dict(self.of).get(name, 0) for name, count in of.items()}
        both = {**dict(self.of), **both}
        is_known = sum(both.values()) == self.rows + rows
        last = max(self.epoch, epoch)  # one that was left before may have gone on
        return Skipped(self.rows + rows, last, tuple(both.items()) if is_known else ())

    @property
    def written(self) -> tuple[int, ...]:
        """The numbers for a state or a receipt; none if no rows were left out."""
        return self[:2] if self.rows else ()


class EpochEntry(NamedTuple):
    """Where this process began an epoch, and what it knows about the part of the epoch before.

    Attributes:
        place: where it began.
        steps: batches of the epoch up to there, on each rank; None if that is not known.
        fault: the weight of rows that came too often up to there, minus that of rows that were lost.
        share: the rows that this rank has delivered, and their weight, if the place belongs to it alone.
        batch_size: rows of the batches of that rank.
        again: rows of the epoch that were delivered before it was begun again.
    """

    place: Place
    steps: int | None = 0
    fault: int = 0
    share: tuple[int, int] = (0, 0)
    batch_size: int = 1
    again: int = 0


class RankShare(NamedTuple):
    """The rows that one rank of several has delivered alone, if batches came in any order.

    Attributes:
        rank: the rank.
        num_replicas: the number of ranks.
        rows: rows that it has delivered.
        batch_size: rows of its batches.
    """

    rank: int = 0
    num_replicas: int = 1
    rows: int = 0
    batch_size: int = 1


_NONE = Skipped()


@dataclass(frozen=True)
class State:
    """A place of an order, and how it was reached; see docs/resume.md for the fields.

    Attributes:
        pins: fields that identify the order, so that it is not continued in another one: `shuffle`, and for
            some orders `window`, `files`, `shards`, `stages`, `view`, `sources`, `passes`.
        left: positions that come next, if later batches came early.
        share: the rows that the rank that saved it has delivered alone; None if the place holds for all
            ranks.
        proof: the weight of the rows delivered; None if it is not known.
        grown: rows of the dataset, if those of the epoch are fewer; else None.
        extra: further fields of a loader.
    """

    version: int
    seed: int
    epoch: int
    position: int
    length: int
    pins: Mapping[str, Pin]
    fingerprint: str | None
    steps: int | None = None
    left: Ranges = ()
    share: RankShare | None = None
    proof: int | None = None
    again: int = 0
    left_out: Skipped = _NONE
    grown: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    def to_dict(self) -> Saved:
        """The state as a small dict that can be written as JSON."""
        out = self.left_out
        notes = {"again": self.again, "left_out": list(out.written), "left_of": dict(out.of)}
        pins = {name: pin for name, pin in self.pins.items() if name in _LISTS}
        if "stages" in pins:
            pins["stages"] = in_effect(pins["stages"], self.first, self.place)
        return {
            **self._place,
            **{name: _converted(list, pin, _LISTS[name]) for name, pin in pins.items()},
            "steps": self.steps,
            "left": written(self.left),
            "share": None if self.share is None else list(self.share),
            "proof": None if self.proof is None else f"{self.proof % PRIME:x}",
            **{name: value for name, value in notes.items() if value},
            **self.extra,
        }

    def place_to_dict(self) -> Saved:
        """The part of the dict that identifies the place and the order, for receipts; stages as a digest."""
        stages = self.pins.get("stages")
        return {**self._place, **({} if stages is None else {"stages": digest(stages)})}

    @property
    def _place(self) -> Saved:
        return {
            "version": self.version,
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self.position,
            "length": self.length,
            **{name: pin for name, pin in self.pins.items() if name not in _LISTS},
            "fingerprint": self.fingerprint,
            **({} if self.grown is None else {"grown": self.grown}),
        }

    @property
    def place(self) -> int:
        """The place, over all epochs, behind all that was delivered; some rows before it may be left."""
        return self.epoch * self.length + self.position + sum(map(len, self.left))

    @property
    def first(self) -> int:
        """The first place, over all epochs, that is still to come."""
        return self.epoch * self.length + (self.left[0].start if self.left else self.position)

    @property
    def is_carried(self) -> bool:
        """True if its epoch was begun before rows were appended."""
        return self.grown is not None

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
        pins = {name: found[name] for name in _PINS if name in found}
        pins |= {name: _converted(tuple, pins[name], _LISTS[name]) for name in _LISTS if name in pins}
        known = {name: found[name] for name in KEYS if name != "shuffle"}
        known["grown"] = _read_grown(found)
        if only_place:
            return cls(**known, pins=pins)
        extra = {name: found[name] for name in found if name not in (*KEYS, *_PINS, *_MORE)}
        return _with_more(cls(**known, pins=pins, extra=extra), found)

    def check_same(self, mine: Mapping[str, object]) -> None:
        """Raises StateError if it is of another order than the one that `mine` describes.

        Args:
            mine: `length`, `seed`, `fingerprint` and the pins.
        """
        found = {**self.pins, "length": self.length, "seed": self.seed, "fingerprint": self.fingerprint}
        self._check_view(mine.get("view"), is_as_long=self.length == mine["length"])
        for key in ("length", "seed", "shuffle", "fingerprint", "window"):
            if found.get(key) == mine.get(key):
                continue
            if key == "seed":
                raise StateError(
                    f"the state has seed {self.seed}, but here it is {mine['seed']}: it is of "
                    "another dataset or loader. Use that, leave seed= out, or pass strict=False to take its "
                    "epoch and position"
                )
            raise StateError(
                f"the state has {_ARGUMENTS.get(key, key)} {found.get(key)!r}, but here it is "
                f"{mine.get(key)!r}: it is of another dataset or loader. Use that, or pass strict=False "
                "to take its epoch and position"
            )
        if ("shards" in found) != ("shards" in mine):
            kinds = {True: "'shard'", False: "'global'"}
            raise StateError(
                f"the state is of locality {kinds['shards' in found]}, but here it is "
                f"{kinds['shards' in mine]}; use that, or pass strict=False to take its epoch and position"
            )
        stages = mine.get("stages")
        self._check_stages(stages if isinstance(stages, tuple) else None)
        if found.get("files") != mine.get("files"):
            raise StateError(
                "the state is of the same rows in other files, which make another order; were they "
                "converted? Use the files it was saved with, or pass strict=False to take its epoch and "
                f"position. It has files {found.get('files')!r}, here they are {mine.get('files')!r}"
            )

    def _check_view(self, mine: object, is_as_long: bool) -> None:
        """Raises StateError if it is of another view; unless other numbers of rows say more about that."""
        # States of earlier versions do not tell it, nor do those of plain rows that have a fingerprint.
        if "view" not in self.pins or self.pins["view"] == mine:
            return
        found, here = (view if isinstance(view, str) else None for view in (self.pins["view"], mine))
        is_alike = found and here and found.partition("(")[0] == here.partition("(")[0]
        if is_as_long or is_alike:
            raise StateError(
                f"the state is {what_differs(found, here):.600}, or pass strict=False to take its epoch and "
                "position"
            )

    def _check_stages(self, mine: Pin) -> None:
        """Raises StateError if what decided which rows came is not what decides here."""
        if self.pins.get("stages") == mine:
            return
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
                "be changed. For other weights from there on use reweighted(weights, at=state)"
            )

    def has_come_by(self, mine: Pin) -> bool:
        """True if the stages up to its place are the ones here, as far as it still needs them."""
        try:
            one, other = (in_effect(pin, self.first, self.place - 1) for pin in (self.pins["stages"], mine))
        except ValueError:
            return False
        return one == other

    @property
    def shards(self) -> int | None:
        """The number of shards that its epoch was begun with; None without locality="shard"."""
        shards = self.pins.get("shards")
        return shards if isinstance(shards, int) else None

    @property
    def entry(self) -> EpochEntry:
        """The entry of an epoch that continues from here."""
        share = self.share or RankShare()
        place = Place(self.epoch, self.position, self.left, (share.rank, share.num_replicas))
        if self.share is not None and share.num_replicas > 1:
            weighed = (share.rows, self.proof or 0)
            return EpochEntry(place, self.steps, 0, weighed, share.batch_size, self.again)
        fault = 0 if self.proof is None else (self.proof - weight_until(self.seed, place)) % PRIME
        return EpochEntry(place, self.steps, fault, again=self.again)


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
        if not is_count(state[key]):
            raise StateError(f"the state's {key} must be an int of at least 0, found {_shown(state[key])}")
    for key in ("shuffle", "fingerprint", "window", "files", "view", "stages", "sources", "passes"):
        if type(state.get(key)) not in (bool, int, str, type(None), *(list, tuple) * (key in _LISTS)):
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


def _read_grown(state: Saved) -> int | None:
    """Rows of the dataset of a state, if its epoch has fewer; StateError if that is damaged."""
    grown = state.get("grown")
    if grown is not None and not (is_count(grown) and state["length"] < grown < 2**62):
        raise StateError("the state's grown is damaged; pass what state_dict() gave")
    return grown


def _with_more(place: State, state: Saved) -> State:
    """A place, with the fields of its state that say how it was reached.

    They may be missing: then batches came in order, and nothing was lost.
    """
    steps, share = state.get("steps"), state.get("share")
    try:
        left = _read_ranges(state.get("left") or [])
        proof = int(state["proof"], 16) if state.get("proof") is not None else None
        alone = RankShare() if share is None else RankShare._make(share)
        again = state.get("again", 0)
        rows, epoch = state.get("left_out") or (0, 0)
        left_out = Skipped(rows, epoch, tuple((state.get("left_of") or {}).items()))
        of = [number for _, number in left_out.of]
        counts = (*alone, again, rows, epoch, *of, 0 if steps is None else steps)
        is_sound = all(map(is_count, counts)) and alone.rank < alone.num_replicas and alone.batch_size > 0
        # Positions that are left are not delivered yet.
        num_left, world = sum(map(len, left)), alone.num_replicas
        is_sound = is_sound and (world > 1 or state["position"] + num_left <= state["length"])
        is_sound = is_sound and not (left and left[-1].stop > state["position"] + world * (num_left + 1))
    except (TypeError, ValueError, IndexError, OverflowError, AttributeError):
        is_sound = False
    if not is_sound:
        raise StateError(
            "the state's steps, left, share or proof are damaged, or its again, left_out or left_of; pass "
            "what state_dict() gave"
        )
    return replace(
        place,
        steps=steps,
        left=left,
        share=None if share is None else alone,
        proof=proof,
        again=again,
        left_out=left_out,
    )


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
    if len(lists) > _MOST_LEFT or not all(is_count(number) for some in lists for number in some):
        raise ValueError
    ranges = tuple(range(start, *others) for start, *others in lists)
    end = 0
    for some in ranges:
        if not some or some.step < 1 or some.start < end:
            raise ValueError
        end = some[-1] + 1
    if any(len(some) not in (2, 3) for some in lists):
        raise ValueError
    return ranges


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
