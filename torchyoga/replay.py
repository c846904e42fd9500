"""A foreign sampler's iteration, which can be drawn again: any sampler, with what can be promised.

Nobody but such a sampler knows which rows come next. So a state says which epoch it is and how many batches
of it were delivered, and whoever continues draws as many indices again, without reading a row. That gives the
same ones because all that a sampler draws from is known: `random`, NumPy and torch are seeded from (seed,
epoch) while it draws, and the generators it has of its own are in the state.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sized
from copy import deepcopy
from itertools import chain, count, islice
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .cursor import UNKNOWN, Cursor, Run
from .dataref import DataRef
from .errors import StateError
from .generators import generators_of, put_back, written
from .order import ORDER_VERSION, Order, Shard
from .place import Place
from .ranks import Ranks, check_same, gathered, is_one_of_several
from .sampler import ResumableSampler, drawn_seed
from .seeding import OwnGenerators, sampler_seed
from .trainers import is_only_looked_at

__all__ = ["Keys", "Replay", "SamplerError", "is_plain", "resumable"]

_VERSION = 1  # of the state
_MOST_BYTES = 8192  # of what a sampler keeps by itself, in a state
_MOST_PARTS = 8  # samplers within samplers
_WITHIN = ("sampler", "batch_sampler", "_sampler")  # what they are called there
_LATE = 16  # states of a sampler are kept for so many batches that were delivered
_PLACES = 32  # bits of a row's place in its batch
_KEYS = ("version", "sampler", "seed", "epoch", "steps", "length", "fingerprint")
_SAME = ("sampler", "batch_size", "drop_last", "num_replicas", "length", "fingerprint")
_DRAWN_AT_ONCE = (WeightedRandomSampler, SubsetRandomSampler, RandomSampler)  # when their iteration begins
_LISTS = (list, tuple, range, np.ndarray, torch.Tensor, SequentialSampler)
_END = object()  # in place of a batch that an epoch has not


class SamplerError(Exception):
    """What a sampler has raised. No batch failed: asked again, the iteration goes on where it stands."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Keys(NamedTuple):
    """What a sampler has given for a batch, as the dataset is to get it."""

    whole: Any
    size: int


class _Start(NamedTuple):
    """What the drawing of an epoch begins with, from batch `number` on.

    Attributes:
        generators: the states of the sampler's own, by where they are.
        kept: what `state_dict` of the sampler, of those in it and of its iterator has returned.
    """

    epoch: int
    number: int
    generators: Mapping[str, Any]
    kept: Mapping[str, Any]


class _DrawnRun(Run):
    """An iteration, and where its indices are drawn."""

    drawing: _Drawing


def is_plain(sampler: Any, dataset: Any) -> bool | None:
    """What `shuffle=` says as well as one of torch's samplers: False in order, True at random; else None."""
    if type(sampler) is SequentialSampler:
        is_random = False
    elif type(sampler) is RandomSampler and not sampler.replacement and sampler.generator is None:
        is_random = True
    else:
        return None
    return is_random if len(sampler.data_source) == len(sampler) == len(dataset) else None


def resumable(sampler: Any, dataset: Any, **options: Any) -> ResumableSampler | None:
    """A sampler of ours as it is, torch's DistributedSampler as one of ours; None for any other.

    Only exact types: what a subclass does nobody knows. The sampler of ours follows `set_epoch` of the other.

    Args:
        sampler: anybody's.
        dataset: what it is for.
        **options: what `ResumableSampler` is to take from the loader.
    """
    if isinstance(sampler, ResumableSampler):
        return sampler if type(sampler).__iter__ is ResumableSampler.__iter__ else None
    if type(sampler) is not DistributedSampler or len(cast(Sized, sampler.dataset)) != len(dataset):
        return None
    found = ResumableSampler(
        dataset,
        sampler.num_replicas,
        sampler.rank,
        sampler.shuffle,
        sampler.seed,
        sampler.drop_last,
        **options,
    )
    if sampler.epoch:
        found.set_epoch(sampler.epoch)
    _followed(sampler, found)
    return found


