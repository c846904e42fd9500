"""Datasets for builds by many: counted, deadly, failing; modules of workers import this."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np


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
