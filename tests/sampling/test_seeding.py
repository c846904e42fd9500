"""Random numbers of rows and batches depend on seed, epoch and row only, wherever they are drawn."""

from __future__ import annotations

import array
import contextlib
import itertools
import os
import random
import sys
import threading
from collections import UserList
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import becoming
import numpy as np
import pytest
import torch
from infiles import InFiles
from interrupting import calls_of
from own import Mapped, Own
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, random_split

import torchyoga as yoga
from torchyoga.order.epoch import IterationOptions
from torchyoga.process import seeding
from torchyoga.process.seeding import (
    KINDS,
    GeneratorsPutBack,
    batch_seeds,
    generators,
    row_seeds,
    seeder,
    worker_seed,
)
from torchyoga.reading.dataref import DataRef
from torchyoga.sampling.seeding import draws_random_numbers
from torchyoga.testing import assert_rows_equal

# Row 0 of seed 7: its number and seed, then random numbers of Python, NumPy and torch.
NUMBERS = (0, 2219165581082659414, 0.31296541713, 0.22784688184, 0.17538119709, 1.36197021217, 0.81804972887)
GENERATORS: list[Any] = [np.random.MT19937, np.random.PCG64, np.random.Philox, np.random.SFC64]


def drawn() -> list[float]:
    """Numbers of all three; an odd number of normal ones, because NumPy and Python keep the other one of a
    pair."""
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), float(torch.randn(1))]


@pytest.fixture(params=GENERATORS, ids=lambda kind: kind.__name__)
def generator(request: pytest.FixtureRequest) -> Any:
    """The type of NumPy's global generator."""
    kept = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(request.param(3))  # type: ignore[attr-defined]
    yield request.param
    np.random.set_bit_generator(kept)  # type: ignore[attr-defined]


def noisy(index: int) -> Any:
    return index, torch.initial_seed(), *drawn()


NOISY = Mapped(21, noisy)


def test_the_seeds_are_pinned() -> None:
    assert row_seeds(7, 0, np.arange(4)).tolist() == [
        2219165581082659414,
        4947278990639097926,
        5657111997313183829,
        5395503826273186488,
    ]
    assert row_seeds(7, 1, np.array([0])).tolist() == [4176328670124679124]
    assert row_seeds(-1, 0, np.array([2**40])).tolist() == [2317015842244618714]
    assert row_seeds(2**70, 3, np.array([5])).tolist() == [4248470273136064524]
    assert batch_seeds(7, 0, np.array([0, 1])).tolist() == [3732299004476382103, 2130111230217822637]
    assert worker_seed(7, 0) == 6391866835040194309


def test_the_random_numbers_of_a_row_are_pinned() -> None:
    row = next(iter(yoga.DataLoader(NOISY, 1, seed=7, collate_fn=list)))[0]
    assert row == pytest.approx(NUMBERS)
    shuffled = sum(yoga.DataLoader(NOISY, 4, True, seed=7, collate_fn=list), [])
    assert [found for found in shuffled if found[0] == 0] == [row]


def test_seeds_are_below_two_to_the_63_and_differ() -> None:
    many = [row_seeds(seed, epoch, np.arange(10_000)).tolist() for seed in (0, 1) for epoch in (0, 1)]
    many.append(batch_seeds(0, 0, np.arange(10_000)).tolist())
    flat = list(itertools.chain(*many))
    assert len(set(flat)) == len(flat) == 50_000
    assert 0 <= min(flat) < max(flat) < 2**63
    assert all(0 <= worker_seed(0, epoch) < 2**63 for epoch in range(100))
    bits = np.array(flat)[:, None] >> np.arange(63) & 1
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.011  # 5 standard deviations


def seldom(draw: Any) -> Callable[[int], Any]:
    """A row of which one in a thousand draws, and by one generator only."""
    return lambda index: [index, draw() if index % 1000 == 700 else 0.0]


def _gauss() -> float:
    return random.gauss(0, 1)


