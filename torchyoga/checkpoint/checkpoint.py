"""A training program's place: its models, its loaders and its random generators, saved together and exactly.

A save happens when the loop asks for its next batch: all that has followed the step is in it. What a loop has
taken since its last step, for gradients that it accumulates, comes again after a resume. At the end of an
epoch a save waits for the epoch's body, as a scheduler's step or an evaluation there would be lost or done
twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from ..errors import CorruptError, NotFoundError, StateError, YogaError
from ..loading.loader import DataLoader, DeviceLoader
from ..order.contract import Saved
from ..process.messages import warn_user
from ..process.numbers import as_int
from ..process.stops import Stops
from ..sampling.ranks import Processes, is_one_of_several
from . import generators
from . import steps as saving
from .loop import Loop

_ITEMS = "items.pt"
_MOST_NAMED = 50  # steps that ranks tell each other of
_MOST_TOLD = 2**16  # bytes of a rank's generators and loaders, as JSON
_MOST_STEPS = 10**18  # a step's name has no more digits


class Checkpoint:
    """Saves a whole training program at intervals, and continues it exactly.

    It saves the state of each part, `values`, the states of the loaders, and the random generators of each
    rank (Python's, NumPy's, torch's, and those of devices in use). A save counts only when its files are on
    the disk, and `torch.load` loads them with `weights_only=True`. On several ranks each makes a Checkpoint
    and calls the same methods; the parts of rank 0 are saved, and all ranks load them.

    Args:
        folder: a directory that all ranks see, or a URL such as s3://bucket/run.
        every: optimizer steps between two saves. With neither this nor `every_seconds`, it saves at the end
            of each epoch.
        every_seconds: seconds between two saves; `every` may be given, too.
        keep: the number of the newest saves that stay; two saves of one step count as one, if there are
            others.
        keep_best: a name in `values` and a number. So many saves with the lowest value stay, too; those with
            the highest, if the name has a "-" before it: `("-accuracy", 2)`.
        loaders: each `torchyoga.DataLoader` by its name, one for training first; also as Accelerate or
            Lightning Fabric have prepared it. A loop over another loader is an evaluation if it begins
            without gradients, or while a model is in eval mode. An evaluation always begins with the same
            epoch of its loader and the same random numbers; afterwards those of training are restored.
        values: what else to save, as JSON: numbers, texts, lists and dicts of them.
        resume: True calls `resume` at once.
        steps: "manual" if you call `stepped`; or the name of the optimizer whose steps count. By default this
            is the only optimizer, or the last of several that step on the same batches.
        hold: the number of batches that the loop has fetched, but not used, when it calls `stepped`: 1 for
            loops that fetch the next batch before they step, as nanoGPT's and timm's do. Such a loop must
            call `stepped`. By default a loop that seems to need it is refused; with 0 it is not.
        signals: on any of these, the program saves after the current step and exits; () for none.
        exit_code: the exit code then; None for 128 plus the signal's number, as in shells.
        storage_options: for the store behind a URL.
        **parts: objects with `state_dict` and `load_state_dict`: models, optimizers, schedulers, scalers.
            Models may be wrapped by DistributedDataParallel and `torch.compile` or not, at a save and at a
            resume.

    Attributes:
        values: the dict that was passed.

    Raises:
        TypeError: a part has no state, or a loader is not torchyoga's.
        ValueError: an argument is out of range.

    Example:
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> def train(loader, epochs):
        ...     run = Checkpoint(
        ...         "run", every=3, resume=True, model=model, optimizer=optimizer, loaders={"train": loader}
        ...     )
        ...     for epoch in run.epochs(epochs):
        ...         for batch in loader:
        ...             model(batch[:, None].float()).sum().backward()
        ...             optimizer.step()
        ...     return run.steps, run.epoch
        >>> train(DataLoader(list(range(8)), batch_size=2, shuffle=True, seed=7), epochs=1)
        (4, 1)
        >>> train(DataLoader(list(range(8)), batch_size=2, shuffle=True, seed=7), epochs=2)
        (8, 2)
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
        resume: bool = False,
        steps: str | None = None,
        hold: int | None = None,
        signals: Iterable[str] = ("SIGTERM", "SIGUSR1"),
        exit_code: int | None = None,
        storage_options: Mapping[str, object] | None = None,
        **parts: Any,
    ) -> None:
        self._every = every if every is None else as_int("every", every, low=1)
        if every_seconds is not None and not every_seconds > 0:
            raise ValueError(f"every_seconds must be above 0, found {every_seconds!r}")
        self._every_seconds, self._exit_code = every_seconds, exit_code
        self._keep, num_held = as_int("keep", keep, low=1), as_int("hold", hold or 0, low=0)
        self._best = None if keep_best is None else (keep_best[0], as_int("keep_best", keep_best[1], low=1))
        _check_named("loaders", loaders, "train")
        self.values: dict[str, Any] = {} if values is None else values
        _check_named("values", self.values, "best_loss")
        if self._best is not None and self._best[0].removeprefix("-") not in self.values:
            raise ValueError(
                f"keep_best names {self._best[0]!r}, which values lacks; give it there from the start"
            )
        for name, part in parts.items():
            is_stateful = hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
            if not is_stateful or isinstance(part, (DataLoader, DeviceLoader)):
                raise TypeError(
                    f"{name} is a {type(part).__name__}; pass loaders as loaders={{...}}, and plain values "
                    "without state_dict and load_state_dict as values={...}"
                )
        self._parts, self._place = parts, saving.steps_at(folder, storage_options)
        self._ranks, self._stops = Processes(), Stops(signals)
        known = {name: _known_loader(name, loader) for name, loader in (loaders or {}).items()}
        self._optimizers = _counted(parts, steps) if known and not num_held else {}
        if steps not in (None, "manual", *self._optimizers):
            raise ValueError(
                f"steps={steps!r} is neither 'manual' nor the name of an optimizer whose steps can be counted"
            )
        self._loop = Loop(known, parts, num_held, hold is None, self._begin_loop, self._is_due, self._finish)
        weakref.finalize(self, self._stops.leave).atexit = False
        self._is_wanted = self._has_begun = self._knows_bodies = False
        self._saved_at, self._saved_when = (0, 0), time.monotonic()
        self._asked_at = self._next_ask = 0  # steps at which ranks ask each other whether to save
        self._asked_when = time.monotonic()
        # Steps that were there, or are ours; None before they are looked at.
        self._known: set[str] | None = None
        self._scores: dict[str, Saved] = {}  # numbers that were saved with steps
        self._skipped: list[str] = []  # damaged steps, that a resume has passed over
        if resume:
            self.resume()
        self._loop.watch(self._optimizers, steps is not None)

    # -- the loop

    @property
    def steps(self) -> int:
        """The optimizer steps of the program, with those before a resume."""
        self._loop.asks_steps = True
        return self._loop.steps

    @property
    def epoch(self) -> int:
        """The number of the current epoch; after the last one, the number of epochs."""
        self._loop.asks_epoch = True
        return self._loop.epoch

    def resume(self, strict: bool = True) -> bool:
        """Continues from the newest save; returns False if there is none. Call it before the loop.

        A damaged save is passed over, with a warning. Rows are exact on another number of ranks, and with
        other workers or batch sizes, too. On another number of ranks random numbers are new: they follow from
        the seed, the step and the rank, and a warning says so.

        Args:
            strict: every part must be in the save. With False, parts that are not stay as they are, with a
                warning.

        Raises:
            CorruptError: there are saves, but all are damaged.
            StateError: a part or a loader is not in the save, or refuses its saved state; or the files are
                not those of a Checkpoint.
        """
        names: list[str] = self._said("nothing was loaded", self._names, by_first=True)[0]["names"]
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
            answers = self._ranks.checked("nothing was loaded", {"damage": damage}, error)
            problems = [answer["damage"] for answer in answers if answer["damage"]]
            if found is not None and not problems:
                self._load(*found, strict)
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
        """The numbers of the epochs that are left, up to `count`.

        After the last epoch it saves once more, so that a program that is started again has nothing to do. A
        loop over `range(run.epoch, count)` is as exact, but only `save` saves its end.
        """
        loop = self._loop
        self._begin_loop()
        loop.in_epochs = loop.asks_epoch = self._knows_bodies = True
        try:
            for epoch in range(loop.epoch, as_int("count", count, low=0)):
                if loop.pending is not None:
                    generators.put_back(loop.pending)
                yield epoch
                if not loop.steps and not loop.watched:
                    warn_user("no step was counted, so none is saved: pass loaders=, or call run.stepped()")
                loop.next_body()
                # An iterator that the loop holds goes on, or another begins: the next batch says.
                if self._is_due() and loop.is_clean and not any(one.is_open for one in loop.watched.values()):
                    self._finish()
            if self._saved_at != self._at and (loop.is_clean or not loop.hold):
                self._finish()
        finally:
            loop.in_epochs = False
            self._stops.leave()

    def forever(self, name: str) -> Iterator[Any]:
        """The batches of a loader, epoch after epoch without an end; leave the loop by `break`.

        Raises:
            ValueError: no loader has that name, or it has no batch.
        """
        if name not in self._loop.watched:
            raise ValueError(
                f"no loader is called {name!r}; there are {', '.join(self._loop.watched) or 'none'}"
            )
        loader = self._loop.watched[name].loader
        if not len(loader):
            raise ValueError(f"{name!r} has no batch, so it would be asked forever; use a smaller batch_size")
        self._loop.watched[name].is_counted = True  # by `steps`, in a loop without epochs
        for _ in self.epochs(_MOST_STEPS):
            yield from loader

    def stepped(self) -> None:
        """Counts a step of a loop without an optimizer, or with `steps="manual"`; call it last in the step.

        With `hold`, or without loaders, a save that is due happens here, so it lacks what the loop changes
        after this call. Other loops save when they ask for the next batch.

        Raises:
            StateError: the steps of an optimizer are counted.
        """
        if self._optimizers:
            raise StateError(
                f"the steps of {', '.join(self._optimizers)} are counted; leave out stepped(), or pass "
                "steps='manual'"
            )
        loop = self._loop
        loop.step()
        if (loop.hold or not loop.watched) and self._is_due() and loop.is_clean and not loop.is_at_end():
            self._finish()

    def save(self) -> None:
        """Saves now. Call it between two steps, in the last line of an epoch's body, or after it.

        After the last batch of an epoch it waits until the epoch's body is over. Override it to save in
        another way: it is called when a save is due.

        Raises:
            StateError: a batch was fetched that no step has used, or the loop has left an epoch early.
            OSError, RemoteError: a file cannot be written; earlier saves stay as they were.
            YogaError: the folder has saves that were not continued; or another rank has failed.
            TypeError: a part's state, or a value, cannot be loaded safely.
        """
        loop = self._loop
        if loop.is_at_end() or (loop.in_epochs and loop.is_left and not loop.is_clean):
            if loop.in_epochs or not loop.is_over:
                self._is_wanted = True
                return
            loop.next_body()
        elif loop.is_left and not self._knows_bodies:
            raise StateError(
                "the loop has left its epoch, and only `for epoch in run.epochs(n)` knows whether for good; "
                "take epochs from there, or save before"
            )
        self._save()

    # -- as a Stateful of torch.distributed.checkpoint

    def state_dict(self) -> dict[str, Any]:
        """All that is saved, for torch.distributed.checkpoint; models may be divided among ranks.

        All ranks call this: it holds the random generators of all of them.
        """
        program = self._program()
        own = {name: program.pop(name) for name in ("generators", "loaders")}
        answers = self._ranks.gathered(own, _MOST_TOLD)
        fresh = saving.without_state(self._parts)
        text = json.dumps({**program, "by_rank": answers, "fresh": fresh})
        with self._loop.silent():
            return {"run": text, "parts": saving.sharded(self._parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned, on any number of ranks."""
        try:
            program = json.loads(state["run"])
            by_rank, fresh = program["by_rank"], program["fresh"]
            own = by_rank[self._ranks.rank if self._ranks.rank < len(by_rank) else 0]
            program = _with_generators({**program, **own}, len(by_rank) == self._ranks.size)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise StateError(f"this is no state of a Checkpoint: {error!r}") from error
        with self._loop.silent():
            saving.load_sharded(self._parts, state.get("parts", {}), fresh)
        self._put_back(program, len(by_rank))

    # -- what is saved

    @property
    def _at(self) -> tuple[int, int]:
        return self._loop.steps, self._loop.epoch

    def _program(self) -> Saved:
        """This rank's place: all that is not an item, as JSON."""
        for name, value in self.values.items():
            if not (isinstance(name, str) and _is_plain(value)):
                raise TypeError(
                    f"values[{name!r}] = {value!r:.100} would not come back as it is: keep numbers of Python "
                    "(float(x)), texts, lists, and dicts with texts as keys"
                )
        return {**self._loop.saved(), "values": self.values, "seed": torch.initial_seed()}

    def _begin_loop(self) -> None:
        """A pass over a loader, or over epochs, begins."""
        if not self._has_begun:
            self._said("nothing was trained", self._look, by_first=True)
            self._has_begun = True
        self._stops.listen()

    def _finish(self) -> None:
        """Saves, and leaves if a signal has asked for it."""
        self.save()
        self._saved_at, self._saved_when = self._at, time.monotonic()
        if asked := self._ranks.most(self._stops.asked):
            self._stops.asked = 0
            raise SystemExit(128 + asked if self._exit_code is None else self._exit_code)

    def _is_due(self) -> bool:
        steps, (saved_steps, saved_epoch) = self._loop.steps, self._saved_at
        by_epochs = self._every is None and self._every_seconds is None
        if self._is_wanted or (by_epochs and self._loop.epoch > saved_epoch):
            return True
        if self._every is not None and steps // self._every > saved_steps // self._every:
            return True
        if self._ranks.size > 1 and steps < self._next_ask:
            return False
        late = self._every_seconds is not None and time.monotonic() - self._saved_when >= self._every_seconds
        if self._every_seconds is None and not self._stops.names:
            return False
        # Ranks ask each other ten times a second, after as many steps on each.
        seconds = (time.monotonic() - self._asked_when) / max(steps - self._asked_at, 1)
        answer = self._ranks.most(self._stops.asked or late)
        slowest = self._ranks.most(int(seconds * 1e6))
        self._asked_at, self._asked_when = steps, time.monotonic()
        self._next_ask = steps + min(100_000 // max(slowest, 100), 1000)
        return bool(answer)

    def _save(self) -> None:
        saving.refuse_divided(self._parts)
        steps = self._loop.steps
        what = f"step {steps} was not saved in {self._place.place}, those before it are as they were"
        name = self._said(what, self._begin, by_first=True)[0]["name"]
        try:
            entries = self._said(what, lambda: {"files": self._write_files(name)})
            files = {file: entry for answer in entries for file, entry in answer["files"].items()}
            self._said(what, lambda: self._publish(name, files), by_first=True)
        except Exception:
            if self._ranks.rank == 0:
                self._place.give_up(name)
            raise
        self._saved_at, self._is_wanted = self._at, False
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
        name = self._place.next_name(self._loop.steps)
        self._place.begin(name)
        return {"name": name}

    def _write_files(self, name: str) -> dict[str, list[int]]:
        rank = self._ranks.rank
        program = json.dumps(self._program()).encode()
        file = f"rank-{rank}.json"
        files = {file: self._place.write(name, file, lambda to: to.write(program))}
        if rank == 0:
            states = saving.states_of(self._parts)
            check = partial(saving.check_readable, states)
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
            older = saving.worth_keeping(kept[kept.index(newest) :])[self._keep :]
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
            StateError: it is whole, but not saved by a Checkpoint.
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
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError) as error:
            if isinstance(error, CorruptError):
                raise
            raise CorruptError(f"{where} cannot be loaded: {error}") from error
        try:
            return index, _with_generators(program, index["ranks"] == self._ranks.size), states
        except (ValueError, LookupError, TypeError) as error:
            raise StateError(f"{where} does not hold what a Checkpoint saves: {error!r}") from error

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
        saving.load_states({name: part for name, part in self._parts.items() if name in states}, states)
        self._put_back(program, index["ranks"])

    def _put_back(self, program: Saved, saved_ranks: int) -> None:
        """Loaders, numbers, and generators last: to load the others may draw from them."""
        saved, own = program["loaders"], self._loop.watched
        if own and saved and not saved.keys() & own.keys():
            raise StateError(
                f"the step that was saved has the loaders {', '.join(saved)}, here they are called "
                f"{', '.join(own)}; call them as they were"
            )
        self._loop.load(program)
        self.values.update(program["values"])
        self._saved_at, self._asked_at = self._at, self._loop.steps
        self._next_ask = self._asked_at
        if saved_ranks == self._ranks.size:
            self._loop.put_back(program["generators"])
        else:
            generators.seed_anew(self._ranks, saved_ranks, program["seed"], self._loop.steps)


def _known_loader(name: object, loader: object) -> Any:
    """A loader of ours, without the wrapper of Lightning Fabric; TypeError for another one."""
    loader = getattr(loader, "_dataloader", loader)
    if not isinstance(name, str):
        raise TypeError(f"loaders has {name!r:.80} as a key; give each loader a text as its name")
    if not isinstance(loader, (DataLoader, DeviceLoader)):
        raise TypeError(
            f"loaders[{name!r}] is a {type(loader).__name__}, whose place cannot be saved exactly; "
            "make a torchyoga.DataLoader, it takes torch's arguments"
        )
    return loader


def _counted(parts: Mapping[str, Any], steps: str | None) -> dict[str, torch.optim.Optimizer]:
    """The optimizers whose steps count, without the wrappers of trainers; a scheduler knows its own, too."""
    found: dict[str, torch.optim.Optimizer] = {}
    kinds = torch.optim.Optimizer
    for name, part in sorted(parts.items(), key=lambda pair: not isinstance(pair[1], kinds)):
        while isinstance(inner := getattr(part, "optimizer", None), kinds):
            part = inner
        if isinstance(part, kinds) and steps in (None, name) and part not in found.values():
            found[name] = part
    return found


def _check_named(argument: str, given: object, example: str) -> None:
    """Raises TypeError unless an argument is a dict, or None."""
    if not (given is None or isinstance(given, Mapping)):
        raise TypeError(
            f"{argument} is a dict by names, as in {argument}={{{example!r}: ...}}, found a "
            f"{type(given).__name__}; give each the name under which it is saved"
        )


def _with_generators(program: Saved, is_own: bool) -> Saved:
    """The place of a rank, with generators as `generators.put_back` takes them if they are this rank's own.

    Raises:
        ValueError: the generators of this process do not take them.
    """
    states = program["generators"]
    if not is_own:
        return program
    return {**program, "generators": {key: generators.from_json(states[key]) for key in states}}


def _is_plain(value: object) -> bool:
    """True if JSON gives a value back as it is."""
    if type(value) is dict:
        return all(type(key) is str and _is_plain(part) for key, part in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
