"""The promise, run: which functions of the core does it need? `python tests/promise.py` prints their share.

A dataset is cached, fetched, shuffled, stopped in the middle, resumed with other batches and other workers,
proved and checked.
"""

from __future__ import annotations

import ast
import json
import mmap
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import torch.utils.data  # noqa: F401 - before calls are watched, which makes its import slow

import torchyoga as yoga

PACKAGE = Path(yoga.__file__).parent
CORE = (
    *("process", "files", "rows", "formats", "versions", "reading", "order", "sampling", "loading"),
    *("checkpoint", "stores", "building", "caching"),
)
ROWS = 5000  # more than an order sorts


class Watch:
    """Notes the functions of the core that this process and its forks call.

    Attributes:
        sizes: the lines of each function that are not empty, by its file and first line.
    """

    def __init__(self) -> None:
        self.sizes: dict[tuple[str, int], int] = {}
        for path in [found for room in CORE for found in sorted((PACKAGE / room).rglob("*.py"))]:
            self._add(path)
        self._add(PACKAGE / "storage.py")
        self._numbers = {place: number for number, place in enumerate(self.sizes)}
        self._called = mmap.mmap(-1, len(self.sizes))  # shared with forks

    def _add(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                size = sum(bool(line.strip()) for line in lines[node.lineno - 1 : node.end_lineno])
                self.sizes[str(path), first] = size

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """What `sys.setprofile` calls."""
        if event == "call":
            code = frame.f_code
            number = self._numbers.get((code.co_filename, code.co_firstlineno))
            if number is not None:
                self._called[number] = 1

    def lines(self) -> dict[str, int]:
        """Lines of the functions that were called, by file of the package."""
        found: dict[str, int] = {}
        for place, number in self._numbers.items():
            if self._called[number]:
                name = Path(place[0]).relative_to(PACKAGE).as_posix()
                found[name] = found.get(name, 0) + self.sizes[place]
        return found


class Squares:
    """A dataset of squares."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        if row >= ROWS:
            raise IndexError(row)
        return {"x": [float(row)] * 3, "square": row * row}


def keep_the_promise(folder: str) -> None:
    """Caches and fetches rows; stops in the middle of epochs and goes on otherwise; proves and checks."""
    storage = yoga.Storage(folder)
    storage.submit(Squares(), "squares", "1.0")

    @storage.cacheable("cubes", "1.0")
    def cubes() -> object:
        return Squares()

    squares = storage.fetch("squares", "1.0")
    for ref, workers, shuffle in (
        (squares, 0, True),
        (squares, 2, "block"),
        (cubes(), 2, True),
        (cubes(), 0, "block"),
    ):
        first = yoga.DataLoader(ref, 64, shuffle=shuffle, seed=3, num_workers=workers)
        batches = iter(first)
        seen = [row for _ in range(5) for row in next(batches)["square"].tolist()]
        again = yoga.DataLoader(ref, 40, shuffle=shuffle, seed=3, num_workers=2 - workers)
        again.load_state_dict(first.state_dict())
        seen += [row for batch in again for row in batch["square"].tolist()]
        assert sorted(seen) == [row * row for row in range(ROWS)]
        assert again.prove().is_exact
    storage.check("squares", "1.0")


def main() -> None:
    """Prints the share, and as JSON the lines of each file that ran."""
    watch = Watch()
    sys.setprofile(watch)
    threading.setprofile(watch)
    with tempfile.TemporaryDirectory() as folder:
        keep_the_promise(folder)
    sys.setprofile(None)
    lines, whole = watch.lines(), sum(watch.sizes.values())
    print(f"{sum(lines.values()):,} of {whole:,} lines of functions: {sum(lines.values()) / whole:.3f}")
    print(json.dumps({"share": sum(lines.values()) / whole, "lines": lines}))


if __name__ == "__main__":
    main()
