"""A loader that chooses its number of workers gives the same batches and states as one with none."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from torch.utils.data import Dataset, Sampler

import torchyoga as yoga
from torchyoga.tools.meter_advice import Costs


class Drawing(Dataset[torch.Tensor]):
    """Rows that draw from all generators; some take long, as many as are asked for."""

    def __init__(self, length: int = 60, seconds: float = 0.0) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.tensor([row, random.random(), np.random.random(), torch.rand(()).item()])


def _collated(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(rows) * torch.rand(())


def _drawing(tmp_path: Path) -> Any:
    return Drawing()


def _cached(tmp_path: Path) -> Any:
    return yoga.Storage(tmp_path).submit([{"x": row} for row in range(60)], "rows", "1")


def _mapped(tmp_path: Path) -> Any:
    return _cached(tmp_path).map(_noisy)


def _noisy(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"x": row["x"] + torch.rand(())}


KINDS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "rows that draw": (_drawing, {"shuffle": True}),
    "an own collate function": (_drawing, {"shuffle": True, "collate_fn": _collated}),
    "single rows": (_drawing, {"batch_size": None}),
    "rows of files": (_cached, {"shuffle": True}),
    "rows of files, in processes": (_cached, {"shuffle": "block", "timeout": 100.0}),
    "a map that draws": (_mapped, {"shuffle": True, "drop_last": True}),
    "workers that persist": (_drawing, {"shuffle": True, "persistent_workers": True}),
    "a list of rows": (_drawing, {"sampler": [*range(0, 60, 2), 7]}),
}


@pytest.mark.quick("rows that draw", "a map that draws", "a list of rows")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(6))
@given(
    changes=st.lists(st.tuples(st.integers(1, 25), st.integers(0, 2)), max_size=4), stop=st.integers(1, 24)
)
def test_no_batch_depends_on_when_workers_are_employed(
    tmp_path_factory: pytest.TempPathFactory, kind: str, changes: list[tuple[int, int]], stop: int
) -> None:
    make, options = KINDS[kind]
    dataset = make(tmp_path_factory.mktemp("storage"))
    loader_of = partial(yoga.DataLoader, dataset, **{"batch_size": 5, "seed": 3, **options})
    plain = yoga.DataLoader(dataset, **{**loader_of.keywords, "persistent_workers": False, "timeout": 0.0})
    loader = loader_of(num_workers="auto")
    wanted, found, state = [*plain, *plain], list[Any](), dict[str, Any]()
    stop, numbers = 1 + stop % (len(plain) - 1), dict(changes)
    for _ in range(2):
        delivery = iter(loader)
        for batch in delivery:
            found.append(batch)
            if len(found) in numbers:
                delivery.employ(numbers[len(found)])
            if len(found) == stop:
                state = loader.state_dict()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert loader.state_dict() == plain.state_dict()
    resumed = loader_of(num_workers=1)
    resumed.load_state_dict(state)
    torch.testing.assert_close([*resumed], wanted[stop : len(plain)], rtol=0, atol=0)


def test_rows_that_wait_are_made_by_processes_and_the_meter_says_so() -> None:
    loader = yoga.DataLoader(Drawing(400, 0.003), 5, num_workers="auto")
    assert (loader.num_workers, loader.meter.workers) == (0, "this process")
    for _ in loader:
        pass
    assert loader.num_workers > 0
    said = f"{loader.num_workers} process"
    assert loader.meter.workers.startswith(said)
    assert f'; num_workers="auto" has chosen {said}' in loader.meter.verdict()
    assert "num_workers from" not in loader.meter.verdict()


def test_workers_end_when_none_are_employed_any_more() -> None:
    loader = yoga.DataLoader(Drawing(), 5, num_workers="auto")
    delivery = iter(loader)
    next(delivery)
    delivery.employ(2)
    next(delivery)
    assert len(multiprocessing.active_children()) == 2
    delivery.employ(0)
    next(delivery)
    assert multiprocessing.active_children() == []


def test_a_loader_made_anew_from_the_attributes_of_another_chooses_too() -> None:
    first = yoga.DataLoader(Drawing(), num_workers="auto")
    again = yoga.DataLoader(Drawing(), num_workers=first.num_workers)
    assert type(again.meter) is type(first.meter) is not type(yoga.DataLoader(Drawing()).meter)
    copied = pickle.loads(pickle.dumps(first))
    assert type(copied.meter) is type(first.meter)
    assert len([*copied]) == 60


class Hard(Sampler[int]):
    """A sampler that draws when it is asked, as one does that asks the model for hard rows."""

    def __len__(self) -> int:
        return 60

    def __iter__(self) -> Iterator[int]:
        for _ in range(60):
            yield random.randrange(60)


def test_workers_are_no_choice_where_they_would_change_the_rows() -> None:
    loader = yoga.DataLoader(Drawing(60, 0.03), sampler=Hard(), num_workers="auto")
    assert len([*loader]) == 60
    assert loader.num_workers == 0
    given: dict[str, Any] = {"in_order": False, "worker_init_fn": print}
    for name, value in given.items():
        with pytest.raises(ValueError, match=f'^{name} needs a number of workers, found num_workers="auto"$'):
            yoga.DataLoader(Drawing(), num_workers="auto", **{name: value})
    with pytest.raises(ValueError, match="num_workers is a number or \"auto\", found 'many'"):
        yoga.DataLoader(Drawing(), num_workers="many")


class Lazy(Dataset[int]):
    """Rows of a file that is opened when the first one is asked for."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(b"".join(row.to_bytes(4, "little") for row in range(300)))
        self.path = path
        self.file: Any = None

    def __len__(self) -> int:
        return 300

    def __getitem__(self, row: int) -> int:
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
        time.sleep(0.004)
        self.file.seek(4 * row)
        time.sleep(0.0001)
        return int.from_bytes(self.file.read(4), "little")