class Replay:
    """Any sampler, or batch sampler, as what a loader takes indices from and reports to.

    It counts batches, as the cursor of one rank alone: what the sampler does for other ranks is its own
    business. Drawing is done by the training loop's thread, when a batch is asked for.

    Args:
        dataset: what the indices are for.
        sampler: gives indices, or batches of them if `is_batches`.
        batch_size: indices of a batch; None to hand out what the sampler gives.
        drop_last: leave out a shorter last batch.
        is_batches: True for a batch sampler.
        seed: what `random`, NumPy and torch are seeded from; None to draw it.
        ranks: which of how many this process is.
        draws_from: the generator that gives the seed; torch's global one by default.
        fingerprint: of the dataset.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Any,
        batch_size: int | None,
        drop_last: bool,
        is_batches: bool,
        seed: int | None,
        ranks: Ranks,
        draws_from: torch.Generator | None = None,
        fingerprint: Any = None,
    ) -> None:
        kind = "batch_sampler" if is_batches else "sampler"
        if not (hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")):
            raise TypeError(f"{kind} must give indices when it is iterated, found {sampler!r:.100}")
        if isinstance(sampler, Iterator) and type(sampler).__module__ in ("builtins", "itertools"):
            raise TypeError(
                f"{kind} is a {type(sampler).__name__}, which can be iterated only once, so no epoch could "
                "be drawn again; give a list, or an object whose __iter__ begins anew"
            )
        self.dataset = dataset
        self.sampler = sampler
        self.batch_size = None if is_batches else batch_size
        self.drop_last = drop_last
        self.is_single = batch_size is None and not is_batches
        self._ranks = ranks
        self._num_rows = len(dataset)
        self._draws_from = draws_from
        self.cursor = Cursor(
            Order(UNKNOWN, 0 if seed is None else seed, shuffle=False),
            Shard(),
            fingerprint=fingerprint if isinstance(fingerprint, str) else None,
            draw=self._drawn_seed if seed is None else None,
            unit="rows" if self.is_single else "batches",
        )
        self.cursor.needs_seed = self._draws = _draws(sampler)
        self._is_seed_given = seed is not None
        self._latest: Any = None  # the iteration that has moved last
        self._drawing: _Drawing | None = None  # of the iteration that has begun last
        self._start: _Start | None = None  # of the epoch under way, or of the state that was loaded
        self._world: int | None = None  # ranks of the state that was loaded
        self._tells = False  # the sampler which epoch it is
        self._has_warned = False
        for _, part in self.parts():
            if callable(getattr(part, "set_epoch", None)):
                _followed(part, self)

    # -- what a loader asks

    @property
    def num_replicas(self) -> int:
        """Number of ranks."""
        return self._ranks.now()[0]

    @property
    def rank(self) -> int:
        """This rank."""
        return self._ranks.now()[1]

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin."""
        self._settle()
        return self.cursor.epoch

    @property
    def locality(self) -> str:
        """ "global": it heeds no files."""
        return "global"

    @property
    def is_known_ahead(self) -> bool:
        """True if nothing that happens meanwhile can change what comes, so the sampler may be asked early."""
        return type(self.sampler) in _LISTS or self.is_drawn_at_once

    @property
    def is_dealt(self) -> bool:
        """True if the sampler says that it heeds ranks."""
        return any(
            "rank" in name or "replica" in name or "world" in name
            for _, part in self.parts()
            for name in getattr(part, "__dict__", {})
        )

    @property
    def is_dealt_by_nobody(self) -> bool:
        """True if all of several ranks get the same batches, as far as anybody says."""
        return self.num_replicas > 1 and not self.is_dealt

    @property
    def name(self) -> str:
        """What the sampler is called."""
        return type(self.sampler).__name__

    def num_steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches of an epoch on this rank, as the sampler says.

        Raises:
            TypeError: it has no length.
        """
        number = len(self.sampler)
        if self.batch_size is None:
            return number
        return number // self.batch_size if self.drop_last else -(-number // self.batch_size)

    def most_steps(self, batch_size: int, drop_last: bool, state: Any) -> int:
        """The same, for all epochs and whatever state will be loaded."""
        return self.num_steps(batch_size, drop_last)

    def clock(self) -> int:
        """How many iterations have delivered anything by now."""
        self._settle()
        return self.cursor.num_begun

    def _begin(
        self,
        batch_size: int = 1,
        drop_last: bool = False,
        in_order: bool = True,
        made: int | None = None,
        looked_at: bool = False,
    ) -> Run:
        """An iteration that begins now; see `ResumableSampler._begin`. It counts its own batches."""
        self._settle()
        self._latest = None
        self._ranks.check_alone()
        self._check_length()
        self._check_world()
        self.cursor.fix_seed()
        if looked_at:
            return self._looked(in_order, made)
        self._warn_of_ranks()
        counts = not is_only_looked_at()
        try:
            run = self._drawn_run(in_order, made, counts)
        except SamplerError as failed:
            raise failed.error from failed.error.__cause__
        if counts:
            self.cursor.begun(run)
        return run

    def _batches(self, run: Run, source: Any) -> Iterator[Any]:
        """The indices of each batch from the start of an iteration: an array for a DataRef, else `Keys`."""
        for batch in self._rows(run):
            yield _as_rows(batch) if isinstance(source, DataRef) else _as_keys(batch)

    def _rows(self, run: Run) -> Iterator[Any]:
        """The same, as the sampler gives it."""
        assert isinstance(run, _DrawnRun)
        for number in _numbers(run.start):
            run.drawing.forget(run.place)
            found = run.drawing.batch(number)
            self._fit(run.drawing)
            if found is _END:
                return
            yield found

    def _firsts(self, run: Run) -> Iterator[int]:
        """For each of these batches a number that no other batch of the epoch has, on any rank.

        Those that follow it, one for each of the batch's rows, are no other's either.
        """
        world, rank = self._ranks.now()
        return ((number * world + rank) << _PLACES for number in _numbers(run.start))

    def rows_in_last_step(self, run: Run) -> int:
        """0: nothing is added to the last batches of an epoch that should be cut off."""
        return 0

    def _settle(self) -> None:
        """Tells the cursor how far the iteration that moved last is."""
        if self._latest is not None:
            self._latest.report()

    # -- states

    def set_epoch(self, epoch: int) -> None:
        """See `ResumableSampler.set_epoch`. The sampler is told when the epoch begins."""
        if self._tells:
            return
        self._settle()
        self._latest = None
        self.cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and batches delivered, JSON-able if what the sampler keeps itself is; see docs/resume.md."""
        self._settle()
        return self._written(self.cursor.state_dict(), self._drawing, late=False)

    def _state_of(self, run: Run) -> dict[str, Any]:
        """The state after what an iteration has delivered."""
        assert isinstance(run, _DrawnRun)
        return self._written(self.cursor.state_of(run), run.drawing, late=True)

    def _written(self, found: dict[str, Any], drawing: _Drawing | None, late: bool) -> dict[str, Any]:
        epoch, steps, left = found["epoch"], found["position"], found["left"]
        world, rank = self._ranks.now()
        start = self._start_of(epoch, left[0][0] if left else steps, drawing, late)
        state = {
            "version": _VERSION,
            "sampler": self.name,
            "seed": found["seed"],
            "epoch": epoch,
            "steps": steps,
            "batch_size": self._size,
            "drop_last": self.drop_last,
            "num_replicas": world,
            "length": self._num_rows,
            "fingerprint": self.cursor.fingerprint,
        }
        more = {"left": left, "generators": dict(start.generators), "kept": dict(start.kept)}
        state |= {name: value for name, value in more.items() if value}
        if start.number:
            state["kept_at"] = start.number
        if world > 1 and (left or (start.generators and self._ranks_draw_apart)):
            state["rank"] = rank
        self._check_size("generators", start.generators, "let it draw from one, or from none")
        self._check_size("state_dict", start.kept, "let it keep less, or leave out its state_dict")
        return state

    def _start_of(self, epoch: int, first: int, drawing: _Drawing | None, late: bool) -> _Start:
        """From where on an epoch is to be drawn again to come to its batch number `first`."""
        if drawing is not None and drawing.start.epoch == epoch:
            return drawing.start_at(first)
        if self._start is not None and self._start.epoch == epoch:
            return self._start
        if late and drawing is not None and drawing.end is not None and drawing.end.epoch == epoch:
            return drawing.end
        return _Start(epoch, 0, self.generators(), self.kept(None))

    def _check_size(self, what: str, part: Mapping[str, Any], advice: str) -> None:
        if not part:
            return
        try:
            size = len(json.dumps(part))
        except TypeError:
            size = len(pickle.dumps(part))
        if size > _MOST_BYTES:
            raise StateError(
                f"{self.name} keeps {size} bytes in its {what}, of which at most {_MOST_BYTES} go into a "
                f"state; {advice}: then it is drawn again"
            )

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continues from a state: its indices are drawn again when the next iteration begins.

        Raises:
            StateError: it is of another sampler, batch size, dataset, number of ranks or seed, or damaged.
                `strict=False` takes its epoch and batches all the same.
        """
        start = self._checked(state, strict)
        found = {
            "version": ORDER_VERSION,
            "seed": state["seed"],
            "epoch": state["epoch"],
            "position": state["steps"],
            "length": UNKNOWN,
            "shuffle": False,
            "fingerprint": self.cursor.fingerprint,
            "steps": state["steps"],
            "left": state.get("left"),
        }
        self.cursor.resize(UNKNOWN)
        self.cursor.load_state_dict(found, strict)
        self.put_back(start.generators, strict)
        self._latest = self._drawing = None
        self._start = start
        self._world = state.get("num_replicas") if strict else None

    def _checked(self, state: Mapping[str, Any], strict: bool) -> _Start:
        if not isinstance(state, Mapping) or not set(_KEYS) <= set(state):
            if isinstance(state, Mapping) and "position" in state:
                raise StateError(
                    f"the state counts rows of an order of torchyoga's, but here {self.name} decides which "
                    "rows come; load it into a loader without this sampler"
                )
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise StateError(
                f"expected a state with the keys {list(_KEYS)}, found {found}; pass what state_dict() gave"
            )
        for key in ("version", "epoch", "steps", "length"):
            if type(state[key]) is not int or not 0 <= state[key] < UNKNOWN:
                raise StateError(f"the state's {key} must be an int of at least 0, found {state[key]!r}")
        if state["version"] != _VERSION:
            raise StateError(
                f"the state of a sampler is of version {state['version']}, this torchyoga reads version "
                f"{_VERSION}; load it with the torchyoga that saved it"
            )
        if strict:
            self._check_same(state)
        kept, generators = state.get("kept") or {}, state.get("generators") or {}
        number = state.get("kept_at", 0)
        is_sound = isinstance(kept, Mapping) and isinstance(generators, Mapping)
        if not is_sound or type(number) is not int or not 0 <= number <= state["steps"] + _MOST_BYTES:
            raise StateError(
                "the state's generators, kept or kept_at are damaged; pass what state_dict() gave"
            )
        return _Start(state["epoch"], number, generators, kept)

    def _check_same(self, state: Mapping[str, Any]) -> None:
        world, rank = self._ranks.now()
        mine = {
            "sampler": self.name,
            "batch_size": self._size,
            "drop_last": self.drop_last,
            # A loader may be made, and load its state, before torch.distributed knows of the others.
            "num_replicas": state.get("num_replicas") if self._is_to_be_told else world,
            "length": self._num_rows,
            "fingerprint": self.cursor.fingerprint,
        }
        for key in _SAME:
            if state.get(key) != mine[key]:
                raise StateError(
                    f"the state has {key} {state.get(key)!r}, but here it is {mine[key]!r}: a sampler that "
                    "is not torchyoga's can only be continued as it was. Use that, or pass strict=False to "
                    "take its epoch and steps"
                )
        if "rank" in state and state["rank"] != rank:
            raise StateError(
                f"the state is of rank {state['rank']} alone, this is rank {rank}; load each rank's own"
            )

    @property
    def _size(self) -> int | None:
        """Indices of a batch, as far as that is known."""
        size = getattr(self.sampler, "batch_size", None) if self.batch_size is None else self.batch_size
        return size if type(size) is int and not self.is_single else None

    @property
    def _is_to_be_told(self) -> bool:
        return self._ranks.follows and is_one_of_several() and self._ranks.now() == (1, 0)

    def _check_world(self) -> None:
        """Raises StateError if the state that was loaded is of another number of ranks."""
        if self._world is not None and self._world != self.num_replicas:
            raise StateError(
                f"the state has num_replicas {self._world}, but here it is {self.num_replicas}: a sampler "
                "that is not torchyoga's can only be continued as it was. Use that, or pass strict=False to "
                "take its epoch and steps"
            )

    def _check_length(self) -> None:
        if len(self.dataset) != self._num_rows:
            raise ValueError(
                f"the dataset had {self._num_rows} rows when the loader was made, and has "
                f"{len(self.dataset)} now; make a new loader, and load its state with strict=False"
            )

    def check_ranks(self, group: Any = None) -> None:
        """Compares epoch and batches of all ranks; see `ResumableSampler.check_ranks`."""
        state = self.state_dict()
        mine = {name: state[name] for name in ("version", "seed", "length", "fingerprint", "epoch")}
        world, rank = self._ranks.now()
        mine |= {"position": state["steps"], "shuffle": self.name, "share": None}
        mine |= {"rank": rank, "num_replicas": world}
        check_same(gathered(mine, group), self._ranks.is_alone)

    def receipt(self) -> NoReturn:
        """Raises StateError: nobody knows which rows an epoch should have."""
        self._refuse("receipt")

    def prove(self, group: Any = None) -> NoReturn:
        """Raises StateError: nobody knows which rows an epoch should have."""
        self._refuse("prove")

    def rows_in_step(self, step: int, epoch: int | None = None) -> NoReturn:
        """Raises StateError: they are known when they are drawn."""
        self._refuse("rows_in_step")

    def position_of(self, row: int, epoch: int | None = None) -> NoReturn:
        """Raises StateError: it is known when it is drawn, and there may be several."""
        self._refuse("position_of")

    def _refuse(self, what: str) -> NoReturn:
        raise StateError(
            f"{what}() needs to know the order of the rows, but {self.name} decides which come, and may give "
            "a row never or twice; it is there for loaders that shuffle by themselves, or a ResumableSampler"
        )

    # -- drawing

    @property
    def is_stateful(self) -> bool:
        """True if the sampler, or its iterator, says itself where it stands."""
        return _is_stateful(self.sampler) or (self._drawing is not None and self._drawing.is_stateful)

    def _drawn_run(self, in_order: bool, made: int | None, counts: bool) -> _DrawnRun:
        cursor = self.cursor
        run = _DrawnRun(cursor, 1, False, in_order, made)
        if counts:
            cursor.warn_of_rows_left_out(run)
        while True:
            # What was drawn before may be wanted once more.
            start = self._start if self._start and self._start.epoch == run.start.epoch else None
            run.drawing = self._drawing = _Drawing(self, run.start.epoch, start)
            self._start = run.drawing.open()
            run.drawing.forget(run.start)
            if not run.start.position or run.drawing.batch(next(_numbers(run.start))) is not _END:
                break
            # The state was saved before anybody knew that this was the end of the epoch.
            cursor.resize(run.drawing.drawn)
            again = _DrawnRun(cursor, 1, False, in_order, made)
            if again.start == run.start:
                break
            run = again
        run.counts = counts
        self._fit(run.drawing)
        return run

    def _looked(self, in_order: bool, made: int | None) -> _DrawnRun:
        """An iteration of which one batch is drawn, and nothing moves."""
        cursor, start, latest = self.cursor, self._start, self._drawing
        is_under_way = latest is not None and latest.drawn > latest.start.number and not latest.has_ended
        if is_under_way and self.is_stateful:
            raise StateError(
                f"{self.name} keeps its place itself, so it cannot be looked at while an iteration is under "
                "way; peek before it begins, or when it is over"
            )
        length, states = cursor.length, self.generators()
        try:
            run = self._drawn_run(in_order, made, counts=False)
            run.drawing.batch(next(_numbers(run.start)))
            run.drawing.has_ended = True  # no more of it
        finally:
            cursor.resize(length)
            self.put_back(states)
            if not self.is_stateful:
                self._start = start
            self._drawing = latest
            if latest is not None and is_under_way:
                latest.tell()
        return run

    def _fit(self, drawing: _Drawing) -> None:
        """Tells the cursor how long the epoch is, as far as that is known."""
        if drawing is not self._drawing:
            return
        expected = drawing.expected
        if drawing.has_ended:
            self.cursor.resize(drawing.drawn)
        elif expected is not None and drawing.drawn <= expected:
            self.cursor.resize(expected)
        else:
            self.cursor.resize(UNKNOWN)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """The sampler and those in it, with the names by which they are reached."""
        found, seen = deque([("", self.sampler)]), {id(self.sampler)}
        while found:
            path, part = found.popleft()
            yield path, part
            for name, value in list(getattr(part, "__dict__", {}).items()):
                is_part = isinstance(value, Sampler) or (name == "dataset" and hasattr(value, "_sampler"))
                is_part = is_part or (name in _WITHIN and hasattr(value, "__iter__"))
                if (
                    is_part
                    and type(value) not in _LISTS
                    and id(value) not in seen
                    and len(seen) < _MOST_PARTS
                ):
                    seen.add(id(value))
                    found.append((f"{path}{name}.", value))

    def generators(self) -> dict[str, Any]:
        """The states of all generators that the sampler has of its own, by their names."""
        return {
            f"{path}{name}": written(generator)
            for path, part in self.parts()
            for name, generator in generators_of(part).items()
        }

    def put_back(self, states: Mapping[str, Any], strict: bool = True) -> None:
        """Gives the generators these states.

        Raises:
            StateError: there are others.
        """
        mine = {
            f"{path}{name}": generator
            for path, part in self.parts()
            for name, generator in generators_of(part).items()
        }
        if strict and set(mine) != set(states):
            raise StateError(
                f"the state has generators {sorted(states)}, but {self.name} has {sorted(mine)} here; make "
                "the sampler as it was, or pass strict=False to take the epoch and steps"
            )
        for name in set(mine) & set(states):
            put_back(mine[name], states[name])

    def kept(self, iterator: Any) -> dict[str, Any]:
        """What the sampler says of where it stands: at the start of an epoch, or within an iteration."""
        if iterator is not None:
            parts = {"sampler": self.sampler, "iterator": iterator}
        elif _is_stateful(self.sampler):
            parts = {"sampler": self.sampler}
        else:
            parts = {f"sampler.{path}".rstrip("."): part for path, part in self.parts()}
        return {name: deepcopy(part.state_dict()) for name, part in parts.items() if _is_stateful(part)}

    def take(self, kept: Mapping[str, Any], iterator: Any) -> None:
        """Makes the sampler, or its iterator, stand where it has said.

        Raises:
            StateError: it has no such part.
        """
        parts = {f"sampler.{path}".rstrip("."): part for path, part in self.parts()}
        wanted = {
            name: state for name, state in kept.items() if (name == "iterator") == (iterator is not None)
        }
        for name, state in wanted.items():
            part: Any = iterator if name == "iterator" else parts.get(name)
            if not _is_stateful(part):
                raise StateError(
                    f"the state has a state of {name}, but {self.name} has no load_state_dict there; make "
                    "the sampler as it was"
                )
            part.load_state_dict(deepcopy(state))

    def tell(self, epoch: int) -> None:
        """Tells the sampler, and those in it, which epoch it is."""
        self._tells = True
        try:
            for _, part in self.parts():
                set_epoch = getattr(part, "set_epoch", None)
                if callable(set_epoch):
                    (set_epoch.own if type(set_epoch) is _SetEpoch else set_epoch)(epoch)
        finally:
            self._tells = False

    def drawn_from(self, epoch: int) -> OwnGenerators | None:
        """What all code shares, as the sampler has it in an epoch; None if it draws nothing from there."""
        if not self._draws:
            return None
        rank = self.rank if self._ranks_draw_apart else 0
        return OwnGenerators(sampler_seed(self.cursor.order.seed, epoch, rank))

    @property
    def is_drawn_at_once(self) -> bool:
        """True if all of an epoch is drawn when its first index is asked for."""
        # RandomSampler asks a generator of the user's whenever it needs more.
        sampler = self.sampler
        return type(sampler) in _DRAWN_AT_ONCE and (
            type(sampler) is not RandomSampler or sampler.generator is None
        )

    @property
    def _ranks_draw_apart(self) -> bool:
        # torch's own cannot know of other ranks, which would draw the same.
        return type(self.sampler) in _DRAWN_AT_ONCE

    def _warn_of_ranks(self) -> None:
        world = self.num_replicas
        if world == 1 or self._has_warned or self._is_seed_given or not self._draws:
            return
        if not self.is_dealt and not self._ranks_draw_apart:
            self._has_warned = True
            warnings.warn(
                f"there are {world} ranks, and {self.name} does not say that it heeds them: all draw the "
                "same from (seed, epoch), so all get the same rows, if it does not divide them; have it keep "
                "a `rank`, or give each rank's loader a seed of its own",
                UserWarning,
                stacklevel=4,
            )

    def _drawn_seed(self) -> int:
        return drawn_seed(self._draws_from)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name} of {self._num_rows} rows, seed={self.cursor.seed}, "
            f"rank {self.rank} of {self.num_replicas})"
        )

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return {**self.__dict__, "_latest": None}


class _Drawing:
    """The indices of one epoch, drawn batch by batch and kept until they are delivered."""

    def __init__(self, replay: Replay, epoch: int, start: _Start | None) -> None:
        self._replay = replay
        self._is_again = start is not None
        self.start = start or _Start(epoch, 0, {}, {})
        self.drawn = self.start.number
        self.has_ended = self.is_stateful = False
        self.end: _Start | None = None  # what the next epoch begins with
        self.expected: int | None = None  # batches of the epoch, as the sampler says
        self._batches: dict[int, Any] = {}  # that were drawn and are still to be delivered
        self._place = Place(epoch, 0)  # up to which they were delivered
        self._marks: deque[_Start] = deque()  # where the sampler said that it stood
        self._iterator: Any = None
        self._is_first = True  # nothing was drawn since it was opened
        self._may_be_over = False
        self._own: OwnGenerators | None = None

    def open(self) -> _Start:
        """Makes the sampler's iterator, and says what it begins with."""
        with self._apart(begins=True):
            self._open()
        return self.start

    def batch(self, number: int) -> Any:
        """What the sampler gives for batch `number`; `_END` if the epoch has no such batch."""
        if number < self.drawn and number not in self._batches:
            self._iterator = None
            self.has_ended = False
        while number not in self._batches and not self.has_ended:
            self._draw()
        return self._batches.get(number, _END)

    def forget(self, place: Place) -> None:
        """What was delivered up to a place will not be asked for again."""
        self._place = place
        first = place.left[0][0] if place.left else place.position
        for number in [number for number in self._batches if not self._is_to_come(number)]:
            del self._batches[number]
        while len(self._marks) > 2 and self._marks[2].number < first - _LATE:
            del self._marks[1]  # the first tells whether they move at all

    def start_at(self, first: int) -> _Start:
        """From where on to draw again to come to batch `first`."""
        # Whether the epoch goes on after a batch shows when the sampler has given it and is asked again: one
        # that is at its end may begin anew when it is loaded.
        found = [mark for mark in list(self._marks) if mark.number < first]
        # A state that does not move within an epoch says nothing of where it stands.
        if not found or pickle.dumps(found[-1].kept) == pickle.dumps(found[0].kept):
            return self.start
        return found[-1]

    def tell(self) -> None:
        """Tells the sampler once more which epoch this is."""
        with self._apart():
            self._replay.tell(self.start.epoch)

    def _is_to_come(self, number: int) -> bool:
        left = self._place.left
        return number >= self._place.position + sum(map(len, left)) or any(number in some for some in left)

    def _draw(self) -> None:
        with self._apart(begins=self._iterator is None):
            if self._iterator is None:
                self._open()
            try:
                found = self._next_or_anew()
            except StopIteration:
                self.has_ended = True
                replay, epoch = self._replay, self.start.epoch + 1
                self.end = _Start(epoch, 0, replay.generators(), replay.kept(None))
                return
            if self._is_to_come(self.drawn):
                self._batches[self.drawn] = found
            self.drawn += 1
            self._is_first = False
            self._mark()
        if self.drawn == self.expected:
            # So that the state after its last batch is of the next epoch. Errors are for whoever asks for it.
            with contextlib.suppress(SamplerError):
                self._draw()

    def _next_or_anew(self) -> Any:
        try:
            return self._next()
        except StopIteration:
            # A state of the end of an epoch makes some samplers give nothing, once, as torchdata has it.
            if not self._may_be_over or self.drawn:
                raise
        self._may_be_over = False
        self._iterator = iter(self._replay.sampler)
        return self._next()

    def _next(self) -> Any:
        size, replay = self._replay.batch_size, self._replay
        if size is None:
            return next(self._iterator)
        found = list(islice(self._iterator, size))
        if not found or (replay.drop_last and len(found) < size):
            raise StopIteration
        return found

    def _open(self) -> None:
        replay, epoch = self._replay, self.start.epoch
        self._may_be_over = self._is_again and bool(self.start.kept)
        if self._is_again:
            replay.put_back(self.start.generators, strict=False)
            if self.start.number:
                replay.tell(epoch)
            replay.take(self.start.kept, None)
            if (
                not self.start.number
            ):  # what was kept at the end of an epoch may say that it is still that one
                replay.tell(epoch)
        else:
            generators = replay.generators()
            replay.tell(epoch)
            self.start = _Start(epoch, 0, generators, replay.kept(None))
            self._is_again = True
        iterator = iter(replay.sampler)
        if self.start.number:
            replay.take(self.start.kept, iterator)
        self.is_stateful = _is_stateful(replay.sampler) or _is_stateful(iterator)
        self._iterator, self.drawn, self.has_ended = iterator, self.start.number, False
        self.expected = self._expected()
        self._marks.clear()
        self._mark()

    def _mark(self) -> None:
        if self.is_stateful:
            kept = self._replay.kept(self._iterator)
            self._marks.append(_Start(self.start.epoch, self.drawn, self.start.generators, kept))

    def _expected(self) -> int | None:
        try:
            return int(self._replay.num_steps(1, False))
        except (TypeError, ValueError, NotImplementedError, OverflowError):
            return None

    @contextlib.contextmanager
    def _apart(self, begins: bool = False) -> Iterator[None]:
        """Meanwhile the sampler may draw, and what all code shares is as the sampler has it."""
        if begins:
            self._own, self._is_first = self._replay.drawn_from(self.start.epoch), True
        own = self._own if self._is_first or not self._replay.is_drawn_at_once else None
        try:
            with contextlib.nullcontext() if own is None else own.in_place():
                yield
        except BaseException as error:
            # Nobody knows where the iterator stands now, and a generator would be at its end: another begins,
            # and draws again.
            self._iterator = None
            if isinstance(error, Exception):
                raise SamplerError(error) from error
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None, "_own": None, "_batches": {}}


