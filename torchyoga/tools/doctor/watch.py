"""The loaders that a program iterates, examined when it ends; for `yoga doctor -- command`.

A watched program is changed as little as can be.
The command sets a variable, and `import torchyoga` then loads this file; without it, nothing is done.
Loaders of torchyoga's raise an audit event when an iteration begins. torch's say nothing: from Python 3.12 on
`sys.monitoring` reports calls of their `__iter__`, which changes no class; before that, those are found that
are still alive at the end. No function of torch's is replaced.
"""

from __future__ import annotations

import atexit
import gc
import json
import multiprocessing
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

__all__ = ["FOLDER", "SECONDS", "begin"]

FOLDER, SECONDS = "TORCHYOGA_DOCTOR", "TORCHYOGA_DOCTOR_SECONDS"
_MOST_LOADERS = 4  # the last ones; each is kept until the end
_DEFAULT_SECONDS = 30.0
_TOOL = "torchyoga doctor"


class _Watch:
    """The loaders that were seen in this process."""

    def __init__(self, folder: str, seconds: float) -> None:
        self._folder = Path(folder)
        self._seconds = seconds
        self._process = os.getpid()
        self._loaders: list[Any] = []

    def see(self, loader: object) -> None:
        """Keeps a loader that is being iterated."""
        if os.getpid() != self._process or any(loader is one for one in self._loaders):
            return
        self._loaders = [*self._loaders, loader][-_MOST_LOADERS:]

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Keeps the loader of an audit event."""
        if event == "torchyoga.DataLoader.__iter__":
            self.see(*arguments)

    def report(self) -> None:
        """Examines them, and writes what was found into the folder."""
        if os.getpid() != self._process:
            return
        rank = _rank()
        found: dict[str, Any] = {"process": self._process, "rank": rank, "loaders": 0, "receipts": []}
        try:
            _find_alive(self.see)
            loaders = [one for one in self._loaders if not _is_inner(one)]
            found["loaders"] = len(loaders)
            found["receipts"] = [_receipt(one) for one in loaders if hasattr(one, "receipt")]
            found["diagnoses"] = _examined(loaders, self._seconds, rank)
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
    try:
        seconds = float(os.environ.get(SECONDS, _DEFAULT_SECONDS))
    except ValueError:
        seconds = _DEFAULT_SECONDS
    # First, so that the examination comes before torch and multiprocessing end their workers. It imports
    # nothing then: classes that are made by `exec`, as named tuples are, let Python forget that the program
    # was interrupted, and it would end with another exit code.
    import torch.utils.data

    from . import examination

    assert examination
    watch = _Watch(folder, seconds)
    sys.addaudithook(watch.hear)
    _monitor(torch.utils.data.DataLoader.__iter__.__code__, watch)
    atexit.register(watch.report)


def _monitor(code: CodeType, watch: _Watch) -> None:
    """Sees calls of a function, where Python can say so."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None:
        return
    free = next((tool for tool in range(6) if monitoring.get_tool(tool) is None), None)
    if free is None:
        return
    event = monitoring.events.PY_START

    def called(found: CodeType, offset: int) -> None:
        frame = sys._getframe(1)
        if frame.f_code is code and "self" in frame.f_locals:
            watch.see(frame.f_locals["self"])

    monitoring.use_tool_id(free, _TOOL)
    monitoring.register_callback(free, event, called)
    monitoring.set_local_events(free, code, event)


def _find_alive(see: Any) -> None:
    """Loaders of torch's that are still there, on a Python that did not say when they were iterated."""
    if hasattr(sys, "monitoring"):
        return
    import torch.utils.data

    from ...loading.loader import DataLoader

    for one in gc.get_objects():
        if issubclass(type(one), torch.utils.data.DataLoader) and not isinstance(one, DataLoader):
            see(one)


def _is_inner(loader: Any) -> bool:
    """True for a loader of torch's within one of torchyoga's, or of a library."""
    return type(loader).__name__ == "_Inner" and type(loader).__module__.startswith("torchyoga.")


def _receipt(loader: Any) -> object:
    try:
        return loader.receipt()
    except Exception:  # nothing was delivered, or its sampler keeps none
        return None


def _examined(loaders: list[Any], seconds: float, rank: int) -> list[dict[str, object]]:
    """The diagnoses; ranks after the first are only asked how their rows are dealt, as CPUs are shared."""
    from .diagnosis import Diagnosis
    from .examination import doctor
    from .patient import Patient
    from .sharding import RunningJob, dealt

    if rank:
        job = RunningJob.now()
        return [Diagnosis(dealt(Patient.of(one), job)).to_dict() for one in loaders]
    return [doctor(one, seconds=seconds / len(loaders)).to_dict() for one in loaders]


def _rank() -> int:
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0
