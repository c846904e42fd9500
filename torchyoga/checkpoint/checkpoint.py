"""A training program's place: its models, its loaders and its random generators, saved together and exactly.

A batch counts as used when `stepped` is called after it. What a loop has taken since, for gradients that it
accumulates or because it fetches a batch ahead, comes again after a resume.

At the end of an epoch a save waits for the epoch's body: what follows the batches there, such as a
scheduler's step or an evaluation, would else be lost or done twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from ..errors import CorruptError, NotFoundError, StateError, YogaError
from ..loading.delivery import Delivery
from ..loading.loader import DataLoader, DeviceLoader
from ..order.contract import Saved
from ..process.numbers import as_int
from ..process.seeding import sampler_seed
from ..process.stops import Stops
from ..process.warned import warn_user
from ..sampling.ranks import is_one_of_several
from . import generators, items
from .processes import Processes
from .steps import steps_at, worth_keeping

_ITEMS = "items.pt"
_MOST_NAMED = 50  # steps that ranks tell each other of
_MOST_TOLD = 2**16  # bytes of a rank's generators and loaders, as JSON
_MOST_STEPS = 10**18  # a step's name has no more digits


class Checkpoint:
    """Saves a training program now and then, whole, and continues it exactly.

    Saved are the state of each item, `values`, the loaders' states, and the random generators of each rank
    (Python's, NumPy's, torch's, and those of devices in use). Files are on the disk before they count, and
    hold nothing that `torch.load` refuses with `weights_only=True`. On several ranks all of them make one and
    call the same methods; the items of rank 0 are saved, and loaded by all.

    Args:
        folder: a directory that all ranks see, or a URL such as s3://bucket/run.
        every: optimizer steps between two saves. With neither this nor `every_seconds`, it saves at the end
            of each epoch.
        every_seconds: time between two saves; may be given beside `every`.
        keep: how many of the newest steps stay; one that was saved again counts once, if there are others.
        keep_best: a name in `values` and a number: so many steps where it was lowest stay, too; where it was
            highest, if the name is given with a "-" before it: `("-accuracy", 2)`.
        loaders: each `torchyoga.DataLoader` by its name, those that are trained on first. Those that
            `batches` never takes outside of `evaluation` are for evaluations.
        values: what else is to be kept, as JSON takes it: numbers, texts, lists and dicts of them.
        hold: batches that the loop has fetched, but not used, when it calls `stepped`: 1 for loops that fetch
            the next batch before they step, as nanoGPT's and timm's do.
        signals: on any of these, the program saves after the step that it is in and leaves; () for none.
        exit_code: with which it then leaves; None for 128 and the signal's number, as shells do.
        storage_options: for the store behind a URL.
        **parts: what has `state_dict` and `load_state_dict`: models, optimizers, schedulers, scalers. Models
            may be wrapped by DistributedDataParallel and `torch.compile`, or not, whichever were saved.

    Attributes:
        steps: the optimizer steps of the program, before a resume as well.
        epoch: the epoch whose body runs; after the last one, how many there were.
        values: the dict that was passed.

    Raises:
        TypeError: a part has no state, or a loader is not torchyoga's.
        ValueError: an argument is out of range.

    Example:
        >>> model = torch.nn.Linear(1, 1)
        >>> train = DataLoader(list(range(8)), batch_size=2, shuffle=True, seed=7)
        >>> run = Checkpoint("run", every=3, model=model, loaders={"train": train})
        >>> run.resume()
        False
        >>> for epoch in run.epochs(1):
        ...     for step, batch in run.batches("train"):
        ...         saved = run.stepped()
        ...         print(step, saved)
        0 False
        1 False
        2 True
        3 False
        >>> train = DataLoader(list(range(8)), batch_size=2, shuffle=True, seed=7)
        >>> run = Checkpoint("run", model=model, loaders={"train": train})
        >>> run.resume(), run.steps, run.epoch  # the end of the last epoch is saved, too
        (True, 4, 1)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int | None = None,
        every_seconds: float | None = None,
        keep: int = 3,
        keep_best: tuple[str, int] | None = None,
        loaders: Mapping[str, Any] | None = None,
        values: dict[str, Any] | None = None,
        hold: int = 0,
        signals: Iterable[str] = ("SIGTERM", "SIGUSR1"),
        exit_code: int | None = None,
        storage_options: Mapping[str, object] | None = None,
        **parts: Any,
    ) -> None:
        self._every = every if every is None else as_int("every", every, low=1)
        if every_seconds is not None and not every_seconds > 0:
            raise ValueError(f"every_seconds must be above 0, found {every_seconds!r}")
        self._every_seconds, self._exit_code = every_seconds, exit_code
        self._keep, self._hold = as_int("keep", keep, low=1), as_int("hold", hold, low=0)
        self._best = None if keep_best is None else (keep_best[0], as_int("keep_best", keep_best[1], low=1))
        _check_named("loaders", loaders, "train")
        self._loaders = dict(loaders or {})
        for name, loader in self._loaders.items():
            if not isinstance(name, str):
                raise TypeError(f"loaders has {name!r:.80} as a key; give each loader a text as its name")
            if not isinstance(loader, (DataLoader, DeviceLoader)):
                raise TypeError(
                    f"loaders[{name!r}] is a {type(loader).__name__}, whose place cannot be saved exactly; "
                    "make a torchyoga.DataLoader, it takes torch's arguments"
                )
        self.values: dict[str, Any] = {} if values is None else values
        _check_named("values", self.values, "best_loss")
        if self._best is not None and self._best[0].removeprefix("-") not in self.values:
            raise ValueError(
                f"keep_best names {self._best[0]!r}, which values lacks; give it there from the start"
            )
        for name, part in parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise TypeError(
                    f"{name} is a {type(part).__name__} without state_dict and load_state_dict; keep plain "
                    "numbers in values={...}, loaders in loaders={...}"
                )
        self.steps = self.epoch = 0
        self._parts = parts
        self._place = steps_at(folder, storage_options)
        self._ranks, self._stops = Processes(), Stops(signals)
        self._trained = set(list(self._loaders)[:1])  # names of loaders that are trained on
        self._passes: dict[str, deque[_Taken]] = {}
        # Names of loaders that the resumed epoch has begun and not asked for again; True if it has used all.
        self._begun: dict[str, bool] = {}
        self._ahead: deque[Saved] = deque(maxlen=self._hold + 1)  # generators, before each held batch
        self._again: _Again | None = None  # what is held after a resume
        self._is_waiting = False
        self._in_body = False
        self._outside: Mapping[str, Any] | None = None  # generators before an evaluation that is under way
        self._saved_at, self._saved_when = (0, 0), time.monotonic()
        self._asked_at = self._next_ask = 0  # steps at which ranks ask each other whether to save
        self._asked_when = time.monotonic()
        # Steps that were there, or are ours; None before they are looked at.
        self._known: set[str] | None = None
        self._scores: dict[str, Saved] = {}  # numbers that were saved with steps
        self._skipped: list[str] = []  # damaged steps, that a resume has passed over

    # -- the loop

    def resume(self, strict: bool = True) -> bool:
        """Continues from the newest step that is whole; False if there is none. Call it before the loop.

        One that is damaged is passed over, with a warning. On another number of ranks, or with other workers
        or batch sizes, rows are exact, too; random numbers of other ranks begin anew from the seed, the step
        and the rank, with a warning.

        Args:
            strict: every part must have been saved; if False, others begin as they are, with a warning.

        Raises:
            CorruptError: there are steps, but all are damaged.
            StateError: a part, or a loader, refuses what was saved under its name, or nothing was; or a step
                holds what no Checkpoint saves.
        """
        answers = self._said("nothing was loaded", self._names, by_first=True)
        names: list[str] = answers[0]["names"]
        are_damaged = False
        for name in names:
            found, damage = None, None
            error: Exception | None = None
            try:
                found = self._read(name)
            except (CorruptError, NotFoundError) as problem:
                damage = self._ranks.text_of(problem)
                are_damaged = are_damaged or isinstance(problem, CorruptError)
            except Exception as problem:  # such as one of the network: all ranks are told
                error = problem
            told = self._ranks.checked("nothing was loaded", {"damage": damage}, error)
            problems = [answer["damage"] for answer in told if answer["damage"]]
            if found is not None and not problems:
                self._load(*found, strict)
                self._saved_at = self.steps, self.epoch
                return True
            self._skipped.append(name)
            if self._ranks.rank == 0:
                warn_user(f"{problems[0]}; the step before it is taken")
        if self._ranks.most(are_damaged):
            raise CorruptError(
                f"all steps in {self._place.place} are damaged: {', '.join(names[:3])}; to begin anew, give "
                "another folder, or move this one away"
            )
        return False

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs up to `count` that are not over, from the one that was saved on.

        After the last one it saves what is not saved yet: started again, the program has nothing to do.
        """
        self._said("nothing was trained", self._look, by_first=True)
        self._stops.listen()
        try:
            for epoch in range(self.epoch, as_int("count", count, low=0)):
                self._in_body = True
                yield epoch
                self._leave_body()
                self._in_body = False
                self.epoch = epoch + 1
                by_epochs = self._every is None and self._every_seconds is None
                self._is_waiting = self._is_waiting or by_epochs
                self._finish()
                self._go_if_asked()
            self._is_waiting = self._saved_at != (self.steps, self.epoch)
            self._finish()
            self._go_if_asked()
        finally:
            self._in_body = False
            self._stops.leave()

    def batches(self, name: str) -> Iterator[tuple[int, Any]]:
        """The rest of the loader's epoch, each batch with its number in it; the next epoch, if the loop has
        left the last one.

        Raises:
            ValueError: no loader has that name; or one that is trained on is asked for in an evaluation.
            StateError: the loop does not take its epochs from `epochs`.
        """
        if name not in self._loaders:
            raise ValueError(f"no loader is called {name!r}; there are {', '.join(self._loaders) or 'none'}")
        loader = self._loaders[name]
        if self._outside is not None:
            if name in self._trained:
                raise ValueError(
                    f"an evaluation would move {name!r} on, which is trained on; make another loader for "
                    f"it, as in loaders={{{name!r}: ..., 'valid': ...}}"
                )
            yield from enumerate(loader, loader.steps)
            return
        if not self._in_body:
            raise StateError(
                "batches() is for the body of `for epoch in run.epochs(n)`, which knows what is over"
            )
        self._trained.add(name)
        if self._begun.pop(name, False):
            return
        passes = self._passes.setdefault(name, deque(maxlen=self._hold + 1))
        if passes and not passes[-1].is_over:
            passes.pop().leave()
        now = _Taken(loader, self.epoch)
        passes.append(now)
        while True:
            if self._again is not None and self._again.asked():
                self._again = None
            if self._hold:
                self._ahead.append(generators.taken())
            try:
                batch = next(now.batches)
            except StopIteration:
                now.is_over = True
                if self._hold:
                    self._ahead.pop()
                return
            now.taken += 1
            yield now.first + now.taken - 1, batch

    def stepped(self) -> bool:
        """Counts an optimizer step, and saves if that is due; call it last in the step.

        What the loop changes after it, such as a scheduler, an average of weights or `values`, is one step
        behind after a resume.

        If the step was the epoch's last, it saves when the epoch's body has run. After a signal it saves and
        leaves.

        Returns:
            True if it has saved.
        """
        self.steps += 1
        for passes in self._passes.values():
            _count_used(passes, self._hold)
        self._is_waiting = self._is_due() or self._is_waiting
        if not self._is_waiting or (self._in_body and self._at_end()):
            return False
        self._finish()
        self._go_if_asked()
        return True

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Random generators are as they were, afterwards, and loaders for evaluations begin anew.

        Within, generators begin at the same numbers each time, and such loaders in the same epoch: an
        evaluation gives the same for the same weights, whenever it comes.
        """
        before, outer = generators.taken(), self._outside
        try:
            self._outside = before if outer is None else outer
            generators.seed_all(sampler_seed(0, 0, self._ranks.rank))
            for name, loader in self._loaders.items():
                if name not in self._trained:
                    loader.set_epoch(0)
            yield
        finally:
            self._outside = outer
            generators.put_back(before)

    def save(self) -> None:
        """Saves now: right after `stepped`, or between epochs; within an epoch whose batches are over, it
        saves when its body has run.

        Override it to save in another way: `stepped` and `epochs` call it when it is due.

        Raises:
            StateError: batches were taken that no `stepped` has counted.
            OSError, RemoteError: a file cannot be written; the steps before it are as they were.
            YogaError: the folder has steps that were not continued; or another rank has failed.
            TypeError: a part's state, or a value, is of a kind that cannot be loaded safely.
        """
        if self._in_body and self._at_end():
            self._is_waiting = True
            return
        self._save()

    # -- as a Stateful of torch.distributed.checkpoint

    def state_dict(self) -> dict[str, Any]:
        """All that is saved, for torch.distributed.checkpoint: models may be divided among ranks, the random
        generators of all ranks are in one text. All ranks call this."""
        program = self._program()
        own = {name: program.pop(name) for name in ("generators", "loaders")}
        answers = self._ranks.told(own, _MOST_TOLD)
        fresh = items.without_state(self._parts)
        text = json.dumps({**program, "by_rank": answers, "fresh": fresh})
        return {"run": text, "parts": items.sharded(self._parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` gave, under any number of ranks."""
        try:
            program = json.loads(state["run"])
            by_rank, fresh = program["by_rank"], program["fresh"]
            own = by_rank[self._ranks.rank if self._ranks.rank < len(by_rank) else 0]
            program = {**dict.fromkeys(_KINDS), **program, **own}
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise StateError(f"this is no state of a Checkpoint: {error!r}") from error
        program = _checked(program, len(by_rank) == self._ranks.size, "this state")
        items.load_sharded(self._parts, state.get("parts", {}), fresh)
        self._put_back(program, len(by_rank))
        self._saved_at = self.steps, self.epoch

    # -- what is saved

    def _program(self) -> Saved:
        """This rank's place: all that is not an item, as JSON."""
        num_held = sum(one.taken - one.used for passes in self._passes.values() for one in passes)
        before = generators.taken() if self._outside is None else self._outside
        at_step: Mapping[str, Any] | None = None
        if self._hold and 0 < num_held <= len(self._ahead):
            before, at_step = self._ahead[-num_held], before
        elif self._again is not None:  # nothing is held again yet after a resume
            at_step = self._again.at_step
        for name, value in self.values.items():
            if not (isinstance(name, str) and _is_plain(value)):
                raise TypeError(
                    f"values[{name!r}] = {value!r:.100} would not come back as it is: keep numbers of Python "
                    "(float(x)), texts, lists, and dicts with texts as keys"
                )
        return {
            "steps": self.steps,
            "epoch": self.epoch,
            "values": self.values,
            "trained": sorted(self._trained),
            "begun": {name: one.is_at_end(self._hold) for name, one in self._in_this_body()},
            "loaders": {name: self._state_of(name) for name in self._loaders if name in self._trained},
            "seed": torch.initial_seed(),
            "generators": {
                "before": generators.as_json(before),
                "at_step": None if at_step is None else generators.as_json(at_step),
            },
        }

    def _state_of(self, name: str) -> Saved:
        """The state of a loader after the batches that were used."""
        for one in self._passes.get(name, ()):
            if not one.is_over or (self._hold and one.used < one.taken):
                return one.state()
        state: Saved = self._loaders[name].state_dict()
        return state

    def _finish(self) -> None:
        """Saves if that is due, and leaves if a signal has asked for it."""
        # A loop that fetches ahead may be in the midst of a step when an epoch's batches are over.
        if self._is_waiting and not (self._hold and self._num_over()):
            self._is_waiting = False
            self.save()
            self._saved_at, self._saved_when = (self.steps, self.epoch), time.monotonic()

    def _go_if_asked(self) -> None:
        """Leaves if a signal has asked for it, and all is saved."""
        if self._saved_at == (self.steps, self.epoch) and (asked := self._ranks.most(self._stops.asked)):
            self._stops.asked = 0
            raise SystemExit(128 + asked if self._exit_code is None else self._exit_code)

    def _leave_body(self) -> None:
        """Leaves behind what the body has taken and not used."""
        for _, one in self._in_this_body():
            if one.taken and not self.steps:
                warn_user(
                    f"the loop has taken {one.taken} batches, and stepped() was never called: nothing is "
                    "saved within an epoch; call it after optimizer.step()"
                )
        for name in [name for name, is_over in self._begun.items() if not is_over and name in self._loaders]:
            self._loaders[name].set_epoch(self._loaders[name].epoch + 1)
        self._begun.clear()
        for passes in () if self._hold else self._passes.values():
            passes[-1].used = passes[-1].taken
            if not passes[-1].is_over:
                passes.pop().leave()
        self._passes = {name: passes for name, passes in self._passes.items() if passes}

    def _in_this_body(self) -> list[tuple[str, _Taken]]:
        """The latest pass of each loader in the body under way."""
        passes = ((name, passes[-1]) for name, passes in self._passes.items())
        return [(name, one) for name, one in passes if self._in_body and one.epoch == self.epoch]

    def _is_due(self) -> bool:
        if self._every is not None and self.steps % self._every == 0:
            return True
        if self._ranks.size > 1 and self.steps < self._next_ask:
            return False
        late = self._every_seconds is not None and time.monotonic() - self._saved_when >= self._every_seconds
        if self._every_seconds is None and not self._stops.listens:
            return False
        # Ranks ask each other ten times a second, after as many steps on each.
        seconds = (time.monotonic() - self._asked_when) / max(self.steps - self._asked_at, 1)
        answer, slowest = self._ranks.most(self._stops.asked or late), 0
        if self._ranks.size > 1:
            slowest = self._ranks.most(int(seconds * 1e6))
        self._asked_at, self._asked_when = self.steps, time.monotonic()
        self._next_ask = self.steps + min(100_000 // max(slowest, 100), 1000)
        return bool(answer)

    def _at_end(self) -> bool:
        """True if all batches were used that the body under way has begun to take."""
        begun = self._in_this_body()
        return bool(begun) and all(one.is_at_end(self._hold) for _, one in begun)

    def _num_over(self) -> int:
        """Batches not used yet of passes that are over."""
        passes = (one for passes in self._passes.values() for one in passes)
        return sum(one.taken - one.used for one in passes if one.is_over)

    def _save(self) -> None:
        for name, passes in self._passes.items():
            left = sum(one.taken - one.used for one in passes if self._hold or not one.is_over)
            if left > self._hold:
                raise StateError(
                    f"{left} batches of {name!r} were taken since the last stepped(); save right after it, "
                    "or between epochs"
                )
        items.refuse_divided(self._parts)
        what = f"step {self.steps} was not saved in {self._place.place}, those before it are as they were"
        name = self._said(what, self._begin, by_first=True)[0]["name"]
        try:
            entries = self._said(what, lambda: {"files": self._write_files(name)})
            files = {file: entry for answer in entries for file, entry in answer["files"].items()}
            self._said(what, lambda: self._publish(name, files), by_first=True)
        except Exception:
            if self._ranks.rank == 0:
                self._place.give_up(name)
            raise
        self._saved_at = self.steps, self.epoch
        if self._ranks.rank == 0:
            self._clean(name)

    def _said(self, what: str, do: Callable[[], Saved], by_first: bool = False) -> list[Saved]:
        """The answers of all ranks to what each does, or rank 0 alone; if one of them fails, all raise."""
        error: Exception | None = None
        try:
            message: Saved = {} if by_first and self._ranks.rank else do()
        except Exception as problem:
            message, error = {}, problem
            if type(problem) is OSError:
                error = OSError(problem.errno, f"{what}: {problem.strerror}")
                error.__cause__ = problem
        return self._ranks.checked(what, message, error)

    def _look(self) -> Saved:
        """Looks at what is there; refuses a folder that holds steps which are not of this program."""
        if is_one_of_several() and self._ranks.size == 1:
            raise YogaError(
                "WORLD_SIZE says that there are other processes, but torch.distributed is not initialised, "
                "so each would save for itself; call init_process_group before resume()"
            )
        names = self._place.names()
        if self._known is None and names:
            raise YogaError(
                f"{self._place.place} has {names[0]}, which this program has not continued: call resume() "
                "before the loop, or give another folder"
            )
        self._known = self._known or set()
        if others := [name for name in names if name not in self._known]:
            raise YogaError(
                f"{self._place.place} has {others[0]}, which another program has saved meanwhile: stop it, "
                "and start this one again; each needs a folder of its own"
            )
        return {}

    def _begin(self) -> Saved:
        self._look()
        name = self._place.next_name(self.steps)
        self._place.begin(name)
        return {"name": name}

    def _write_files(self, name: str) -> dict[str, list[int]]:
        rank = self._ranks.rank
        program = json.dumps(self._program()).encode()
        file = f"rank-{rank}.json"
        files = {file: self._place.write(name, file, lambda to: to.write(program))}
        if rank == 0:
            states = items.saved(self._parts)
            check = partial(items.check_readable, states)
            files[_ITEMS] = self._place.write(name, _ITEMS, partial(torch.save, states), check)
        return files

    def _publish(self, name: str, files: dict[str, list[int]]) -> Saved:
        numbers = {key: value for key, value in self.values.items() if isinstance(value, (int, float))}
        self._place.finish(name, {"ranks": self._ranks.size, "files": files, "values": numbers})
        self._known = {*(self._known or ()), name}
        return {}

    def _clean(self, newest: str) -> None:
        """Removes steps beyond those that are kept, and damaged ones."""
        try:
            kept = [name for name in self._place.names() if name not in self._skipped]
            older = worth_keeping(kept[kept.index(newest) :])[self._keep :]
            for other in {*older, *self._skipped} - {*self._best_of(kept)}:
                self._place.remove(other)
            self._skipped.clear()
        except (OSError, ValueError) as error:  # the step is saved; old ones go with the next
            warn_user(f"old steps in {self._place.place} could not be removed: {error}")

    def _best_of(self, names: list[str]) -> list[str]:
        if self._best is None:
            return []
        key, count = self._best
        ranked = []
        for name in names:
            if name not in self._scores:
                with contextlib.suppress(CorruptError, NotFoundError):
                    self._scores[name] = self._place.index(name)["values"]
            value = self._scores.get(name, {}).get(key.removeprefix("-"))
            if value is not None and value == value:
                ranked.append((-value if key.startswith("-") else value, name))
        return [name for _, name in sorted(ranked, key=lambda pair: pair[0])[:count]]

    # -- what is loaded

    def _names(self) -> Saved:
        names = self._place.names()
        self._known = set(names)
        return {"names": names[:_MOST_NAMED]}

    def _read(self, name: str) -> tuple[Saved, Saved, Saved]:
        """The index, this rank's place and the items' states of a step.

        Raises:
            CorruptError: it is damaged.
            StateError: it is whole, and its place is none that a Checkpoint has saved.
        """
        index = self._place.index(name)
        rank = self._ranks.rank if self._ranks.size == index["ranks"] else 0
        where = f"{self._place.place}/{name}"
        if f"rank-{index['ranks'] - 1}.json" not in index["files"]:
            raise CorruptError(f"{where} lacks the places of some of its {index['ranks']} ranks")
        try:
            with self._place.read(name, index, f"rank-{rank}.json") as file:
                program = json.load(file)
            with self._place.read(name, index, _ITEMS) as file:
                states = torch.load(file, map_location="cpu", weights_only=True)
            whole = isinstance(states, dict) and isinstance(program, dict) and program.keys() >= _KINDS.keys()
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError) as error:
            if isinstance(error, CorruptError):
                raise
            raise CorruptError(f"{where} cannot be loaded: {error}") from error
        if not whole:
            raise CorruptError(f"{where} does not hold what a Checkpoint saves")
        return index, _checked(program, index["ranks"] == self._ranks.size, where), states

    def _load(self, index: Saved, program: Saved, states: Saved, strict: bool) -> None:
        missing = [name for name in self._parts if name not in states]
        if missing:
            what = (
                f"the step that was saved has no {', '.join(missing)}, but {', '.join(states) or 'no part'}"
            )
            if strict:
                raise StateError(
                    f"{what}; pass the parts that it was saved with, or resume(strict=False), or begin anew "
                    "in another folder"
                )
            warn_user(f"{what}; it begins as it is")
        items.load({name: part for name, part in self._parts.items() if name in states}, states)
        self._put_back(program, index["ranks"])

    def _put_back(self, program: Saved, saved_ranks: int) -> None:
        """Loaders, numbers, and generators last: to load the others may draw from them."""
        saved, states = program["loaders"], program["generators"]
        if self._loaders and saved and not saved.keys() & self._loaders.keys():
            raise StateError(
                f"the step that was saved has the loaders {', '.join(saved)}, here they are called "
                f"{', '.join(self._loaders)}; call them as they were"
            )
        for name in saved.keys() & self._loaders.keys():
            self._loaders[name].load_state_dict(saved[name])
        self.steps, self.epoch = program["steps"], program["epoch"]
        self.values.update(program["values"])
        self._trained |= set(program["trained"])
        self._begun = dict(program["begun"])
        self._passes.clear()
        self._ahead.clear()
        self._again = None
        self._asked_at = self._next_ask = self.steps
        if saved_ranks != self._ranks.size:
            generators.seed_anew(self._ranks, saved_ranks, program["seed"], self.steps)
            return
        generators.put_back(states["before"])
        if states["at_step"]:
            self._again = _Again(states["at_step"], self._hold)


class _Taken:
    """The batches that the loop has taken in one pass over a loader's epoch, or the rest of it.

    Attributes:
        first: the number of its first batch in the epoch.
        taken: how many the loop has got.
        used: how many of these came before the last optimizer step.
        is_over: the loop has asked for one more than there are.
        epoch: in whose body it began.
    """

    def __init__(self, loader: Any, epoch: int) -> None:
        self.first: int = loader.steps
        self.epoch, self._loader, self._number = epoch, loader, loader.epoch
        self.taken = self.used = 0
        self.is_over = False
        self._before: Saved = loader.state_dict()
        self._until = len(loader)
        self.batches: Delivery = iter(loader)

    def leave(self) -> None:
        """Makes the loader go on with its next epoch: a loop has left this one.

        Where all batches were taken as well: after a look at one batch, loaders begin again.
        """
        self.batches.leave()
        self._loader.set_epoch(self._number + 1)

    def is_at_end(self, hold: int) -> bool:
        """True if no batch is left that is to be used."""
        if hold:
            return self.is_over and self.used == self.taken
        return self.is_over or self.first + self.taken == self._until

    def state(self) -> Saved:
        """The loader's state after those that were used."""
        if self.taken == 0:
            return self._before
        return self.batches.state_after(self.used)


def _count_used(passes: deque[_Taken], hold: int) -> None:
    """Counts as used, after a step, all batches but those that the loop holds, which came last."""
    held = 0 if passes[-1].is_over else hold
    for one in reversed(passes):
        one.used = max(one.taken - held, one.used)
        held = max(held - one.taken, 0)


class _Again:
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


def _check_named(argument: str, given: object, example: str) -> None:
    """Raises TypeError unless an argument is a dict, or None."""
    if not (given is None or isinstance(given, Mapping)):
        raise TypeError(
            f"{argument} is a dict by names, as in {argument}={{{example!r}: ...}}, found a "
            f"{type(given).__name__}; give each the name under which it is saved"
        )


def _checked(program: Saved, is_own: bool, where: str) -> Saved:
    """The place of a rank, with generators as `generators.put_back` takes them if they are this rank's own.

    Raises:
        StateError: it holds what no Checkpoint saves.
    """
    odd = [key for key, is_kind in _KINDS.items() if not is_kind(program[key])]
    if not odd and is_own:
        states = program["generators"]
        try:
            return {**program, "generators": {key: generators.from_json(states[key]) for key in states}}
        except ValueError as error:
            odd = [f"generators ({error})"]
    if odd:
        raise StateError(
            f"{where} holds what no Checkpoint saves as {', '.join(odd)}; continue from another step: remove "
            "this one, and the one before it is taken"
        )
    return program


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_STEPS


def _is_dict(value: object) -> bool:
    return type(value) is dict


# What a rank's place holds, and whether that is of the kind that is saved.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "steps": _is_count,
    "epoch": _is_count,
    "values": _is_dict,
    "trained": lambda names: type(names) is list and all(type(name) is str for name in names),
    "begun": _is_dict,
    "loaders": lambda states: _is_dict(states) and all(map(_is_dict, states.values())),
    "seed": lambda seed: type(seed) is int,
    "generators": lambda states: (
        _is_dict(states)
        and states.keys() == {"before", "at_step"}
        and (states["at_step"] is None or _is_dict(states["at_step"]))
        and _is_dict(states["before"])
        and states["before"].keys() >= {"python", "numpy", "torch"}
    ),
}


def _is_plain(value: object) -> bool:
    """True if JSON gives a value back as it is."""
    if type(value) is dict:
        return all(type(key) is str and _is_plain(part) for key, part in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
