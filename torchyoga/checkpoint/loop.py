"""A training loop, as its loaders and optimizers see it: its batches, steps, epochs and evaluations.

Loaders report each batch that the loop asks for, optimizers each step. A *body* is what the loop does in one
epoch. It ends where `Checkpoint.epochs` goes on; in other loops, where the loader that began it begins
again. A resume enters the body of a saved step again: passes over loaders that were over give no batch there,
and the one that was under way gives its rest.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ..errors import StateError
from ..loading.delivery import Delivery, Observer
from ..loading.loader import parts_of
from ..order.contract import Saved
from ..process.messages import warn_user
from ..process.seeding import sampler_seed
from ..rows.types import Batch
from ..sampling.ranks import Processes
from . import generators

# By which optimizers report to the loop that was made over them last.
_hooks: weakref.WeakKeyDictionary[torch.optim.Optimizer, RemovableHandle] = weakref.WeakKeyDictionary()


class Pass:
    """One pass over a loader: an epoch, or the rest of one.

    Attributes:
        number: the number of the epoch.
        first, until: the number of its first batch in the epoch, and how many the epoch has.
        steps, ended: optimizer steps before it, and when the loop had seen its end.
        taken: batches that the loop has got.
        may_look: one batch of it may be a look before the loop, and not an epoch that is left.
        is_over: the loop has asked for one more than there are, or has left it.
        is_evaluation: nothing is trained on its batches.
    """

    def __init__(
        self, one: Watched, delivery: Any, steps: int, dropped: Callable[[Any], None], is_evaluation: bool
    ) -> None:
        self.number, self.first, self.until = one.loader.epoch, one.steps_before(), len(one.pipeline.plan)
        self.steps = self.ended = steps
        self.taken, self.is_over, self.is_evaluation, self.may_look = 0, False, is_evaluation, True
        # Where the interpreter ends, modules may be gone before the iterator is.
        is_ending = sys.is_finalizing
        self._delivery = weakref.ref(delivery, lambda gone: None if is_ending() else dropped(gone))

    def is_of(self, delivery: object) -> bool:
        """True if an iterator is that of this pass."""
        return self._delivery() is delivery

    @property
    def is_open(self) -> bool:
        """True if the loop may ask for more."""
        return not self.is_over and self._delivery() is not None

    @property
    def is_at_end(self) -> bool:
        """True if no batch is left to be taken."""
        return self.is_over or self.first + self.taken >= self.until


class Watched(Observer):
    """A loader that a loop takes batches from: what the loop asks of it.

    Attributes:
        is_trained: its place is saved, as its batches are trained on, or may be.
        has_stepped, had_stepped: an optimizer has stepped within a pass over it; it had before a resume.
        since: batches taken since the last step.
        now: the latest pass.
        before: batches of the epoch before it began.
        is_measured: the loop has asked for the loader's length.
        held: generators, and its state, before each of the latest batches, if the loop holds them.
        within: the loader's own observer.
    """

    def __init__(self, name: str, loader: Any, is_trained: bool, loop: Loop) -> None:
        self.name, self.loader, self.is_trained, self._loop = name, loader, is_trained, loop
        self.indices, self.pipeline = parts_of(loader)
        self.within = self.pipeline.observer
        self.has_stepped = self.had_stepped = self.is_counted = self.is_measured = False
        self.before = self.since = 0
        self.now: Pass | None = None
        self.held: deque[tuple[Saved, Saved]] = deque(maxlen=loop.hold)

    def take(self, delivery: Delivery) -> Batch:
        """The next batch of an iteration, and before it what is due after the last step."""
        return self._loop.take(self, delivery)

    def length(self, batches: int) -> int:
        """Batches of a pass, which may begin within the epoch; for a loop that counts, those of the epoch."""
        self.is_measured = True
        return batches if self.is_counted else batches - self.before

    def steps(self, before: int) -> int:
        """The number of the next batch."""
        self.is_counted = True
        return before

    def steps_before(self) -> int:
        """Batches of the epoch before the next one."""
        return self.indices.steps_before(self.loader.batch_size or 1, self.loader.drop_last)

    @property
    def is_open(self) -> bool:
        """True if the loop is within a pass over it."""
        return self.now is not None and self.now.is_open


class Loop:
    """The loop of a program: what it has taken and counted.

    Args:
        loaders: by name; the first is trained on.
        parts: models, optimizers and others, by name.
        hold: batches that the loop has fetched and not used when it steps.
        is_strict: whether a loop that seems to hold other batches is refused.
        began: is called where a pass over a loader begins.
        is_due: is asked, once a step, before a batch is taken where all others were used.
        save: is called then if it is due.

    Attributes:
        steps, epoch: see `Checkpoint`.
        body: by name of a loader, in the order in which they began: passes that are over in this body.
        in_epochs: the body is that of `Checkpoint.epochs`.
        asks_steps, asks_epoch: the program has asked for `steps`, or how many epochs are over.
        pending: random generators that are put back before the first batch after a resume.
        counter: the name of the optimizer whose steps count.
    """

    def __init__(
        self,
        loaders: Mapping[str, Any],
        parts: Mapping[str, Any],
        hold: int,
        is_strict: bool,
        began: Callable[[], object],
        is_due: Callable[[], bool],
        save: Callable[[], object],
    ) -> None:
        self.steps = self.epoch = 0
        self.hold, self._is_strict = hold, is_strict
        self._began, self._is_due, self._save = began, is_due, save
        self.watched = {
            name: Watched(name, loader, not number, self)
            for number, (name, loader) in enumerate(loaders.items())
        }
        self.body: dict[str, int] = {}
        self.in_epochs = self.asks_steps = self.asks_epoch = self._has_warned = self._is_silent = False
        self.pending: Mapping[str, Any] | None = None
        self.counter: str | None = None
        self._parts, self._names = parts, ", ".join(map(repr, loaders))
        self._models = [part for part in parts.values() if isinstance(part, nn.Module)]
        self._training = self._models  # those in training mode at the last step
        self._thread = threading.get_ident()
        self._resumed_at: tuple[int, int] | None = None
        self._again: dict[str, int] = {}  # as `body`, of a resumed body: passes that are to be empty
        self._num_steps = self._num_taken = self._first_group = 0  # in this process
        self._looked_at = -1  # steps at which it was asked whether a save is due
        self._outside: Mapping[str, Any] | None = None  # generators before an evaluation that is under way
        self._evaluating: set[Pass] = set()
        self._left: weakref.WeakSet[Any] = weakref.WeakSet()  # iterators after which others may have begun
        self._held_again: _HeldAgain | None = None

    def watch(self, optimizers: Mapping[str, torch.optim.Optimizer], is_named: bool) -> None:
        """From now on loaders report what is taken, and optimizers that they step.

        Raises:
            ValueError: a loader reports to another loop.
        """
        for one in self.watched.values():
            if isinstance(one.pipeline.observer, Watched):
                raise ValueError(
                    f"{one.name!r} has a Checkpoint already; use that one, or make the loader again"
                )
            one.pipeline.observer = one
        for name, optimizer in optimizers.items():
            if optimizer in _hooks:
                _hooks[optimizer].remove()
            _hooks[optimizer] = optimizer.register_step_post_hook(
                lambda *_, name=name: self._stepped_by(name, is_named)
            )

    # -- batches

    def take(self, one: Watched, delivery: Delivery) -> Batch:
        """The next batch of a loader; before it, what is due after the last step."""
        if threading.get_ident() != self._thread:
            raise StateError(
                f"another thread takes batches of {one.name!r} ahead, so no save knows which are used; take "
                "them in the thread that has made the Checkpoint: the loader fetches ahead by itself"
            )
        now = one.now
        if now is None or not now.is_of(delivery):
            now = one.now = self._begin(one, delivery)
        if now.is_evaluation:
            return self._evaluate(one, now, delivery)
        if now.is_over:
            raise StopIteration
        self.body.setdefault(one.name, 0)  # a pass that goes on from the body before
        self._ask(one, now)
        try:
            batch = one.within.take(delivery)
        except StopIteration:
            self._over(one, now)
            raise
        now.taken += 1
        one.since += 1
        self._num_taken += 1
        return batch

    def _begin(self, one: Watched, delivery: Any) -> Pass:
        """A pass that begins: a first batch is asked for."""
        name = one.name
        if delivery in self._left:
            raise StateError(f"two iterators over {name!r} take turns; use one, or a loader for each")
        is_resting = not all(model.training for model in self._training)
        has_gradients = torch.is_grad_enabled()
        if not one.is_trained and (is_resting or not has_gradients):
            one.loader.set_epoch(0)
            one.before = 0
            found = Pass(one, delivery, self.steps, lambda _: self._end_evaluation(found), is_evaluation=True)
            return found
        if one.has_stepped and is_resting and not has_gradients:
            raise StateError(
                f"an evaluation would move {name!r} on, which is trained on; make another loader for it, as "
                f"in loaders={{{name!r}: ..., 'valid': ...}}"
            )
        self._end_evaluations()
        one.is_trained = True
        self._leave_last(one, is_begin=True)
        if not self.in_epochs and name == next(iter(self.body), None):
            self.next_body()
        is_nested = any(other.is_open for other in self.watched.values() if other is not one)
        self.body[name] = 0 if is_nested else self.body.get(name, 0)
        self._began()
        found = Pass(one, delivery, self.steps, lambda _: self._dropped(one, found), is_evaluation=False)
        # A loop that counts may leave an epoch after a resume; one that began before it did not count yet.
        found.may_look = not (found.first and (self.in_epochs or one.is_counted))
        self._left.add(delivery)
        if self._again.get(name):
            self._again[name] -= 1
            self.body[name] += 1
            found.is_over = True
        else:
            self._again.pop(name, None)
            one.before = found.first
        if self.epoch and not (self._resumed_at or self.asks_epoch or self.asks_steps):
            self._warn(
                f"epoch {self.epoch} begins, and the loop has not asked how many are over, as it must after "
                "a resume; write `for epoch in run.epochs(n)`, or `range(run.epoch, n)`"
            )
        return found

    def _leave_last(self, one: Watched, is_begin: bool = False) -> None:
        """The loop goes on: it has left the last pass; if it begins another, that may have been a look."""
        last = one.now
        if last is None or last.is_over or last.is_evaluation or self.hold:
            return
        if is_begin and self._is_look(one, last):
            one.since -= last.taken
            self.body.pop(one.name, None)
        else:
            self._leave(one, last)

    def _is_look(self, one: Watched, now: Pass) -> bool:
        """True if a batch was taken before the loop."""
        return now.may_look and now.taken < 2 and now.steps == self.steps and not self._is_cut(one)

    def _is_cut(self, one: Watched) -> bool:
        """True if another pass of the body is at its end: zip ends with one of them."""
        return any(self._last(name).is_at_end for name in self.body if name != one.name)

    def _dropped(self, one: Watched, now: Pass) -> None:
        """The iterator of a pass is gone."""
        if now is one.now and not (now.is_over or self._is_look(one, now)):
            if not self.asks_steps:  # it may be the limit of all steps
                self._check_count(one, now, warn_user)
            self._tell_left(one)

    def _tell_left(self, one: Watched) -> None:
        """What the loader has delivered was not a look at a first batch, after which it would begin again."""
        if one.pipeline.latest is not None:
            one.indices.cursor.leave(one.pipeline.latest)

    def _ask(self, one: Watched, now: Pass) -> None:
        """A batch is about to be taken: all that belongs to the step before it is done."""
        self._end_evaluations()
        if self._held_again is not None and self._held_again.asked():
            self._held_again = None
        if self.pending is not None:
            generators.put_back(self.pending)
            self.pending = None
        if self.hold:
            one.held.append((generators.taken(), one.loader.state_dict()))
        elif one.has_stepped and self.is_clean and self._looked_at != self.steps and not now.is_at_end:
            self._looked_at = self.steps
            self._check_resumed()
            # A loop whose first step takes more batches may hold one: its next step says.
            is_known = self.steps > 1 or self._first_group < 2 or not self._is_strict
            # Where a batch has failed, the epoch may be over before its number of batches has come.
            if is_known and self._is_due() and one.loader.epoch == now.number:
                self._save()

    def _over(self, one: Watched, now: Pass) -> None:
        now.is_over, now.ended = True, self.steps
        one.before = one.before if self.in_epochs else 0  # the body may ask how many batches it has had
        self.body[one.name] = self.body.get(one.name, 0) + 1
        if now.taken > self.hold and not now.first and now.steps == self.steps:
            self._warn(
                f"{now.taken} batches of {one.name!r} were taken without a step, so no place there is saved: "
                "pass optimizer=, or call run.stepped() after each; to look at data or evaluate, take another"
            )

    def _leave(self, one: Watched, now: Pass) -> None:
        """The loop has left a pass before its end: the next one begins another epoch, as with torch's."""
        self._check_count(one, now, _refuse)
        self._tell_left(one)
        one.loader.set_epoch(now.number + 1)
        now.is_over = True
        if one.name in self.body:
            self.body[one.name] += 1

    def _check_count(self, one: Watched, now: Pass, complain: Callable[[str], object]) -> None:
        """Complains if the loop has left a resumed pass, and has not asked for its first batch's number."""
        is_known = one.is_counted or self._is_cut(one) or (now.is_at_end and (one.is_measured or now.is_open))
        if now.first and not is_known:
            complain(
                f"the loop has left {one.name!r} {now.taken} batches after a resume at batch {now.first} of "
                "its epoch: one that counts, counts from loader.steps: enumerate(loader, loader.steps); "
                "one that leaves for another reason asks for loader.steps once"
            )

    def next_body(self) -> None:
        """The body is over: what it has not taken is left out, unless the loop holds the iterator."""
        for one in map(self.watched.__getitem__, list(self.body)):
            if not one.is_open or self._last(one.name).is_at_end:
                self._leave_last(one)
            one.before = 0
        self.body, self._again = {}, {}
        self.epoch += 1

    # -- evaluations

    def _evaluate(self, one: Watched, now: Pass, delivery: Delivery) -> Batch:
        """A batch that is not trained on: random numbers begin alike, and are put back afterwards."""
        if self._outside is None:
            self._outside = generators.taken()
            generators.seed_all(sampler_seed(0, 0, Processes().rank))
        self._evaluating.add(now)
        try:
            batch = one.within.take(delivery)
        except StopIteration:
            one.since = 0
            self._end_evaluation(now)
            raise
        one.since += 1
        return batch

    def _end_evaluation(self, now: Pass) -> None:
        self._evaluating.discard(now)
        if not self._evaluating:
            self._end_evaluations()

    def _end_evaluations(self) -> None:
        """Puts generators back; an iterator that is still held begins another evaluation when it is used."""
        if self._outside is not None:
            outside, self._outside = self._outside, None
            self._evaluating.clear()
            for one in self.watched.values():
                one.since = 0 if one.now is not None and one.now.is_evaluation else one.since
            generators.put_back(outside)

    # -- steps

    @property
    def is_clean(self) -> bool:
        """True if a step has used all batches taken; if some are held, those of passes that are over."""
        if self.hold:
            lasts = (one.now for one in self.watched.values() if one.is_trained and one.now is not None)
            return not any(last.is_over and self.steps - last.ended < self.hold for last in lasts)
        return not any(one.since for one in self.watched.values() if one.has_stepped or one.had_stepped)

    def _stepped_by(self, name: str, is_named: bool) -> None:
        """An optimizer has stepped. Of several that step on the same batches, the last one counts."""
        is_counting = is_named or self.counter in (None, name)
        has_new = any(one.since for one in self.watched.values() if one.is_trained)
        if not self._is_silent and (is_counting or not has_new):
            self.counter = name
            if is_counting:
                self.step()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """No optimizer's step counts: torch takes one, to have a state that it can divide among ranks."""
        self._is_silent = True
        try:
            yield
        finally:
            self._is_silent = False

    def step(self) -> None:
        """Counts a step."""
        self.steps += 1
        self._num_steps += 1
        for one in self.watched.values():
            if one.since and one.now is not None and one.now.is_open:
                if one.now.is_evaluation:  # of a model that has no training mode
                    one.now.is_evaluation, one.is_trained = False, True
                    self.body[one.name] = 0
                    self._end_evaluations()
                one.has_stepped = True
        if trained := [one for one in self.watched.values() if one.is_trained]:
            self._check_step(trained, sum(one.since for one in trained if one.is_open))
        for one in self.watched.values():
            one.since = 0
        self._training = [model for model in self._models if model.training]

    def _check_step(self, trained: list[Watched], group: int) -> None:
        """Refuses steps that do not fit the batches; `group` batches came since the step before."""
        names, is_open = self._names, any(one.is_open for one in trained)
        if not self._num_taken:
            raise StateError(
                f"a step, and no batch of {names} was taken: hand over the loader that the loop iterates, "
                "and iterate that one, not one that is made again"
            )
        if self._num_steps == 1:
            self._first_group = group if self.steps == 1 else 0
            self._check_parts()
        if self.hold and self._num_taken <= self.hold and is_open:
            raise StateError(
                f"hold={self.hold} does not fit a loop that steps after {self._num_taken} batches"
            )
        is_over = not (is_open or any(one.since for one in trained))
        is_fewer = self.steps == 2 and 0 < group < self._first_group
        if is_fewer:  # scalers skip first steps, and an epoch may end with fewer
            can_skip = any(getattr(part, "get_scale", float)() > 1 for part in self._parts.values())
            is_fewer = not (can_skip or any(one.now and one.now.is_at_end for one in trained))
        if self._is_strict and (is_over or is_fewer):
            what = (
                "after the last batch" if is_over else f"after {group} batches, the first {self._first_group}"
            )
            raise StateError(
                f"a step came {what}: if the loop fetches a batch ahead, pass hold=1 and call run.stepped() "
                f"last in each step; if it makes {names} again, iterate the one handed over; else pass hold=0"
            )
        if len(self.body) > 1 and not (self.in_epochs or self.watched[next(iter(self.body))].is_open):
            raise StateError(
                f"the loop takes {names} one after the other: take epochs from `for epoch in run.epochs(n)`"
            )

    def _check_parts(self) -> None:
        """Warns of an optimizer that steps what no model here has: that was made, or wrapped, afterwards."""
        known = {id(value) for model in self._models for value in model.parameters()}
        for name, part in self._parts.items() if self._models else ():
            if isinstance(part, torch.optim.Optimizer):
                stepped = {id(value) for group in part.param_groups for value in group["params"]}
                if missing := len(stepped - known):
                    warn_user(
                        f"{name} steps {missing} parameters of no model here, so they are not saved: hand "
                        "over the model that is trained, once it is made and wrapped, as in model=model"
                    )

    def _check_resumed(self) -> None:
        """Complains, after a first step, of a resumed loop that counts epochs or steps from 0."""
        if self._resumed_at is not None and not (self.asks_epoch or self.asks_steps):
            steps, epoch = self._resumed_at
            self._resumed_at = None
            complain = _refuse if epoch else warn_user
            complain(
                f"the run goes on at step {steps} of epoch {epoch}, and the loop has asked for neither; "
                "write `for epoch in run.epochs(n)`, `range(run.epoch, n)` or `while run.steps < n`"
            )

    def _warn(self, what: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(what)

    # -- what is saved

    def saved(self) -> Saved:
        """The place of the loop, as JSON.

        Raises:
            StateError: batches were taken that no step has used.
        """
        trained = [one for one in self.watched.values() if one.is_trained]
        for one in trained:
            if one.name in self.body and one.is_open and one.since > (0 if self._num_steps else self.hold):
                raise StateError(
                    f"{one.since} batches of {one.name!r} were taken since the last step; save right after "
                    "it, or between epochs"
                )
            if self.in_epochs and not one.is_open:
                self._leave_last(one)
        held = {one.name: one.held[0] for one in trained if one.held and one.is_open}
        before: Mapping[str, Any] = self._outside or self.pending or generators.taken()
        again = self._held_again  # as long as nothing is held again after a resume
        at_step: Mapping[str, Any] | None = None if again is None else again.at_step
        if held:
            before, at_step = next(iter(held.values()))[0], before
        return {
            "steps": self.steps,
            "epoch": self.epoch,
            "counter": self.counter,
            "trained": [one.name for one in trained],
            "stepped": [one.name for one in trained if one.has_stepped or one.had_stepped],
            "begun": {
                name: count + (self.is_at_end(name) and not self._last(name).is_over)
                for name, count in self.body.items()
            },
            "loaders": {
                one.name: held[one.name][1] if one.name in held else one.loader.state_dict()
                for one in trained
            },
            "generators": {
                "before": generators.as_json(before),
                "at_step": None if at_step is None else generators.as_json(at_step),
            },
        }

    def _last(self, name: str) -> Pass:
        found = self.watched[name].now
        assert found is not None
        return found

    @property
    def is_left(self) -> bool:
        """True if the loop has left a pass of the body before its end."""
        return any(not (last.is_open or last.is_at_end) for last in map(self._last, self.body))

    @property
    def is_over(self) -> bool:
        """True if the loop has seen the end of each pass of the body."""
        return all(self._last(name).is_over for name in self.body)

    def is_at_end(self, *names: str) -> bool:
        """True if no batch of the body, or of these loaders in it, is left to be used."""
        lasts = [self._last(name) for name in names or self.body]
        if self.hold:
            return bool(lasts) and self.is_clean and all(last.is_over for last in lasts)
        return bool(lasts) and all(last.is_at_end for last in lasts)

    def load(self, place: Saved) -> None:
        """Goes on from what `saved` gave."""
        for name, one in self.watched.items():
            if name in place["loaders"]:
                one.loader.load_state_dict(place["loaders"][name])
            one.is_trained = one.is_trained or name in place["trained"]
            one.had_stepped = name in place["stepped"]
            one.before, one.now = one.steps_before(), None
            one.is_counted = one.is_measured = False
            one.held.clear()
        self.steps, self.epoch, self.counter = place["steps"], place["epoch"], place.get("counter")
        self._resumed_at, self._again = (self.steps, self.epoch), dict(place["begun"])
        self.body.clear()
        self.asks_steps = self.asks_epoch = False

    def put_back(self, states: Mapping[str, Any]) -> None:
        """Puts generators back: now, and before the first batch, as the program may draw before it."""
        generators.put_back(states["before"])
        self.pending = states["before"] if self.watched else None
        self._held_again = _HeldAgain(states["at_step"], self.hold) if states["at_step"] else None


class _HeldAgain:
    """Held batches that are fetched again after a resume, and generators as they were meanwhile.

    A loop may draw random numbers while it makes a batch, and others in its step. After the held batches it
    goes on with the state of the step; but a generator that the fetching moves, too, is there already.
    """

    def __init__(self, at_step: Mapping[str, Any], hold: int) -> None:
        self.at_step = at_step
        self._before, self._left = generators.as_json(generators.taken()), hold

    def asked(self) -> bool:
        """A batch is about to be made; True if it is the first that was not held."""
        self._left -= 1
        if self._left >= 0:
            return False
        now = generators.as_json(generators.taken())
        unmoved = [name for name in self.at_step if now.get(name) == self._before.get(name)]
        generators.put_back({name: self.at_step[name] for name in unmoved})
        return True


def _refuse(what: str) -> None:
    raise StateError(what)
