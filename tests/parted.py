"""Datasets for builds by many: counted, deadly, failing; modules of workers import this."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchyoga import Storage
from torchyoga.building.board import splits_of
from torchyoga.caching import many
from torchyoga.caching.many import prepared
from torchyoga.reading.version_ref import VersionRef
from torchyoga.storage import store_of


class Plain:
    """Rows of every kind, each known by its number."""

    def __init__(self, count: int, add: int = 0) -> None:
        self.count, self.add = count, add

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, object]:
        if not 0 <= number < self.count:
            raise IndexError(number)
        value = number + self.add
        return {"x": np.arange(4) * value, "text": "é" * (value % 7), "values": np.arange(value % 5)}


class Counted(Plain):
    """Notes each row that is read in a file, which processes share."""

    def __init__(self, count: int, notes: Path, slow: float = 0.0) -> None:
        super().__init__(count)
        self.notes, self.slow = notes, slow

    def __getitem__(self, number: int) -> dict[str, object]:
        row = super().__getitem__(number)
        time.sleep(self.slow)
        with open(self.notes, "a") as file:
            file.write(f"{number}\n")
        return row


class Deadly(Plain):
    """Kills its process at some rows, each once."""

    def __init__(self, count: int, folder: Path, rows: tuple[int, ...], how: int = signal.SIGKILL) -> None:
        super().__init__(count)
        self.folder, self.rows, self.how = folder, rows, how
        self.owner = os.getpid()  # which only plans

    def __getitem__(self, number: int) -> dict[str, object]:
        if number in self.rows and os.getpid() != self.owner:
            try:
                mark = os.open(self.folder / f"{number}.once", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                pass
            else:
                os.write(mark, str(os.getpid()).encode())
                os.close(mark)
                os.kill(os.getpid(), self.how)
        return super().__getitem__(number)


class Random(Plain):
    """Rows that differ each time."""

    def __getitem__(self, number: int) -> dict[str, object]:
        return {**super().__getitem__(number), "noise": np.frombuffer(os.urandom(8), np.uint8)}


def read_lines(number: int):
    """The rows of an input: any number, also none."""
    for line in range(number % 4):
        yield {"input": number, "line": line, "text": "x" * line}


class Planned:
    """A build by many, as one builder sees it: a test says who builds which part, and when."""

    def __init__(
        self,
        storage: Storage,
        data: object,
        id: str,
        version: str,
        parts: int | None = None,
        overwrite: bool = False,
        format: str | None = None,
        info: Any = None,
    ) -> None:
        if not overwrite:
            store_of(storage).refuse_existing(id, version)
        target = storage._target(id, version, overwrite)
        source, options = prepared(data, target, storage._options(None, None, None, format, None, info))
        builders = many.Many(None, storage._lease_seconds, storage.timeout)
        with pytest.MonkeyPatch.context() as patch:
            if parts is not None:
                patch.setattr(many.Many, "workers", 1)
                patch.setattr(many, "_PARTS_EACH", parts)
            self._job = many.agreed_job(data, target, splits_of(source), options, builders)
        self.parts = range(self._job.plan.num_parts)

    @property
    def missing(self) -> list[int]:
        """The parts that are not done."""
        return sorted({*self.parts} - self._job.board.look(self._job.plan).done)

    def build(self, part: int) -> float:
        """Builds a part."""
        return self._job.build(part)

    def built(self, count: int | None = None) -> Planned:
        """This, once the first `count` parts are built; all if None."""
        for part in self.parts[:count]:
            self.build(part)
        return self

    def publish(self) -> VersionRef | None:
        """The version; None if a part is not done."""
        return self._job.publish()