def _numbers(place: Place) -> Iterator[int]:
    """The batches that come from a place on."""
    return chain(*place.left, count(place.position + sum(map(len, place.left))))


def _as_keys(batch: Any) -> Keys:
    if not hasattr(batch, "__len__"):
        batch = list(batch)
    return Keys(batch, len(batch))


def _as_rows(batch: Any) -> npt.NDArray[Any]:
    """A batch as numbers of rows; as what it is if that is something else, which a DataRef will refuse."""
    found = batch.numpy() if isinstance(batch, torch.Tensor) else np.asarray(_as_keys(batch).whole)
    if found.ndim == 1 and (found.dtype.kind in "iu" or not found.size):
        return found.astype(np.int64, copy=False)
    whole = list(batch)
    refused = np.empty(len(whole), object)
    for place, index in enumerate(whole):
        refused[place] = index
    return refused


def _draws(sampler: Any) -> bool:
    """True if a sampler may draw from what all code shares."""
    if type(sampler) in _DRAWN_AT_ONCE:
        return sampler.generator is None
    return type(sampler) not in _LISTS


def _is_stateful(part: Any) -> bool:
    return callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))


class _SetEpoch:
    """`set_epoch` of a sampler that others follow: they are told, too.

    For trainers and loops call that of the sampler which they know.
    """

    def __init__(self, own: Callable[[int], Any]) -> None:
        self.own = own
        self.followers: weakref.WeakSet[Any] = weakref.WeakSet()

    def __call__(self, epoch: int) -> None:
        self.own(epoch)
        for follower in tuple(self.followers):
            follower.set_epoch(epoch)

    def __reduce__(self) -> Any:
        return _SetEpoch, (self.own,)


def _followed(sampler: Any, follower: Any) -> None:
    """From now on `set_epoch` of a sampler is that of its follower, too."""
    if isinstance(sampler, ResumableSampler):
        return  # it has its own account, and is told by its follower
    own = sampler.set_epoch
    if type(own) is not _SetEpoch:
        own = _SetEpoch(own)
        try:
            sampler.set_epoch = own
        except AttributeError:  # it has no room for that; the loader's own set_epoch is there
            return
    own.followers.add(follower)
