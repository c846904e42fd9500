"""The iterations of a user's sampler, drawn again after a resume.

Only such a sampler knows which rows come next. So a state says which epoch it is and how many batches
of it were delivered, and whoever continues draws as many indices again, without reading a row. That gives the
same ones because all that a sampler draws from is known: `random`, NumPy and torch are seeded from (seed,
epoch) while it draws, and the generators it has of its own are in the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from functools import partial
from typing import NoReturn, cast

import torch
from torch.distributed import ProcessGroup
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from ..errors import StateError
from ..order.contract import Appended, Locality, Saved
from ..order.cursor import UNKNOWN, Cursor
from ..order.epoch import Epoch, Iteration, IterationOptions
from ..order.full import ORDER_VERSION, Order
from ..order.place import Shard
from ..order.state import without_keys
from ..process.messages import warn_user
from ..process.seeding import GeneratorsPutBack, OwnGenerators, sampler_seed
from ..reading.dataref import DataRef
from ..rows.types import Index
from . import user_sampler
from .indices import Indices, drawn_seed
from .ranks import Ranks, is_one_of_several
from .sampler import ResumableSampler
from .trainers import is_only_looked_at

_VERSION = 1  # of the state
_PLACES = 32  # bits of a row's place in its batch
_KEYS = ("version", "sampler", "seed", "epoch", "steps", "length", "fingerprint")
_SET_EPOCH = "set_epoch"  # the method of a class, and what an object may have in its place
_SAME = ("sampler", "batch_size", "drop_last", "num_replicas", "length", "fingerprint")


def is_plain(sampler: Iterable[Index], dataset: Sized) -> bool | None:
    """The `shuffle=` that one of torch's samplers amounts to: False in order, True at random; else None."""
    if type(sampler) is SequentialSampler:
        is_random = False
    elif type(sampler) is RandomSampler and not sampler.replacement and sampler.generator is None:
        is_random = True
    else:
        return None
    return is_random if len(sampler.data_source) == len(sampler) == len(dataset) else None


