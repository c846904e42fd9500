"""What trainers do with a loader besides iterating it."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerators import forget_accelerators, quiet_trainer
from own import Mapped
from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchLoader

import torchyoga as yoga
from torchyoga.errors import StateError

LENGTH = 10


def loader(**options: Any) -> yoga.DataLoader:
    return yoga.DataLoader(list(range(LENGTH)), 4, True, seed=5, **options)


def rows_of(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


WHOLE = rows_of(loader())


def with_noise(row: int) -> torch.Tensor:
    return row + torch.rand(1)


def but_one(row: int) -> torch.Tensor:
    if row == 5:
        raise OSError("row 5")
    return torch.tensor(row)


NOISY = Mapped(LENGTH, with_noise)


class Unsized:
    """Batches of numbers, without a length and without a truth value."""

    batch_size = 2

    def __iter__(self) -> Any:
        return iter([[1, 2], [3, 4], [5]])

    def __len__(self) -> int:
        raise TypeError("no length")

    def __bool__(self) -> bool:
        raise TypeError("no truth value")


def mixed(rows: Sequence[Any]) -> torch.Tensor:
    return torch.stack([torch.as_tensor(row) for row in rows]) * random.random()


# -- Accelerate


@pytest.mark.xdist_group("accelerate")
class TestAccelerate:
    def test_prepare_leaves_a_loader_as_it_is(self, accelerator: Any, tmp_path: Path) -> None:
        one = loader()
        assert accelerator.prepare(one) is one
        assert accelerator.prepare_data_loader(one) is one
        assert (one.total_batch_size, one.total_dataset_length) == (4, LENGTH)
        first = next(iter(one)).tolist()
        accelerator.save_state(str(tmp_path / "state"))
        accelerator.free_memory()
        other = accelerator.prepare(loader())
        accelerator.load_state(str(tmp_path / "state"))
        assert [first, *rows_of(other)] == WHOLE

    def test_ranks_that_were_given_divide_a_loader_before_it_is_prepared(self, accelerator: Any) -> None:
        one, other = loader(num_replicas=2, rank=1), loader(num_replicas=2, rank=0)
        assert (len(one), len(other), len(loader())) == (2, 2, 3)
        assert (len(list(one)), len(one), len(accelerator.prepare(other))) == (2, 2, 2)
        foreign = yoga.DataLoader(list(range(LENGTH)), 2, sampler=range(5), num_replicas=2, rank=0)
        assert (len(foreign), len(accelerator.prepare(foreign))) == (3, 3)

    def test_the_end_of_a_loop_is_reported_also_within_another_loop(self, accelerator: Any) -> None:
        outer, inner = accelerator.prepare(loader(), loader(remainder="keep"))
        state, seen = accelerator.gradient_state, []
        for _ in range(2):
            for batch in outer:
                seen.append((len(batch), state.active_dataloader is outer, state.end_of_dataloader))
                for _ in inner:
                    assert state.active_dataloader is inner
                assert (state.end_of_dataloader, state.remainder) == (len(batch) == 2, 2)
        assert seen == [(4, True, False), (4, True, False), (2, True, True)] * 2
        assert not state.in_dataloader
        next(iter(outer))  # a look
        assert len(list(itertools.islice(outer, 2))) == 2  # left early
        with pytest.warns(UserWarning, match="was left after 8 of 10 rows"):
            assert len(rows_of(outer)) == 3
        assert not state.in_dataloader

    def test_batches_that_it_skips_are_not_made_twice(self) -> None:
        from accelerate.data_loader import SkipBatchSampler

        def batches() -> Any:
            return yoga.ResumableBatchSampler(yoga.ResumableSampler(20, seed=1), 4)

        expected = list(batches())
        for state in (None, {**yoga.ResumableSampler(20, seed=1).state_dict(), "position": 8, "steps": 2}):
            one = batches()
            if state is not None:
                one.load_state_dict({**state, "proof": None})
            with pytest.warns(UserWarning, match="the trainer finds its place by skipping batches"):
                rest = list(SkipBatchSampler(one, skip_batches=2))
            assert rest == expected[2:]

    def test_batches_of_a_batch_sampler_without_a_length_are_skipped(self, accelerator: Any) -> None:
        from accelerate import skip_first_batches

        one = accelerator.prepare(yoga.DataLoader(list(range(LENGTH)), batch_sampler=Unsized()))
        rest = skip_first_batches(one, 1)
        assert rest.batch_sampler.batch_sampler.batch_size == 2
        assert rows_of(rest) == [[3, 4], [5]]

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"collate_fn": mixed},
            {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "timeout": 60},
        ],
        ids=["rows", "collate function", "workers"],
    )
    @pytest.mark.filterwarnings("ignore:the trainer finds its place")
    def test_skipped_batches_are_those_of_the_whole_run(
        self, accelerator: Any, options: dict[str, Any]
    ) -> None:
        from accelerate import skip_first_batches

        def make() -> Any:
            return accelerator.prepare(yoga.DataLoader(NOISY, 4, True, seed=5, **options))

        whole = make()
        for epoch in (0, 1):
            expected = [batch.tolist() for batch in whole]
            for skipped in (1, 2, 3):
                one, found, ends = make(), [], []
                one.set_epoch(epoch)
                torch.manual_seed(3)
                numbers = torch.rand(3)
                torch.manual_seed(3)
                rest = skip_first_batches(one, skipped)
                assert (len(rest), len(rest.dataset)) == (3 - skipped, LENGTH)
                for step, batch in enumerate(rest, skipped + 1):
                    found.append(batch.tolist())
                    ends.append(accelerator.gradient_state.end_of_dataloader)
                    expected_place = (epoch, 4 * step) if step < 3 else (epoch + 1, 0)
                    assert tuple(one.state_dict()[name] for name in ("epoch", "position")) == expected_place
                assert found == expected[skipped:]
                assert ends == [False, False, True][skipped:]
                assert torch.equal(torch.rand(3), numbers)  # nothing was drawn from the loop's generator
                assert one.prove()
                assert one.prove().rows == LENGTH
                assert one.dataset is NOISY
                assert one.num_workers == options.get("num_workers", 0)

    @pytest.mark.filterwarnings("ignore:the trainer finds its place")
    def test_an_epoch_of_which_some_was_skipped_is_stopped_and_resumed(self, accelerator: Any) -> None:
        from accelerate import skip_first_batches

        one = yoga.DataLoader(NOISY, 2, True, seed=5, num_workers=2)
        whole = [batch.tolist() for batch in one]
        for rank in (0, 1):
            one = yoga.DataLoader(NOISY, 1, True, seed=5, num_workers=2, num_replicas=2, rank=rank)
            batches = iter(skip_first_batches(one, 2))
            assert next(batches).tolist() == whole[2][rank : rank + 1]
            later = yoga.DataLoader(NOISY, 2, True, seed=5)
            later.load_state_dict(one.state_dict())
            assert [batch.tolist() for batch in later] == whole[3:]
            assert later.prove()
            assert one.state_after(0)["position"] == 4  # skipped batches belong to no iteration of ours

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.filterwarnings("ignore:the trainer finds its place")
    def test_a_failing_batch_after_skipped_ones_does_not_end_the_epoch(
        self, accelerator: Any, workers: int
    ) -> None:
        from accelerate import skip_first_batches

        one = yoga.DataLoader(Mapped(LENGTH, but_one), 2, num_workers=workers)
        batches = iter(skip_first_batches(one, 1))
        assert next(batches).tolist() == [2, 3]
        with pytest.raises(OSError, match="row 5"):
            next(batches)
        assert rows_of(batches) == [[6, 7], [8, 9]]
        assert not one.prove()

    def test_rows_that_would_lose_their_seeds_are_refused(self, accelerator: Any) -> None:
        from accelerate.data_loader import SkipBatchSampler

        one = yoga.DataLoader(NOISY, 4, True, seed=5)
        theirs = TorchLoader(one.dataset, batch_sampler=SkipBatchSampler(one.batch_sampler, 2))
        with (
            pytest.warns(UserWarning, match="finds its place by skipping batches"),
            pytest.raises(StateError, match=r"delete that line, and load the loader's state_dict\(\)"),
        ):
            list(theirs)

    def test_uneven_batches_are_those_it_keeps(self, accelerator: Any) -> None:
        one = accelerator.prepare(loader(num_replicas=3, rank=1))
        assert one.batch_sampler.even_batches
        assert len(rows_of(one)[-1]) + 4 * (len(one) - 1) == 4
        one.batch_sampler.even_batches = False
        assert sum(map(len, rows_of(one))) == 3
        one.batch_sampler.even_batches = True
        assert one.batch_sampler.sampler.remainder == "pad"

    def test_processes_that_would_wait_for_each_other_are_warned_of(self, accelerator: Any) -> None:
        one = accelerator.prepare(loader(num_replicas=3, rank=1, remainder="keep"))
        with pytest.warns(UserWarning, match="10 rows do not divide into 3 processes.*Leave it at"):
            next(iter(one))
        assert sum(map(len, rows_of(one))) == 3  # it is said once
        for even in (loader(num_replicas=3, rank=1), loader(num_replicas=2, rank=1, remainder="keep")):
            rows_of(accelerator.prepare(even))

    @pytest.mark.parametrize("even", [True, False])
    def test_a_sampler_is_not_sharded_twice(self, even: bool) -> None:
        from accelerate.data_loader import BatchSamplerShard

        def shards(**ranks: Any) -> list[Any]:
            given = [BatchSampler(yoga.ResumableSampler(LENGTH, seed=5, **ranks), 2, False) for _ in range(2)]
            return [BatchSamplerShard(one, 2, rank, even_batches=even) for rank, one in enumerate(given)]

        dealt = [list(one) for one in shards()]
        found = [row for step in itertools.zip_longest(*dealt) for batch in step for row in batch or []]
        assert found[:LENGTH] == sum(WHOLE, [])
        assert [len(one) for one in shards()] == [len(rank) for rank in dealt]
        for one in shards(num_replicas=2, rank=1):
            with pytest.raises(ValueError, match="the sampler is rank 1 of 2 already, so most rows"):
                list(one)

    def test_torchs_loader_works_with_a_warning(self, accelerator: Any) -> None:
        theirs = TorchLoader(list(range(LENGTH)), 4, sampler=yoga.ResumableSampler(LENGTH, seed=5))
        one = accelerator.prepare(theirs)
        with pytest.warns(UserWarning, match="huggingface/accelerate#4195"):
            assert rows_of(one) == WHOLE
        rows_of(one)

    def test_an_accelerator_that_is_gone_is_not_asked(self, accelerator: Any) -> None:
        one = accelerator.prepare(loader())
        forget_accelerators()
        assert rows_of(one) == WHOLE


def in_a_mesh(rank: int, store: str) -> None:
    import os

    import torch.distributed as dist
    from accelerate import Accelerator
    from torch.distributed.device_mesh import init_device_mesh

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    accelerator = Accelerator(cpu=True)
    # The mesh of a ParallelismConfig with two ranks that divide rows and two that see the same; a real one
    # needs a GPU.
    accelerator.state.device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
    one = accelerator.prepare(loader())
    assert (one.batch_sampler.sampler.num_replicas, one.batch_sampler.sampler.rank) == (2, rank // 2)
    mine = rows_of(one)
    assert sum(WHOLE, [])[4 * (rank // 2) :][:4] == mine[0]
    assert one.prove().rows == LENGTH
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.xdist_group("accelerate")
@pytest.mark.filterwarnings("ignore")
def test_the_mesh_of_accelerate_says_which_ranks_see_the_same_rows(tmp_path: Path) -> None:
    started = {"nprocs": 4, "start_method": "forkserver"}  # torch is imported there
    torch.multiprocessing.start_processes(in_a_mesh, (str(tmp_path / "store"),), **started)


# -- Lightning


class WithMore(yoga.DataLoader):
    """A loader with its own argument and all of ours."""

    def __init__(self, dataset: Any, more: str = "more", **options: Any) -> None:
        self.more = more
        super().__init__(dataset, **options)


class WithItsOwn(yoga.DataLoader):
    """A loader that names its arguments, in another order."""

    def __init__(self, dataset: Any, batch_size: int, more: str, **options: Any) -> None:
        self.more = more
        options.setdefault("shuffle", True)
        super().__init__(dataset, batch_size, **options)


class Forcing(yoga.DataLoader):
    """A loader that sets an argument itself."""

    def __init__(self, dataset: Any, batch_size: int = 8, **options: Any) -> None:
        super().__init__(dataset, max(batch_size, 4), **{**options, "shuffle": True})


KINDS = {"ours": yoga.DataLoader, "with more": WithMore, "with its own": WithItsOwn, "forcing": Forcing}


@pytest.mark.xdist_group("lightning")
@pytest.mark.filterwarnings("ignore")
class TestLightning:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_predict_sees_all_rows_and_says_which(self, module: Any, workers: int) -> None:
        from lightning.pytorch.callbacks import BasePredictionWriter

        class Writer(BasePredictionWriter):
            def write_on_batch_end(self, *found: Any) -> None:
                told.append((found[2].tolist(), found[3]))

        told: list[Any] = []
        trainer = quiet_trainer(callbacks=[Writer("batch")])
        trainer.predict(module, loader(num_workers=workers, drop_last=True))
        assert told == [(rows, rows) for rows in WHOLE]

    def test_predict_takes_a_batch_sampler_without_a_length(self, module: Any) -> None:
        one = yoga.DataLoader(list(range(LENGTH)), batch_sampler=Unsized())
        assert rows_of(quiet_trainer().predict(module, one)) == [[1, 2], [3, 4], [5]]

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_overfit_batches_has_the_first_rows(self, module: Any, shuffle: bool) -> None:
        one = yoga.DataLoader(list(range(LENGTH)), 4, shuffle)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            quiet_trainer(overfit_batches=2, max_epochs=2).fit(module, one)
        assert shuffle or not [found for found in caught if "overfit" in str(found.message)]
        assert rows_of(module.seen) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2

    @pytest.mark.parametrize("shuffle", [False, True, "block"])
    @pytest.mark.parametrize("is_hook", [False, True])
    def test_lightning_says_that_evaluation_should_not_shuffle(
        self, module: Any, shuffle: Any, is_hook: bool
    ) -> None:
        one = yoga.DataLoader(list(range(LENGTH)), 4, shuffle)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if is_hook:
                module.test_dataloader = lambda: yoga.DataLoader(list(range(LENGTH)), 4, shuffle)
                quiet_trainer().test(module)
            else:
                quiet_trainer().test(module, one)
        assert any("turn shuffling off" in str(found.message) for found in caught) == bool(shuffle)

    @pytest.mark.parametrize("run", ["validate", "test", "predict", "fit"])
    def test_rows_that_an_evaluation_gets_twice_are_warned_of(self, module: Any, run: str) -> None:
        def warnings_of(one: Any) -> list[str]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                trainer = quiet_trainer(max_epochs=1)
                if run == "fit":
                    trainer.fit(module, loader(), one)
                else:
                    for _ in range(2):
                        getattr(trainer, run)(module, one)
            return [str(found.message) for found in caught if "twice" in str(found.message)]

        ranks = {"num_replicas": 3, "rank": 0}  # 10 rows
        expected = [f"trainer.{run}() gets 2 rows twice, as remainder='pad' gives all ranks equally many"]
        found = warnings_of(loader(**ranks))
        assert [told.partition(";")[0] for told in found] == ([] if run == "fit" else expected)
        for options in (
            {**ranks, "remainder": "keep"},
            {**ranks, "rank": 1},  # one rank says so
            {"num_replicas": 2, "rank": 0},
        ):
            assert not warnings_of(loader(**options))
        if run != "predict":  # there Lightning sets it to False
            few = yoga.DataLoader(list(range(LENGTH)), 3, drop_last=True, num_replicas=3, rank=0)
            assert not warnings_of(few)

    @pytest.mark.parametrize("steps", [1, 2, 5])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_after_a_sanity_check_validation_has_all_rows(
        self, module: Any, steps: int, shuffle: bool
    ) -> None:
        one = yoga.DataLoader(list(range(LENGTH)), 4, shuffle, seed=5)
        order = one.batch_sampler.sampler.rows_at(range(LENGTH), 0).tolist()
        trainer = quiet_trainer(max_epochs=2, num_sanity_val_steps=steps)
        proofs = []

        def ended() -> None:
            assert trainer.sanity_checking or one.prove()
            proofs.append(one.prove().rows)

        module.on_validation_epoch_end = ended
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*left out")
            trainer.fit(module, loader(), one)
        rows = sum((batch.tolist() for batch in module.validated), [])[min(4 * steps, LENGTH) :]
        assert rows[:LENGTH] == order
        assert sorted(rows[LENGTH:]) == list(range(LENGTH))
        assert proofs == [0, LENGTH, LENGTH]

    @pytest.mark.parametrize("is_hook", [False, True])
    @pytest.mark.parametrize("stage", ["fit", "predict"])
    @pytest.mark.parametrize("name", ["ours, by position", *KINDS])
    def test_a_loader_that_is_made_anew_is_the_same(self, name: str, stage: str, is_hook: bool) -> None:
        from lightning.fabric.utilities.data import _replace_dunder_methods
        from lightning.pytorch.trainer.states import RunningStage
        from lightning.pytorch.utilities.data import _update_dataloader

        def make(data: Any, draws: bool = False, **options: Any) -> Any:
            if draws:
                options["generator"] = torch.Generator().manual_seed(4)
            if name == "with its own":
                return KINDS[name](data, 4, "more", **options)
            if name == "ours, by position":
                return KINDS["ours"](data, 4, True, **options)
            return KINDS[name](data, batch_size=4, shuffle=True, **options)

        arrays = yoga.from_arrays(np.arange(LENGTH))
        mode = {"fit": RunningStage.TRAINING, "predict": RunningStage.PREDICTING}[stage]
        for data, options in (
            (NOISY, {"seed": 5, "remainder": "keep", "num_replicas": 2, "rank": 1}),
            (NOISY, {"seed": 5, "start_offset": 4, "num_workers": 2, "prefetch_factor": 3}),
            (NOISY, {"draws": True}),
            (list(range(LENGTH)), {"seed": 5, "seed_rows": False, "collate_fn": torch.tensor}),
            (arrays, {"seed": 5, "seed_rows": True}),
            (arrays, {"seed": 5, "prefetch_factor": 0}),
            (arrays, {"seed": 5, "prefetch_factor": 5, "collate_fn": mixed}),
        ):
            first, *rest = [batch.tolist() for batch in make(data, **options)]
            if is_hook:
                with _replace_dunder_methods(TorchLoader, "dataset"), _replace_dunder_methods(BatchSampler):
                    one = make(data, **options)
            else:
                one = make(data, **options)
            batches = iter(one)
            assert next(batches).tolist() == first
            one.load_state_dict(one.state_dict())
            anew = _update_dataloader(one, one.sampler, mode)
            assert type(anew) is type(one)
            for attribute in ("num_workers", "batch_size", "collate_fn", "seed_rows", "prefetch_factor"):
                assert getattr(anew, attribute) == getattr(one, attribute), attribute
            assert getattr(anew, "more", None) == getattr(one, "more", None)
            assert anew.sampler is one.sampler
            assert [batch.tolist() for batch in anew] == rest

    def test_two_loaders_at_once_and_epochs_that_are_cut_short(self, module: Any) -> None:
        pair = [loader(), yoga.DataLoader(list(range(30)), 4, True, seed=6)]
        quiet_trainer(limit_train_batches=2, max_epochs=2).fit(module, pair)
        assert rows_of(first for first, _ in module.seen)[:2] == WHOLE[:2]
        # An epoch that was cut short is left; the next one is a new one.
        assert pair[0].state_dict()["epoch"] == 1
        assert pair[1].state_dict()["position"] == 8

    @pytest.mark.parametrize(("before", "done", "after"), [(8, 2, 16), (4, 2, 16), (16, 1, 8), (8, 5, 16)])
    def test_another_batch_size_within_an_epoch_loses_nothing(
        self, module: Any, before: int, done: int, after: int, tmp_path: Path
    ) -> None:
        import lightning.pytorch as lightning

        class Save(lightning.Callback):
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                if trainer.global_step == done:
                    trainer.save_checkpoint(tmp_path / "state")
                    trainer.should_stop = True

        def of(size: int) -> Any:
            return yoga.DataLoader(list(range(64)), size, True, seed=5)

        quiet_trainer(max_epochs=3, callbacks=[Save()]).fit(module, of(before))
        got = sum(rows_of(module.seen)[:done], [])
        module.seen.clear()
        quiet_trainer(max_epochs=3).fit(module, of(after), ckpt_path=tmp_path / "state", weights_only=False)
        got += sum(rows_of(module.seen), [])
        sampler = yoga.ResumableSampler(64, seed=5)
        assert got == [row for _ in range(3) for row in sampler]


# -- Keras


@pytest.mark.xdist_group("keras")
@pytest.mark.filterwarnings("ignore")
def test_keras_may_look_at_a_batch_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    data = [(torch.full((2,), float(row)), torch.tensor(float(row))) for row in range(LENGTH)]
    one, other = (yoga.DataLoader(data, 4, True, seed=5, seed_rows=False) for _ in range(2))
    seen: list[Any] = []

    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.layer(inputs)[:, 0]

        def train_step(self, data: Any) -> Any:
            seen.append([int(row) for row in data[1]])
            return super().train_step(data)

    model = Model()  # Keras builds it with a batch
    model.compile("sgd", "mse")
    model.fit(one, epochs=1, verbose=0, validation_data=other)
    assert seen == WHOLE
    assert one.state_dict()["epoch"] == 1
    next(iter(one))
    resumed = yoga.DataLoader(data, 4, True, seed=5)
    resumed.load_state_dict(one.state_dict())
    model = Model()
    model.compile("sgd", "mse")
    seen.clear()
    model.fit(resumed, initial_epoch=1, epochs=3, verbose=0)
    whole = loader()
    expected = [rows_of(whole) for _ in range(3)]
    assert seen == expected[1][1:] + expected[2]
    assert resumed.prove()


@pytest.mark.xdist_group("keras")
def test_rows_that_keras_leaves_after_some_steps_give_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    data = [(torch.full((2,), float(row)), torch.tensor([float(row)])) for row in range(LENGTH)]
    one = yoga.DataLoader(data, 4)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*left out")
        model.fit(one, epochs=3, verbose=0, validation_data=one, validation_steps=1, steps_per_epoch=1)
        found = [model.evaluate(one, steps=2, verbose=0) for _ in range(3)]
        assert found == found[:1] * 3  # each time from the first row
        model.predict(one, steps=2, verbose=0)
    for _ in itertools.islice(one, 2):
        pass
    with pytest.warns(UserWarning, match="left out"):
        rows_of(x for x, _ in one)