def _torch() -> float:
    return float(torch.rand(()))


def _forked() -> float:
    with torch.random.fork_rng(devices=[]):  # which puts torch's generator back
        return _torch()


def _round() -> float:
    """All words of Python's twister: its position is the same after it."""
    return [random.getrandbits(32) for _ in range(624)][-1] / 2**32


def _numpy_round() -> float:
    return np.random.bytes(4 * 624)[-1] / 256


def _torch_round() -> float:
    return float(torch.rand(624)[-1])


DRAWS = [random.random, _gauss, np.random.rand, np.random.randn, _torch, _forked, torch.initial_seed]


@pytest.mark.quick("MT19937-random", "MT19937-_forked", "PCG64-rand")
@pytest.mark.parametrize("draw", [*DRAWS, _round, _numpy_round, _torch_round])
@pytest.mark.parametrize("generator", GENERATORS[:2], indirect=True)
def test_a_row_that_seldom_draws_is_not_missed(draw: Any, generator: Any) -> None:
    data, options = Mapped(2000, seldom(draw)), {"shuffle": True, "seed": 5, "collate_fn": list}
    drawn()  # an odd number of normal ones: one is held ready

    def standing() -> tuple[object, ...]:
        return random.getstate(), torch.get_rng_state().tolist(), str(np.random.get_state(legacy=False))

    before = standing()
    expected = sum(yoga.DataLoader(data, 64, seed_rows=True, **options), [])
    for size, workers in ((64, 0), (7, 0), (None, 0), (32, 2)):
        batches = list(yoga.DataLoader(data, size, num_workers=workers, **options))
        assert (batches if size is None else sum(batches, [])) == expected
        assert standing() == before


def _python_word() -> None:
    version, words, normal = random.getstate()
    random.setstate((version, (*words[:300], words[300] ^ 1, *words[301:]), normal))


def _numpy_word() -> None:
    state: Any = np.random.get_state(legacy=False)
    state["state"]["key"][300] ^= 1
    np.random.set_state(state)


def _torch_word() -> None:
    state = torch.default_generator.get_state()
    state[24 + 8 * 300] ^= 1
    torch.default_generator.set_state(state)


LITTLE = {
    "a word": {"python": _python_word, "numpy": _numpy_word, "torch": _torch_word},
    "a number": {"python": _gauss, "numpy": np.random.randn, "torch": lambda: torch.randn(())},
}