def resumable(
    sampler: Iterable[Index],
    dataset: Sized,
    start_offset: int = 0,
    shuffle_window: int = 8,
    locality: Locality = "global",
) -> ResumableSampler | None:
    """A sampler of ours as it is, torch's DistributedSampler as one of ours; None for any other.

    Only exact types: what a subclass does is not known. The sampler of ours follows `set_epoch` of the other.

    Args:
        sampler: any sampler.
        dataset: the dataset it is for.
        start_offset: the loader's, as for `ResumableSampler`.
        shuffle_window: the loader's.
        locality: the loader's.
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
        start_offset=start_offset,
        shuffle_window=shuffle_window,
        locality=locality,
    )
    if sampler.epoch:
        found.set_epoch(sampler.epoch)
    _followed(sampler, found)
    return found


class RedrawnIndices(Indices):
    """Any sampler, or batch sampler, as what a loader takes indices from and reports to.

    It counts batches, as the cursor of one rank alone: what the sampler does for other ranks is its own
    business. Drawing is done by the training loop's thread, when a batch is asked for.

    Args:
        dataset: the dataset that the indices are for.
        foreign: the sampler.
        seed: what `random`, NumPy and torch are seeded from; None to draw it.
        ranks: which of how many this process is.
        draws_from: the generator that gives the seed; torch's global one by default.
        fingerprint: the dataset's.
    """

    def __init__(
        self,
        dataset: Sized,
        foreign: user_sampler.UserSampler,
        seed: int | None,
        ranks: Ranks,
        draws_from: torch.Generator | None = None,
        fingerprint: object = None,
    ) -> None:
        cursor = Cursor(
            Order(UNKNOWN, 0 if seed is None else seed, shuffle=False),
            Shard(),
            fingerprint=fingerprint if isinstance(fingerprint, str) else None,
            draw=partial(drawn_seed, draws_from, ranks) if seed is None else None,
            unit="rows" if foreign.is_single else "batches",
        )
        super().__init__(dataset, cursor, ranks)
        self._foreign = foreign
        self._num_rows = len(dataset)
        self.cursor.needs_seed = self.cursor.draws = foreign.draws
        self.cursor.varies = foreign.draws or foreign.is_torchs
        self._is_seed_given = seed is not None
        self._drawing: user_sampler.Drawing | None = None  # of the iteration that has begun last
        # Of the epoch under way, or of the state that was loaded.
        self._start: user_sampler.Start | None = None
        self._world: int | None = None  # ranks of the state that was loaded
        self._loaded: tuple[int, int, int] | None = None  # its epoch, steps, and checksum of their indices
        self._has_warned = False
        for _, part in foreign.parts():
            if user_sampler.has_epochs(part):
                _followed(part, self)

    # -- what a loader asks

    @property
    def name(self) -> str:
        """The sampler's name."""
        return self._foreign.name

    @property
    def order(self) -> str:
        """The sampler's name."""
        return self.name

    @property
    def is_known_ahead(self) -> bool:
        """True if the sampler may be asked before its batches are."""
        return self._foreign.is_known_ahead

    @property
    def may_repeat(self) -> bool:
        """True: it is not known what the sampler gives."""
        return True

    @property
    def is_undivided(self) -> bool:
        """True if all of several ranks get the same batches, as far as that is known."""
        return self.num_replicas > 1 and not self._foreign.is_dealt

    def num_steps(self, batch_size: int, drop_last: bool) -> int:
        """Batches of an epoch on this rank, as the sampler says.

        Raises:
            TypeError: it has no length.
        """
        return self._foreign.num_steps()

    def num_steps_undivided(self, batch_size: int, drop_last: bool) -> int:
        """Batches of an epoch on all ranks, if the sampler gives each as many as this one."""
        return self._foreign.num_steps() * self.num_replicas

    def steps_before(self, batch_size: int, drop_last: bool) -> int:
        """Batches of the epoch before the next one."""
        return self.cursor.steps_before(1, False)

    def most_steps(self, batch_size: int, drop_last: bool, state: Mapping[str, object] | None) -> int:
        """`num_steps`, for all epochs and whatever state will be loaded."""
        return self._foreign.num_steps()

    def begin(self, options: IterationOptions) -> Iteration:
        """An iteration that begins now; see `Indices.begin`. It counts its own batches."""
        with self.cursor.lock:
            self.ranks.check_alone()
            self.check_length(self._num_rows, "loader")
            if self._world is not None and self._world != self.num_replicas:
                raise _unlike("num_replicas", self._world, self.num_replicas)
            has_drawn = self.cursor.fix_seed()
            counts = options.counts and not is_only_looked_at()
            # A sampler of the user's makes batches of its own, each of which is one step.
            asked = IterationOptions(in_order=options.in_order, made=options.made, counts=counts)
            if counts:
                self._warn_of_ranks()
            try:
                if not options.counts:
                    return self._looked(asked)
                iteration = self._drawn_iteration(asked)
            except user_sampler.SamplerError as failed:
                raise failed.error from failed.error.__cause__
            if counts:
                if not has_drawn:
                    self.cursor.draw_for(iteration)
                self.cursor.begun(iteration)
            return iteration

    def batches(self, iteration: Iteration, source: object) -> Iterator[Index]:
        """The indices of each batch from the start of an iteration: an array for a DataRef, else `Keys`."""
        for batch in self.rows(iteration):
            yield user_sampler.as_rows(batch) if isinstance(source, DataRef) else user_sampler.as_keys(batch)

    def rows(self, iteration: Iteration) -> Iterator[Index]:
        """The indices of the sampler, unchanged."""
        for number in user_sampler.numbers(iteration.start):
            with self.cursor.lock:
                _drawing(iteration).forget(iteration.now().place)
                found = _drawing(iteration).batch(number)
                self._fit(iteration)
            if found is user_sampler.END:
                return
            yield found

    def firsts(self, iteration: Iteration) -> Iterator[int]:
        """A number for each of these batches that no other batch of the epoch has, on any rank.

        Nor has any other the numbers that follow it, one for each of the batch's rows.
        """
        world, rank = self.ranks.now()
        return ((number * world + rank) << _PLACES for number in user_sampler.numbers(iteration.start))

    def rows_in_last_step(self, iteration: Iteration) -> int:
        """0: nothing is added to the last batches of an epoch that should be cut off."""
        return 0

    # -- states

    def set_epoch(self, epoch: int) -> None:
        """See `ResumableSampler.set_epoch`. The sampler's own is called now, and when the epoch begins."""
        if self._foreign.is_setting_epoch:
            return
        with self.cursor.lock:
            super().set_epoch(epoch)
            named = self.cursor.begin().epoch
            if named != self._foreign.epoch:  # not late, when it draws from it
                with GeneratorsPutBack():
                    self._foreign.tell(named)

    def state_dict(self) -> Saved:
        """Epoch and batches delivered, JSON-able if what the sampler keeps itself is; see docs/resume.md."""
        with self.cursor.lock:
            return self._written(super().state_dict(), self._drawing, late=False)

    def state_of(self, iteration: Iteration, then: Epoch | None = None) -> Saved:
        """The state after what an iteration has delivered; or had then."""
        with self.cursor.lock:
            return self._written(self.cursor.state_of(iteration, then), _drawing(iteration), late=True)

    def _written(self, found: Saved, drawing: user_sampler.Drawing | None, late: bool) -> Saved:
        epoch, steps, left = found["epoch"], found["position"], found["left"]
        world, rank = self.ranks.now()
        start = self._start_of(epoch, drawing, late)
        state = {
            "version": _VERSION,
            "sampler": self.name,
            "seed": found["seed"],
            "epoch": epoch,
            "steps": steps,
            "batch_size": self._foreign.size,
            "drop_last": self._foreign.drop_last,
            "num_replicas": world,
            "length": self._num_rows,
            "fingerprint": self.cursor.fingerprint,
        }
        more = {"left": left, "generators": dict(start.generators), "kept": dict(start.kept)}
        more["drawn"], more["indices"] = self.cursor.extra.get("drawn"), self._sum_of(epoch, steps, drawing)
        state |= {name: value for name, value in more.items() if value}
        if world > 1 and (left or (start.generators and self._foreign.is_torchs)):
            state["rank"] = rank
        return state

    def _sum_of(self, epoch: int, steps: int, drawing: user_sampler.Drawing | None) -> int | None:
        """A checksum of the indices of the batches that a state counts."""
        if drawing is not None and drawing.start.epoch == epoch:
            return drawing.sum_of(steps)
        return self._loaded[2] if self._loaded is not None and self._loaded[:2] == (epoch, steps) else None

    def _check_redrawn(self, drawing: user_sampler.Drawing) -> None:
        """Warns if the batches before a resume have other indices now that they are drawn again."""
        if self._loaded is None or self._loaded[0] != drawing.start.epoch:
            return
        epoch, steps, known = self._loaded
        if drawing.sum_of(steps) not in (None, known):
            self._loaded = None
            warn_user(
                f"{self.name} has drawn other indices for the first {steps} batches of epoch {epoch} than "
                "before this resume, so rows may come twice or never: it changes itself as it draws, or "
                "draws from what torchyoga cannot see. Let its __iter__ change a copy, or give it a "
                "state_dict and load_state_dict: see docs/resume.md, Any sampler"
            )

    def _start_of(self, epoch: int, drawing: user_sampler.Drawing | None, late: bool) -> user_sampler.Start:
        """What an epoch is to be drawn again from."""
        if drawing is not None and drawing.start.epoch == epoch:
            return drawing.start
        if self._start is not None and self._start.epoch == epoch:
            return self._start
        if late and drawing is not None and drawing.end is not None and drawing.end.epoch == epoch:
            return drawing.end
        return self._foreign.start_of(epoch)

    def load_state_dict(
        self, state: Mapping[str, object], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """Continues from a state: its indices are drawn again when the next iteration begins.

        Raises:
            StateError: it is of another sampler, batch size, dataset, number of ranks or seed, or damaged.
                `strict=False` takes its epoch and batches nevertheless.
        """
        if appended is not None:
            raise StateError(
                f"{self.name} draws its own order, so no rows can join an epoch of it; leave appended out, "
                "or use shuffle=True in place of the sampler"
            )
        saved = self._checked(state, strict)
        found = {
            "version": ORDER_VERSION,
            "seed": saved["seed"],
            "epoch": saved["epoch"],
            "position": saved["steps"],
            "length": UNKNOWN,
            "shuffle": False,
            "fingerprint": self.cursor.fingerprint,
            "steps": saved["steps"],
            "left": saved.get("left"),
        }
        with self.cursor.lock:
            generators, kept = saved.get("generators") or {}, saved.get("kept") or {}
            length, before = self.cursor.length, self._foreign.generators()
            try:
                self._foreign.put_back(generators, strict)
                self.cursor.resize(UNKNOWN)
                self.cursor.load_state_dict(found, strict)
            except StateError:
                self.cursor.resize(length)
                self._foreign.put_back(before)
                raise
            self._drawing = None
            self._start = user_sampler.Start(saved["epoch"], generators, kept)
            self._world = saved.get("num_replicas") if strict else None
            known = saved.get("indices")
            self._loaded = None if known is None else (saved["epoch"], saved["steps"], known)

    def _checked(self, state: object, strict: bool) -> Saved:
        """A state, as it is, if it may be loaded; StateError otherwise."""
        if not isinstance(state, Mapping) or not set(_KEYS) <= set(state):
            if isinstance(state, Mapping) and "position" in state:
                raise StateError(
                    f"the state counts rows of an order of torchyoga's, but here {self.name} decides which "
                    "rows come; load it into a loader without this sampler"
                )
            raise without_keys(state, _KEYS)
        for key in ("version", "epoch", "steps", "length"):
            if type(state[key]) is not int or not 0 <= state[key] < UNKNOWN:
                raise StateError(f"the state's {key} must be an int of at least 0, found {state[key]!r}")
        if state["version"] != _VERSION:
            raise StateError(
                f"the state of a sampler is of version {state['version']}, this torchyoga reads version "
                f"{_VERSION}; load it with the torchyoga that saved it"
            )
        if strict:
            self._check_same(dict(state))
        is_whole = all(isinstance(state.get(name) or {}, Mapping) for name in ("kept", "generators"))
        if not is_whole or type(state.get("indices") or 0) is not int:
            raise StateError(
                "the state's generators, kept or indices are damaged; pass what state_dict() gave"
            )
        return dict(state)

    def _check_same(self, state: Saved) -> None:
        world, rank = self.ranks.now()
        # A loader may be made, and load its state, before torch.distributed knows of the others.
        is_early = self.ranks.follows and is_one_of_several() and (world, rank) == (1, 0)
        mine = {
            "sampler": self.name,
            "batch_size": self._foreign.size,
            "drop_last": self._foreign.drop_last,
            "num_replicas": state.get("num_replicas") if is_early else world,
            "length": self._num_rows,
            "fingerprint": self.cursor.fingerprint,
        }
        for key in _SAME:
            if state.get(key) != mine[key]:
                raise _unlike(key, state.get(key), mine[key])
        if "rank" in state and state["rank"] != rank:
            raise StateError(
                f"the state is of rank {state['rank']} alone, this is rank {rank}; load each rank's own"
            )

    def receipt(self) -> NoReturn:
        """Raises StateError: it is not known which rows an epoch should have."""
        self._refuse("receipt")

    def prove(self, group: ProcessGroup | None = None) -> NoReturn:
        """Raises StateError: it is not known which rows an epoch should have."""
        self._refuse("prove")

    def rows_in_step(self, step: int, batch_size: int, drop_last: bool, epoch: int | None) -> NoReturn:
        """Raises StateError: they are known when they are drawn."""
        self._refuse("rows_in_step")

    def position_of(self, row: int, epoch: int | None = None) -> NoReturn:
        """Raises StateError: it is known when it is drawn, and there may be several."""
        self._refuse("position_of")

    def _refuse(self, what: str) -> NoReturn:
        raise StateError(
            f"{what}() needs to know the order of the rows, but {self.name} decides which come, and may give "
            "a row never or twice; use a loader that shuffles by itself, or a ResumableSampler"
        )

    # -- drawing

    def _drawn_iteration(self, options: IterationOptions) -> Iteration:
        cursor = self.cursor
        iteration = cursor.iteration(options)
        if options.counts:
            cursor.warn_of_rows_left_out(iteration)
        while True:
            # What was drawn before may be wanted once more.
            start = self._start if self._start and self._start.epoch == iteration.start.epoch else None
            self._drawing = self._drawing_of(iteration.start.epoch, start)
            iteration.source = self._drawing
            self._start = _drawing(iteration).open()
            _drawing(iteration).forget(iteration.start)
            if (
                not iteration.start.position
                or _drawing(iteration).batch(next(user_sampler.numbers(iteration.start)))
                is not user_sampler.END
            ):
                break
            # The state was saved before it was known that this was the end of the epoch.
            cursor.resize(_drawing(iteration).drawn)
            again = cursor.iteration(options)
            if again.start == iteration.start:
                break
            iteration = again
        self._check_redrawn(_drawing(iteration))
        self._fit(iteration)
        return iteration

    def _looked(self, options: IterationOptions) -> Iteration:
        """An iteration of which one batch is drawn, and nothing moves."""
        cursor, start, latest = self.cursor, self._start, self._drawing
        is_under_way = latest is not None and latest.drawn > 0 and not latest.has_ended
        is_stateful = self._foreign.is_stateful
        if latest is not None and is_under_way and (is_stateful or latest.is_of_one_iterator):
            raise StateError(
                f"{self.name} keeps its place itself, so it cannot be looked at while an iteration is under "
                "way; peek before it begins, or when it is over"
            )
        length, states = cursor.length, self._foreign.generators()
        try:
            iteration = self._drawn_iteration(options)
            _drawing(iteration).batch(next(user_sampler.numbers(iteration.start)))
            _drawing(iteration).has_ended = True  # no more of it
        finally:
            cursor.resize(length)
            self._foreign.put_back(states)
            if not is_stateful:
                self._start = start
            self._drawing = latest
            if latest is not None and is_under_way:
                latest.tell()
        return iteration

    def _drawing_of(self, epoch: int, start: user_sampler.Start | None) -> user_sampler.Drawing:
        # torch's own samplers cannot know of other ranks, which would draw the same.
        rank = self.rank if self._foreign.is_torchs else 0
        seed = sampler_seed(self.cursor.order.seed, epoch, rank)
        return user_sampler.Drawing(self._foreign, epoch, start, partial(OwnGenerators, seed))

    def _fit(self, iteration: Iteration) -> None:
        """Sets the epoch's length, as far as it is known."""
        drawing = _drawing(iteration)
        if drawing is not self._drawing:
            return
        expected, iteration.length = drawing.expected, UNKNOWN
        if drawing.has_ended:
            iteration.length = drawing.drawn
        elif expected is not None and drawing.drawn <= expected:
            iteration.length = expected
        self.cursor.resize(iteration.length)

    def _warn_of_ranks(self) -> None:
        world = self.num_replicas
        if world == 1 or self._has_warned or self._is_seed_given or not self._foreign.draws:
            return
        if not self._foreign.is_dealt and not self._foreign.is_torchs:
            self._has_warned = True
            warn_user(
                f"there are {world} ranks, and {self.name} does not say that it heeds them: all draw the "
                "same from (seed, epoch), so all get the same rows, if it does not divide them; have it keep "
                "a `rank`, or give each rank's loader a seed of its own"
            )


def _followed(sampler: user_sampler.HasEpochs, follower: user_sampler.HasEpochs) -> None:
    """Makes `set_epoch` of a sampler call that of its follower, too."""
    if isinstance(sampler, ResumableSampler):
        return  # it has its own account, and its follower calls it
    own = sampler.set_epoch
    if type(own) is not user_sampler.SetEpoch:
        own = user_sampler.SetEpoch(own)
        try:
            setattr(sampler, _SET_EPOCH, own)
        except AttributeError:  # it has no room for that; the loader has a set_epoch of its own
            return
    own.followers.add(follower)


def _unlike(key: str, there: object, here: object) -> StateError:
    return StateError(
        f"the state has {key} {there!r}, but here it is {here!r}: a sampler that is not torchyoga's can only "
        "be continued as it was. Use that, or pass strict=False to take its epoch and steps"
    )


def _drawing(iteration: Iteration) -> user_sampler.Drawing:
    """The drawing that gives the indices of an iteration."""
    assert isinstance(iteration.source, user_sampler.Drawing)
    return iteration.source
