"""The loaders that a program iterates, examined when it ends; for `yoga doctor -- command`.

A watched program is changed as little as can be.
The command sets a variable, and `import torchyoga` then loads this file; without it, nothing is done.
Loaders of torchyoga's raise an audit event when an iteration begins. torch's say nothing, so the `__iter__`
of their class is wrapped: it keeps the loader, also one that is local to a function, and calls the one that
was there.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import multiprocessing
import os
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader

from ...loading.loader import DataLoader
from .diagnosis import Diagnosis
from .epochs import order_state
from .examination import examined
from .patient import Patient
from .program import FOLDER, SECONDS
from .sharding import dealt, first_rows, replicas, world
from .trial import tried
from .walk import is_library_file

_MOST_LOADERS = 4  # the last ones; each is kept until the end
_MOST_STARTS = 8  # iterations of a loader
_FIRST_SECONDS = 5.0  # for the rows that a loader begins with
_AVERAGING = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


class _Seen:
    """A loader that was iterated.

    Attributes:
        loader: the loader.
        names: of variables of the user's function that iterated it.
        line: where that was.
        evaluates: True if each iteration began without gradients.
        rows: the rows that it begins with on this rank, as texts; empty if there is one process only.
        must_differ: True if ranks should get others: the loader deals them, or gradients are averaged.
        starts: what decided the order as each iteration began; of the last ones.
    """

    def __init__(self, loader: Any, frame: FrameType, line: str) -> None:
        self.loader, self.line, self.evaluates, self.starts = loader, line, True, list[str]()
        self.names = [name for name, one in [*frame.f_locals.items()] if one is loader]
        self.rows, self.must_differ = list[str](), False
        if world() > 1:
            patient = Patient.of(loader)
            self.rows = tried(partial(first_rows, patient), _FIRST_SECONDS).value or []
            averages = any(type(one).__name__ in _AVERAGING for one in gc.get_objects())
            self.must_differ = averages or replicas(loader) > 1

    def is_of(self, loader: Any, line: str) -> bool:
        """True for the loader, and for one like it that the same line iterates: a new one each epoch."""
        kinds = {(id(one.dataset), one.batch_size, type(one.sampler)) for one in (self.loader, loader)}
        return self.loader is loader or (self.line == line and len(kinds) == 1)


class _Watch:
    """The loaders that were seen in this process."""

    def __init__(self, folder: str, seconds: float) -> None:
        self._folder = Path(folder)
        self._seconds = seconds
        self._process = os.getpid()
        self._file = getattr(sys.modules["__main__"], "__file__", None)
        self._seen: list[_Seen] = []

    def see(self, loader: Any, frame: FrameType) -> None:
        """Keeps a loader that is being iterated by the code of a frame."""
        if os.getpid() != self._process or type(loader).__name__ == "_TorchLoader":  # below ours
            return
        while frame.f_back is not None and is_library_file(frame.f_code.co_filename):  # a trainer's, say
            frame = frame.f_back
        line = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        seen = next((one for one in self._seen if one.is_of(loader, line)), None)
        if seen is None:
            seen = _Seen(loader, frame, line)
            self._seen = [*self._seen, seen][-_MOST_LOADERS:]
        seen.loader = loader
        seen.evaluates &= not torch.is_grad_enabled()
        if not isinstance(loader, DataLoader):
            seen.starts = [*seen.starts, order_state(loader)][-_MOST_STARTS:]

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Keeps the loader of an audit event."""
        if event == "torchyoga.DataLoader.__iter__":
            self.see(arguments[0], sys._getframe(2))  # the hook's, the loader's, and then theirs

    def report(self) -> None:
        """Examines them, and writes what was found into the folder."""
        if os.getpid() != self._process:
            return
        if self._file is not None:  # Python has taken it away, and rows or spawned workers may need it
            vars(sys.modules["__main__"]).setdefault("__file__", self._file)
        rank, names = _rank(), _called(self._seen)
        found: dict[str, Any] = {"process": self._process, "loaders": []}
        try:
            found["loaders"] = [
                {"name": name, "rows": [] if one.evaluates else one.rows, "must_differ": one.must_differ}
                for one, name in zip(self._seen, names, strict=True)
            ]
            found["diagnoses"] = _examined(self._seen, names, self._seconds, rank)
        except KeyboardInterrupt:
            found["error"] = "it was interrupted while it was examined"
        except Exception as error:
            found["error"] = traceback.format_exception_only(type(error), error)[-1].strip()[:500]
        with suppress(OSError):
            path = self._folder / f"{self._process}.json"
            path.with_suffix(".new").write_text(json.dumps(found))
            path.with_suffix(".new").replace(path)


def begin() -> None:
    """Watches this process, if it is one that a user has started and not a worker."""
    folder = os.environ.get(FOLDER)
    if not folder or multiprocessing.parent_process() is not None or not os.path.isdir(folder):
        return
    watch = _Watch(folder, float(os.environ[SECONDS]))
    sys.addaudithook(watch.hear)
    there = TorchLoader.__iter__

    @functools.wraps(there)
    def iterated(self: Any) -> Any:
        watch.see(self, sys._getframe(1))
        return there(self)

    TorchLoader.__iter__ = iterated  # type: ignore[method-assign]
    # torch and multiprocessing are imported by now, and end their workers only after this.
    atexit.register(watch.report)


def _examined(seen: list[_Seen], names: list[str], seconds: float, rank: int) -> list[dict[str, object]]:
    """The diagnoses; ranks after the first are only asked how their rows are dealt, as CPUs are shared."""
    patients = [
        Patient.of(one.loader, one.names, evaluates=one.evaluates, starts=tuple(one.starts)) for one in seen
    ]
    if rank:
        diagnoses = [Diagnosis([*dealt(one)]) for one in patients]
    else:
        diagnoses = [examined(one, seconds=seconds / len(patients)) for one in patients]
    if len(seen) > 1:
        diagnoses = [one.of(name) for one, name in zip(diagnoses, names, strict=True)]
    return [one.to_dict() for one in diagnoses]


def _called(seen: list[_Seen]) -> list[str]:
    """The variable of each loader, or the line that iterated it; numbered where others are called so."""
    names = [one.names[0] if one.names else one.line or "loader" for one in seen]
    numbered = zip(names, range(1, len(names) + 1), strict=True)
    return [name if names.count(name) == 1 else f"{name} {number}" for name, number in numbered]


def _rank() -> int:
    ranks = (os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return next((int(one) for one in ranks if one.isdigit()), 0)