@pytest.mark.parametrize("little", LITTLE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lies_there", [True, False])
def test_a_word_or_a_normal_number_that_was_held_tells_which_generator_was_used(
    little: str, kind: str, lies_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not lies_there:
        monkeypatch.setattr(seeding, "_PYTHONS", None)
        monkeypatch.setattr(seeding, "_torch_view", lambda: None)
    others = [other for other in KINDS if other != kind]
    for draw in (drawn, np.random.rand):  # normal numbers are held; NumPy holds none
        draw()
        before = generators()
        for kinds, strayed in ((), True), (others, True), ([kind], False), (KINDS, False):
            context = GeneratorsPutBack(kinds)
            with context:
                seeder(set(kinds) - {kind})(5)
                LITTLE[little][kind]()
            assert context.strayed is strayed
            assert generators() == before


def test_a_normal_number_that_numpy_holds_is_not_drawn_by_rows() -> None:
    np.random.randn()
    held, state = generators(), np.random.get_state(legacy=False)
    for is_new in (True, False):
        watched = GeneratorsPutBack(())
        with watched:
            np.random.randn()
        assert watched.strayed
        if is_new:
            assert generators() == held
            np.random.randn()  # that number: no word is drawn
            free = generators()
            with GeneratorsPutBack(()):
                pass
            assert generators() == free
            np.random.set_state(state)  # held again, as no place shows


def test_the_state_of_torchs_generator_is_read_where_it_lies_or_else_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_found() -> bool:
        seeding._torch_view.cache_clear()
        return seeding._torch_view() is not None

    class Nowhere:
        _cdata = 4096  # an address without memory

    copied = seeding._copied
    assert is_found() is (sys.platform == "linux")
    expected = list(yoga.DataLoader(NOISY, 4, seed=3, collate_fn=list))
    for wrong in (
        lambda generator, at, size: copied(generator, at, size)[:-1],
        lambda generator, at, size: copied(generator, at, size)[:-1] + b"\2",
        lambda generator, at, size: copied(generator, at + at // 80, size),
        lambda generator, at, size: copied(Nowhere(), at, size),
    ):
        monkeypatch.setattr(seeding, "_copied", wrong)
        assert not is_found()
        assert list(yoga.DataLoader(NOISY, 4, seed=3, collate_fn=list)) == expected
    monkeypatch.undo()
    assert is_found() is (sys.platform == "linux")


def test_an_interrupt_anywhere_leaves_the_loops_generators_where_they_are() -> None:
    functions = {"_enter", "leave", "_kept", "_put_back", "where"}

    def interrupting(frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_filename != seeding.__file__ or frame.f_code.co_name not in functions:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == at:
                raise KeyboardInterrupt
        return interrupting

    for held, kinds in itertools.product((True, False), (KINDS, ())):
        for at in range(1, 200):
            (np.random.randn if held else drawn)()
            before, lines = generators(), list[int]()
            sys.settrace(interrupting)
            try:
                with GeneratorsPutBack(kinds, notes=True):
                    seeder(kinds)(at)
                    drawn()
            except KeyboardInterrupt:
                found = "interrupted"
            else:
                found = "ended"
            finally:
                sys.settrace(None)
            assert generators() == before
            assert torch.random.default_generator is torch.default_generator  # type: ignore[attr-defined]
            assert not seeding._entered.contexts
            if found == "ended":
                break
        assert 20 < at < 199


class Lazy(Mapping[str, float]):
    """A row whose value is drawn when it is looked at."""

    def __getitem__(self, _: str) -> float:
        return random.random() + np.random.rand() + float(torch.rand(()))

    def __iter__(self) -> Iterator[str]:
        return iter("x")

    def __len__(self) -> int:
        return 1


def test_what_is_drawn_while_rows_are_collated_or_listed_is_not_the_loops() -> None:
    class Listed(Mapped):
        def __getitems__(self, rows: list[int]) -> Any:
            return (random.random() + np.random.rand() for _ in rows)

    loaders = [
        *(yoga.DataLoader(Mapped(8, lambda _: Lazy()), size, seed=3) for size in (4, None)),
        yoga.DataLoader(Listed(8, int), 4, seed=3, collate_fn=list),
    ]
    for loader in loaders:
        before = generators()
        assert len(list(loader)) in (2, 8)
        assert generators() == before


def test_a_number_that_a_thread_draws_while_states_are_taken_stays_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawing(**options: Any) -> Any:
        """As if a thread drew meanwhile."""
        if left:
            left.pop()()
        return get_state(**options)

    get_state, left = np.random.get_state, list[Callable[[], object]]([random.random, _torch])
    monkeypatch.setattr(np.random, "get_state", drawing)
    np.random.rand()
    with GeneratorsPutBack(()):
        assert not left
        begun = random.getstate(), torch.get_rng_state().tolist()
        drawn()
    assert begun == (random.getstate(), torch.get_rng_state().tolist())


@pytest.mark.parametrize("error", [KeyboardInterrupt, StopIteration])
def test_an_interrupt_of_rows_that_draw_after_all_and_the_stop_of_others_reach_the_loop(error: Any) -> None:
    left = [error]

    def row(index: int) -> int:
        if index == 700 and left:
            if error is KeyboardInterrupt:
                random.random()
            raise left.pop()
        return index

    before, found = generators(), list[Any]()
    rows = itertools.chain.from_iterable(yoga.DataLoader(Mapped(800, row), 8, seed=5, collate_fn=list))
    with pytest.raises(RuntimeError if error is StopIteration else error):
        found.extend(rows)
    assert found == list(range(696))
    assert generators() == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_torchs_functions_ask_the_generator_itself_after_the_last_context(order: tuple[int, int]) -> None:
    contexts = [GeneratorsPutBack((), notes=True) for _ in order]
    for context in contexts:
        context.__enter__()
    for number, expected in zip(order, (seeding.torch_noted, torch.default_generator), strict=True):
        contexts[number].__exit__()
        assert torch.random.default_generator is expected  # type: ignore[attr-defined]


def test_rows_that_draw_nothing_are_made_once_and_a_batch_that_draws_after_all_twice() -> None:
    made: list[int] = []

    row = seldom(random.random)

    def noting(index: int) -> Any:
        made.append(index)
        if index == 1990 and random.random() < 2:
            raise KeyError("a row that draws, and fails")
        return row(index)

    batches = iter(yoga.DataLoader(Mapped(2000, noting), 10, seed=5, collate_fn=list))
    rows = [number for _ in range(199) for number, *_ in next(batches)]
    assert rows == list(range(1990))
    assert [number for number in rows if made.count(number) == 2] == list(range(700, 710))
    with pytest.raises(KeyError):
        next(batches)
    assert made.count(1990) == 1  # each row is seeded by now


class Together(Mapped):
    """Rows that come by one call: their number, a number that may be drawn, and how many came together."""

    def __init__(self, draw: Any = float) -> None:
        super().__init__(64)
        self.draw, self.calls = draw, 0

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError("torch's loader does not ask for it")

    def __getitems__(self, rows: list[int]) -> Any:
        self.calls += 1
        return [(row, self.draw(), len(rows)) for row in rows]


AROUND: dict[str, Any] = {
    "itself": lambda data: data,
    "Subset": lambda data: Subset(Subset(data, range(63, -1, -1)), range(64)),
    "StackDataset": lambda data: StackDataset(data, torch.arange(64)),
}


@pytest.mark.parametrize("around", AROUND)
def test_rows_that_come_by_one_call_and_draw_nothing_are_asked_for_once_a_batch(around: str) -> None:
    data = Together()
    for workers in (0, 2):
        loader = yoga.DataLoader(AROUND[around](data), 16, True, seed=5, num_workers=workers, collate_fn=list)
        rows = [row if around != "StackDataset" else row[0] for batch in loader for row in batch]
        assert sorted(number for number, *_ in rows) == list(range(64))
        assert {together for *_, together in rows} == {16}
        assert data.calls == 4  # those of workers are counted there


@pytest.mark.quick("itself-*", "*-random")
@pytest.mark.parametrize("draw", [random.random, _gauss, np.random.randn, _torch])
@pytest.mark.parametrize("around", AROUND)
def test_rows_that_come_by_one_call_and_draw_are_the_same_in_any_batch(around: str, draw: Any) -> None:
    seldom = iter(range(10**6))  # the first 20 rows draw nothing: a batch by one call is nothing else
    data = Together(lambda: draw() if next(seldom) > 20 else 0.5)
    with pytest.warns(UserWarning, match="__getitems__ draws random numbers.*draw in collate_fn"):
        found = sum(yoga.DataLoader(AROUND[around](data), 16, seed=5, collate_fn=list), [])
    assert data.calls == 1 + 1 + 3 * 16  # one by one call, one again, and those after it
    data = Together(draw)
    for workers, size in ((0, 9), (2, 32)):
        loader = yoga.DataLoader(AROUND[around](data), size, seed=5, num_workers=workers, collate_fn=list)
        with pytest.warns(UserWarning, match="__getitems__ draws random numbers") as warned:
            both = sum(loader, []), sum(loader, [])
        assert both[0][16:] == found[16:] != both[1][16:]
        assert len(warned) == 1
    whole = sum(yoga.DataLoader(AROUND[around](data), 8, seed=5, seed_rows=True, collate_fn=list), [])
    assert whole[16:] == found[16:]


def test_rows_that_come_by_one_call_and_ask_for_the_seed_are_the_same_in_any_batch() -> None:
    data = Together(torch.initial_seed)
    found = []
    for size, workers, options in ((1, 0, {"seed_rows": True}), (9, 0, {}), (16, 2, {})):
        loader = yoga.DataLoader(data, size, seed=5, num_workers=workers, collate_fn=list, **options)
        with contextlib.nullcontext() if options else pytest.warns(UserWarning, match="torch.initial_seed"):
            found.append([own for batch in loader for _, own, _ in batch])
    assert len(set(found[0])) == 64
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert torch.random.default_generator is torch.default_generator  # type: ignore[attr-defined]

    def fails() -> None:
        torch.initial_seed()
        raise KeyError

    with pytest.raises(KeyError), pytest.warns(UserWarning, match="torch.initial_seed"):
        next(iter(yoga.DataLoader(Together(fails), 8, seed=5)))
    assert torch.random.default_generator is torch.default_generator  # type: ignore[attr-defined]


def test_a_batch_that_a_dataset_collates_is_seeded_as_one_and_a_row_that_fails_is_not_made_again() -> None:
    class Whole(Together):
        def __getitems__(self, rows: list[int]) -> Any:
            self.calls += 1
            if 60 in rows:
                raise KeyError("row 60")
            return {"rows": rows, "noise": torch.rand(len(rows))}

    data = Whole()
    batches = iter(yoga.DataLoader(data, 16, seed=5, collate_fn=lambda batch: batch))
    noise = [next(batches)["noise"].tolist() for _ in range(3)]
    with pytest.raises(KeyError):
        next(batches)
    assert data.calls == 4
    loader = yoga.DataLoader(data, 16, seed=5, collate_fn=lambda batch: batch, num_workers=2)
    assert [batch["noise"].tolist() for batch in itertools.islice(loader, 3)] == noise


def test_numpy_and_torch_do_not_draw_the_same_bits() -> None:
    seed_all = seeder()
    with GeneratorsPutBack():
        for seed in row_seeds(0, 0, np.arange(50)).tolist():
            seed_all(seed)
            assert float(torch.rand(1, dtype=torch.float64)) != np.random.rand()


def test_a_generator_that_others_put_in_place_stays_theirs() -> None:
    theirs = np.random.MT19937(3)
    with GeneratorsPutBack():
        np.random.set_bit_generator(theirs)  # type: ignore[attr-defined]
    before = str(theirs.state)
    with GeneratorsPutBack():
        seeder()(5)
        np.random.rand()
    assert str(theirs.state) == before


def test_rows_are_seeded_whatever_generator_numpy_has(generator: Any) -> None:
    whole = list(yoga.DataLoader(NOISY, 4, True, seed=5))
    assert_rows_equal(list(yoga.DataLoader(NOISY, 4, True, seed=5, num_workers=2)), whole)
    singles = list(itertools.islice(yoga.DataLoader(NOISY, None, True, seed=5), 4))
    assert singles == [[part[i].item() for part in whole[0]] for i in range(4)]
    assert type(np.random.get_bit_generator()) is generator  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_seed_is_a_tensor(workers: int) -> None:
    def ask(_: int) -> None:
        torch.tensor([torch.initial_seed()])

    for seed in range(4):
        loader = yoga.DataLoader(
            Mapped(50, lambda _: torch.tensor([torch.initial_seed()])),
            10,
            seed=seed,
            num_workers=workers,
            worker_init_fn=ask,
        )
        assert len(torch.cat(list(loader)).unique()) == 50


class Sub(list[int]):
    pass


class Tensors(TensorDataset):
    pass


PLAIN: dict[str, Any] = {
    "list": [1, 2],
    "tuple": (1, 2),
    "range": range(2),
    "dict": {0: 1, 1: 2},
    "array": np.arange(2),
    "array.array": array.array("i", [1, 2]),
    "tensor": torch.arange(2),
    "TensorDataset": TensorDataset(torch.arange(2)),
    "DataRef": InFiles(),
    "Subset": Subset([1, 2], [0, 1]),  # type: ignore[arg-type]
    "Subset of Subset": Subset(Subset(np.arange(3), [0, 1]), [0, 1]),  # type: ignore[arg-type]
    "ConcatDataset": ConcatDataset([[1], TensorDataset(torch.arange(2))]),  # type: ignore[list-item]
    "StackDataset": StackDataset([1, 2], np.arange(2)),  # type: ignore[arg-type]
    "named StackDataset": StackDataset(a=[1, 2], b=InFiles([2])),  # type: ignore[arg-type]
    "random_split": random_split(range(9), [0.5, 0.5])[0],  # type: ignore[arg-type]
    "mixed": ConcatDataset([InFiles(), [1]]),  # type: ignore[list-item]
}
FREE: dict[str, Any] = {
    "Dataset": NOISY,
    "subclass": Sub([1, 2]),
    "subclass of TensorDataset": Tensors(torch.arange(2)),
    "UserList": UserList([1, 2]),
    "Subset": Subset(NOISY, [1]),
    "indices": Subset([1, 2], UserList([0])),  # type: ignore[arg-type]
    "ConcatDataset": ConcatDataset([[1], NOISY]),  # type: ignore[list-item]
    "StackDataset": StackDataset(range(21), NOISY),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(
    ("dataset", "draws"),
    [
        *(pytest.param(dataset, False, id=f"plain {name}") for name, dataset in PLAIN.items()),
        *(pytest.param(dataset, True, id=f"free {name}") for name, dataset in FREE.items()),
    ],
)
def test_datasets_that_may_draw_random_numbers_are_seeded(dataset: Any, draws: bool) -> None:
    assert draws_random_numbers(dataset) is draws
    assert yoga.DataLoader(dataset).seed_rows is draws
    assert yoga.DataLoader(dataset, seed_rows=True).seed_rows
    assert not yoga.DataLoader(dataset, seed_rows=False).seed_rows


# -- collate functions


def mixed_up(rows: Any) -> Any:
    """A batch and the numbers it was mixed with."""
    return list(rows), drawn()


class Few(Own):
    """Small rows, so that many batches are read at once; one row of choice cannot be read."""

    is_thread_safe, _row_bytes = True, 8  # type: ignore[assignment]

    def __init__(self, bad: int = -1) -> None:
        super().__init__(range(45))
        self.bad = bad

    def take(self, rows: Any) -> Any:
        if self.bad in rows:
            raise OSError(f"row {self.bad}")
        return super().take(rows)


def batches(loader: Any) -> dict[tuple[int, ...], Any]:
    found = {tuple(rows): numbers for rows, numbers in loader}
    assert len({tuple(numbers) for numbers in found.values()}) == len(found)
    return found


@pytest.mark.quick("a dataset")
@pytest.mark.parametrize(
    "data", [Few(), list(range(45)), Subset(Few(), range(45))], ids=["a dataset", "a list", "a subset"]
)  # type: ignore[arg-type]
def test_a_collate_function_draws_the_same_under_any_workers_and_after_any_resume(data: Any) -> None:
    def loader(**options: Any) -> yoga.DataLoader:
        return yoga.DataLoader(data, 4, True, seed=3, collate_fn=mixed_up, **options)

    torch.manual_seed(1)
    whole, again = loader(), loader(num_workers=2)
    epochs = [batches(whole), batches(whole)]
    assert [batches(again), batches(again)] == epochs
    assert epochs[0].keys() != epochs[1].keys()
    assert not {tuple(n) for n in epochs[0].values()} & {tuple(n) for n in epochs[1].values()}
    for workers, stop in ((0, 1), (2, 5), (0, 11), (1, 7)):
        one, other = loader(num_workers=workers), loader(num_workers=2 - workers)
        got = dict(itertools.islice(((tuple(rows), numbers) for rows, numbers in one), stop))
        other.load_state_dict(one.state_dict())
        assert {**got, **batches(other)} == epochs[0]
    assert batches(loader(num_workers=2, in_order=False)) == epochs[0]
    assert batches(loader(prefetch_factor=0) if isinstance(data, DataRef) else loader()) == epochs[0]


def test_batches_that_were_overtaken_draw_the_same_when_they_come() -> None:
    def loader(**options: Any) -> yoga.DataLoader:
        return yoga.DataLoader(Few(), 4, True, seed=3, collate_fn=mixed_up, remainder="keep", **options)

    whole, one = list(loader()), loader()
    run = one.sampler.indices.begin(IterationOptions(4, in_order=False))
    for step in (0, 2, 3):
        run.deliver(step)
    one.sampler.indices.cursor.reached(run)
    other = loader(num_workers=1)
    other.load_state_dict(one.state_dict())
    assert list(other) == [whole[1], *whole[4:]]


def test_each_rank_and_each_epoch_draws_its_own() -> None:
    found = [
        yoga.DataLoader(Few(), 4, seed=3, collate_fn=mixed_up, num_replicas=3, rank=rank) for rank in range(3)
    ]
    numbers = [tuple(drawn) for loader in found for _ in range(2) for _, drawn in loader]
    assert len(set(numbers)) == len(numbers) == 24


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_fails_changes_no_other(workers: int) -> None:
    def loader(bad: int, workers: int) -> yoga.DataLoader:
        return yoga.DataLoader(Few(bad), 4, True, seed=3, collate_fn=mixed_up, num_workers=workers)

    whole, found = batches(loader(-1, 0)), {}
    iterator, failed = iter(loader(17, workers)), 0
    while True:
        try:
            rows, numbers = next(iterator)
            found[tuple(rows)] = numbers
        except StopIteration:
            break
        except OSError:
            failed += 1
    assert failed == 1
    assert len(found) == len(whole) - 1
    assert found.items() <= whole.items()


@pytest.mark.parametrize("data", [Few(), NOISY, list(range(9))], ids=["ref", "random", "list"])
def test_single_rows_are_converted_with_numbers_of_their_own(data: Any) -> None:
    def convert(row: Any) -> Any:
        return row, drawn()

    def loader(**options: Any) -> yoga.DataLoader:
        return yoga.DataLoader(data, None, True, seed=3, collate_fn=convert, **options)

    whole = list(loader())
    assert len({tuple(numbers) for _, numbers in whole}) == len(whole)
    assert list(loader(num_workers=2)) == whole
    one, other = loader(), loader(num_workers=1)
    iterator = iter(one)
    got = [next(iterator) for _ in range(4)]
    other.load_state_dict(one.state_dict())
    assert got + list(other) == whole


@pytest.mark.parametrize("data", [Few(), NOISY, list(range(9))], ids=["ref", "random", "list"])
@pytest.mark.parametrize("size", [4, None])
def test_the_users_generators_are_put_back_after_a_batch(data: Any, size: int | None, generator: Any) -> None:
    def seeded() -> None:
        random.seed(1)
        np.random.set_bit_generator(generator(1))  # type: ignore[attr-defined]
        torch.manual_seed(1)

    seeded()
    expected = [drawn() for _ in range(5)]
    seeded()
    loader = yoga.DataLoader(data, size, True, seed=3, collate_fn=mixed_up if size else lambda row: drawn())
    found = [drawn()]
    for _ in itertools.islice(loader, 2):
        found.append(drawn())
    loader.state_dict()
    with pytest.warns(UserWarning, match="rows are left out"):
        list(loader)
    found.append(drawn())

    def fail(rows: Any) -> Any:
        drawn()
        raise RuntimeError("no batch")

    with pytest.raises(RuntimeError, match="no batch"):
        next(iter(yoga.DataLoader(data, size, seed=3, collate_fn=fail)))
    found.append(drawn())
    assert found == expected


def test_without_seeding_a_collate_function_draws_as_in_torch() -> None:
    def collate(rows: Any) -> Any:
        return float(torch.rand(1))

    torch.manual_seed(1)
    expected = [float(torch.rand(1)) for _ in range(3)]
    for data in (Few(), list(range(45))):
        torch.manual_seed(1)
        loader = yoga.DataLoader(data, 4, collate_fn=collate, seed_rows=False)
        assert list(itertools.islice(loader, 3)) == expected


def test_unseeded_rows_of_an_epochs_workers_draw_the_same_after_a_resume() -> None:
    """The worker seeds depend on (seed, epoch), so that an epoch comes out the same if it begins anew."""

    def loader() -> yoga.DataLoader:
        return yoga.DataLoader(NOISY, 3, True, seed=5, seed_rows=False, num_workers=2)

    torch.manual_seed(1)
    whole = loader()
    epochs = [list(whole) for _ in range(2)]
    assert not torch.equal(epochs[0][0][1], epochs[1][0][1])
    torch.manual_seed(2)
    assert_rows_equal(list(loader()), epochs[0])
    resumed = loader()
    resumed.load_state_dict({**resumed.state_dict(), "epoch": 1})
    assert_rows_equal(list(resumed), epochs[1])


def test_functions_of_ours_and_torchs_are_not_seeded() -> None:
    rows = [{"x": np.arange(3)}] * 9
    for collate in (None, yoga.jagged, yoga.padded(), torch.utils.data.default_collate):
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        loader = yoga.DataLoader(rows, 4, collate_fn=collate)
        with calls_of(batch_seeds) as seeded:
            assert len(list(loader)) == 3
        assert not seeded
        assert states[0] == random.getstate()
        assert torch.equal(states[2], torch.get_rng_state())


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 2, 1), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("generator", GENERATORS[:2], indirect=True)
def test_contexts_of_threads_may_end_in_any_order(order: tuple[int, ...], generator: Any) -> None:
    drawn()
    expected, bits = generators(), np.random.get_bit_generator()  # type: ignore[attr-defined]
    for _ in range(2):  # the second time with what the first has left
        contexts = [GeneratorsPutBack() for _ in order]
        for context in contexts:
            context.__enter__()
            seeder()(5)
            drawn()
        for number in order:
            contexts[number].__exit__()
        with GeneratorsPutBack():
            assert np.random.get_bit_generator() is not bits or generator is not np.random.MT19937  # type: ignore[attr-defined]
            drawn()
        assert generators() == expected
        assert np.random.get_bit_generator() is bits  # type: ignore[attr-defined]


def test_loaders_of_threads_leave_the_generators_as_they_were() -> None:
    barrier = threading.Barrier(2, timeout=20)

    def met(index: int) -> Any:
        """A row that is made while another thread makes the same one."""
        barrier.wait()
        return noisy(index)

    data, before, bits = Mapped(21, met), generators(), np.random.get_bit_generator()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        epochs = pool.map(
            lambda seed: len(list(yoga.DataLoader(data, 2, seed=seed, collate_fn=list))), range(2)
        )
        assert list(epochs) == [11, 11]
    assert (generators(), np.random.get_bit_generator()) == (before, bits)  # type: ignore[attr-defined]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_puts_back_what_its_parent_had_beside_another_thread() -> None:
    before, entered, leave = generators(), threading.Event(), threading.Event()

    def stay() -> None:
        with GeneratorsPutBack(notes=True):
            seeder()(6)
            entered.set()
            leave.wait(60)

    with GeneratorsPutBack():
        seeder()(5)
        thread = threading.Thread(target=stay)
        thread.start()
        assert entered.wait(60)
        child = os.fork()
    if child == 0:
        is_torchs = torch.random.default_generator is torch.default_generator  # type: ignore[attr-defined]
        becoming.leave(0 if generators() == before and is_torchs else 1)
    leave.set()
    thread.join(60)
    assert os.waitpid(child, 0)[1] == 0
    assert generators() == before