def test_workers_are_not_forked_with_a_file_that_rows_made_here_have_opened(tmp_path: Path) -> None:
    rows = Lazy(tmp_path / "rows")
    loader = yoga.DataLoader(rows, 5, num_workers="auto")
    assert torch.cat([*loader]).tolist() == [*range(300)]
    rows.file.close()
    if sys.platform == "linux" and multiprocessing.get_start_method() == "fork":
        assert loader.num_workers == 0
        assert f"they would share {tmp_path / 'rows'}" in loader.meter.choice


class Unsendable(Drawing):
    """Rows of a dataset that no other process can be given."""

    def __init__(self) -> None:
        super().__init__(3000, 0.004)
        self.function = lambda: None


@pytest.mark.filterwarnings("ignore:Got pickle error")  # torch's
def test_where_no_workers_can_be_started_rows_are_made_here() -> None:
    loader = yoga.DataLoader(
        Unsendable(), 5, num_workers="auto", multiprocessing_context="spawn", seed_rows=False
    )
    delivery = iter(loader)
    first = next(delivery)
    delivery.employ(2)
    with pytest.warns(UserWarning, match="no workers can be started, so rows are made by this process"):
        second = next(delivery)
    assert [*first[:, 0], *second[:, 0]] == [*range(10)]
    assert (loader.num_workers, delivery.can_employ) == (0, False)


@pytest.mark.parametrize("ranks", ["", "two", "0", "2"])
def test_the_number_of_ranks_here_may_be_any_text(ranks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert len([*yoga.DataLoader(Drawing(), 5, num_workers="auto")]) == 12


@pytest.mark.parametrize(
    ("batches", "epoch", "seconds", "wanted"),
    [
        (200, 0, 2e-3, 2),  # an epoch that workers shorten by more than twice the time in which they start
        (20, 0, 8e-3, 0),  # a short one, if no other follows
        (20, 4, 8e-3, 2),  # the next ones are taken to be as many as were
        (20, 4, 1e-3, 0),  # workers take longer to start than such epochs
    ],
)
def test_workers_are_employed_where_they_save_twice_what_their_start_takes(
    batches: int, epoch: int, seconds: float, wanted: int
) -> None:
    loader = yoga.DataLoader(Drawing(batches), 1, num_workers="auto", multiprocessing_context="fork")
    for _ in range(epoch):
        assert len([*loader]) == batches
    delivery = iter(loader)
    next(delivery)
    costs = Costs(make=seconds, cpu=seconds, loop=1e-5, loop_cpu=1e-5, batch_bytes=8, cpus=2)
    meter: Any = loader.meter
    assert meter._wanted(seconds + 1e-5, costs, delivery) == wanted
