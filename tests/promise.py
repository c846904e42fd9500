"""The promise, run: which functions of the core does it need? `python tests/promise.py` prints their share.

The heart of the promise: a dataset is cached, fetched, shuffled, stopped in the middle, resumed with other
batches and other workers, proved and checked. `python tests/promise.py all` keeps the rest of it, too: two
formats, a store behind a URL, several builders, versions that grow, views, samplers of torch, a script.
"""

from __future__ import annotations

import ast
import json
import mmap
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch.utils.data  # before calls are watched, which makes its import slow

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


def stopped(
    dataset: object, batch_size: int | None, then: Mapping[str, Any] | None = None, **options: Any
) -> tuple[yoga.DataLoader[Any], list[Any]]:
    """The batches of an epoch, after five of which another loader, with some other options, goes on."""
    options["batch_size"] = batch_size
    first = yoga.DataLoader(dataset, **options)
    batches = list(islice(iter(first), 5))
    again = yoga.DataLoader(dataset, **options | dict(then or {}))
    again.load_state_dict(first.state_dict())
    return again, [*batches, *again]


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
        then = {"batch_size": 40, "num_workers": 2 - workers}
        again, batches = stopped(ref, 64, then, shuffle=shuffle, seed=3, num_workers=workers)
        seen = [row for batch in batches for row in batch["square"].tolist()]
        assert sorted(seen) == [row * row for row in range(ROWS)]
        assert again.prove().is_exact
    storage.check("squares", "1.0")


def few_rows() -> list[dict[str, Any]]:
    """Rows of numbers, text and lists."""
    return [
        {"x": [float(i)] * 3, "label": i % 5, "text": f"row {i}", "ids": list(range(i % 7))}
        for i in range(1000)
    ]


def stop_and_go_on(dataset: object, batch_size: int | None = 16, ranks: int = 1, **options: Any) -> None:
    """Reads an epoch, stopped on the way, without workers and with two, and proves it."""
    for workers in (0, 2):
        options |= {"num_workers": workers, "num_replicas": ranks}
        of_ranks = (stopped(dataset, batch_size, rank=rank, **options) for rank in range(ranks))
        assert yoga.prove([loader.receipt() for loader, _ in of_ranks]).is_exact


def keep_versions(folder: str) -> None:
    """Builds versions in two formats and by several builders; changes, compares, copies and removes them."""
    storage, rows = yoga.Storage(f"{folder}/here"), few_rows()
    for format in ("lmdb", "hdf5"):
        storage.submit(rows, format, "1.0", format=format, num_workers=2)
    with ThreadPoolExecutor(2) as executor:
        storage.submit(Squares(), "squares", "1.0", executor=executor)
    storage.submit(Squares(), "squares", "2.0", together=True)
    storage.append(rows[:10], "lmdb", "1.1", message="ten more")
    storage.add_columns([{"score": float(row)} for row in range(1010)], "lmdb", "1.2")
    storage.drop_columns(["text"], "lmdb", "1.3")
    storage.delete_rows("lmdb", "1.3", where=("label", lambda label: label == 2), to="1.4")
    storage.convert("lmdb", "1.4", format="hdf5", to="1.5")
    storage.tag("lmdb", "prod", "1.2")
    assert len(storage.log("lmdb")) == len(storage.versions("lmdb")) == 6
    assert yoga.diff(storage.fetch("lmdb", "1.0"), storage.fetch("lmdb", tag="prod"))
    assert len(storage.fetch("lmdb", "1.4").stats()) > 3
    store = yoga.Storage("memory://promise", cache_dir=f"{folder}/cache")
    storage.copy("lmdb", "1.2", store)
    store.append([{**row, "score": 1.0} for row in rows[:5]], "lmdb", "2.0")
    far = yoga.Storage("memory://promise", cache_dir=f"{folder}/elsewhere").fetch("lmdb", "2.0")
    stop_and_go_on(far.columns(["x", "label"]), shuffle="block")
    storage.remove("lmdb", "1.5")
    storage.clean()
    store.clean()


def keep_orders(folder: str) -> None:
    """Stops loaders of views, of mixtures and packs, of other ranks, of samplers of the user's; goes on."""
    ref = yoga.Storage(folder).submit(few_rows(), "rows", "1.0")
    small = ref.columns(["x", "label"])
    train, test = small.split([0.8, 0.2], stratify="label")
    mixed = yoga.mix({"train": train, "test": test}, weights={"train": 3, "test": 1})
    views = [
        small.where("label", lambda label: label < 3),
        small.windows(4, stride=2),
        small.balanced("label"),
        small.map(lambda row: {"x": np.random.rand(3)}),
        yoga.concat([train, test]),
        mixed,
        ref.columns(["ids"]).packed("ids", 16),
        ref.columns(["ids"]).token_windows("ids", 8),
    ]
    for view in views:
        stop_and_go_on(view, shuffle=True, seed=1)
    stop_and_go_on(ref.columns(["ids"]).token_batches("ids", 64), None, shuffle=True, seed=1)
    stop_and_go_on(ref, collate_fn=yoga.jagged)
    stop_and_go_on(small, ranks=2, shuffle=True, seed=1)
    plain = torch.utils.data.TensorDataset(torch.arange(1000))
    weights = torch.utils.data.WeightedRandomSampler([1.0] * 1000, 1000)
    stopped(plain, 16, sampler=weights)
    list(yoga.DataLoader(plain, 16, shuffle=True, num_workers="auto"))
    list(torch.utils.data.DataLoader(plain, sampler=yoga.ResumableSampler(plain, 2, 0, seed=1)))
    list(ref.stream(shuffle=True, shuffle_seed=3))


def keep_scripts(folder: str) -> None:
    """Trains by a plain loop that is stopped and continued."""
    for epochs in (1, 2):
        loader = yoga.DataLoader(yoga.from_arrays(np.ones((1000, 3), np.float32)), 32, shuffle=True, seed=1)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        parts = {"model": model, "optimizer": optimizer}
        run = yoga.Checkpoint(folder, every=3, loaders={"train": loader}, resume=True, **parts)
        for _ in run.epochs(epochs):
            for batch in loader:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()


def main() -> None:
    """Prints the share, and as JSON the lines of each file that ran."""
    watch = Watch()
    sys.setprofile(watch)
    threading.setprofile(watch)
    with tempfile.TemporaryDirectory() as folder:
        keep_the_promise(folder)
        if sys.argv[1:] == ["all"]:
            keep_versions(folder)
            keep_orders(f"{folder}/views")
            keep_scripts(f"{folder}/run")
    sys.setprofile(None)
    lines, whole = watch.lines(), sum(watch.sizes.values())
    print(f"{sum(lines.values()):,} of {whole:,} lines of functions: {sum(lines.values()) / whole:.3f}")
    print(json.dumps({"share": sum(lines.values()) / whole, "lines": lines}))


if __name__ == "__main__":
    main()
