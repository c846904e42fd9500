"""What trainers do to a loader besides iterating it."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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


# -- Accelerate


@pytest.mark.xdist_group("accelerate_loop")
class TestAccelerate:
    @pytest.fixture
    def accelerator(self) -> Any:
        from accelerate import Accelerator

        yield Accelerator(cpu=True, gradient_accumulation_steps=2)
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(True)
        GradientState._reset_state()

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

    def test_it_says_when_it_ends_also_within_another_loop(self, accelerator: Any) -> None:
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
        next(iter(outer))  # left early
        assert len(rows_of(outer)) == 3
        assert not state.in_dataloader

    def test_batches_are_skipped(self, accelerator: Any) -> None:
        from accelerate import skip_first_batches

        for one in (loader(), accelerator.prepare(loader())):
            with pytest.warns(UserWarning, match="finds its place by skipping batches"):
                assert rows_of(skip_first_batches(one, 2)) == WHOLE[2:]

    def test_what_a_state_has_skipped_is_not_skipped_again(self, accelerator: Any, tmp_path: Path) -> None:
        from accelerate import skip_first_batches

        arrays = yoga.from_arrays({"x": np.arange(LENGTH)})
        for make in (loader, lambda: yoga.DataLoader(arrays, 4, True, seed=5)):
            one = accelerator.prepare(make())
            for batch in itertools.islice(one, 2):
                del batch
            accelerator.save_state(str(tmp_path / "state"))
            accelerator.free_memory()
            for skipped in (2, 1):
                other = accelerator.prepare(make())
                accelerator.load_state(str(tmp_path / "state"))
                batches = iter(skip_first_batches(other, skipped))
                if skipped == 2:
                    with pytest.warns(UserWarning, match="skipping batches"):
                        last = next(batches)
                    assert (last["x"] if isinstance(last, dict) else last).tolist() == WHOLE[2]
                    assert next(batches, None) is None
                else:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        with pytest.raises(StateError, match="after 2 batches of the epoch, and 1 are to be"):
                            next(batches)
                accelerator.free_memory()

    def test_uneven_batches_are_those_it_keeps(self, accelerator: Any) -> None:
        one = accelerator.prepare(loader(num_replicas=3, rank=1))
        assert one.batch_sampler.even_batches
        assert len(rows_of(one)[-1]) + 4 * (len(one) - 1) == 4
        one.batch_sampler.even_batches = False
        assert sum(map(len, rows_of(one))) == 3
        one.batch_sampler.even_batches = True
        assert one.batch_sampler.sampler.remainder == "pad"

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

    def test_torchs_loader_works_and_is_warned_of(self, accelerator: Any) -> None:
        theirs = TorchLoader(list(range(LENGTH)), 4, sampler=yoga.ResumableSampler(LENGTH, seed=5))
        one = accelerator.prepare(theirs)
        with pytest.warns(UserWarning, match="huggingface/accelerate#4195"):
            assert rows_of(one) == WHOLE
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rows_of(one)

    def test_an_accelerator_that_is_gone_is_not_asked(self, accelerator: Any) -> None:
        from accelerate.state import AcceleratorState, GradientState

        one = accelerator.prepare(loader())
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        assert rows_of(one) == WHOLE


def in_a_mesh(rank: int, store: str) -> None:
    import os

    import torch.distributed as dist
    from accelerate import Accelerator
    from torch.distributed.device_mesh import init_device_mesh

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    accelerator = Accelerator(cpu=True)
    # What a ParallelismConfig makes of two ranks that share rows, and two that see the same; it wants a GPU.
    accelerator.state.device_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
    one = accelerator.prepare(loader())
    assert (one.batch_sampler.sampler.num_replicas, one.batch_sampler.sampler.rank) == (2, rank // 2)
    mine = rows_of(one)
    assert sum(WHOLE, [])[4 * (rank // 2) :][:4] == mine[0]
    one.check_ranks()
    assert one.prove().rows == LENGTH
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.xdist_group("accelerate_loop")
@pytest.mark.filterwarnings("ignore")
def test_the_mesh_of_accelerate_says_who_sees_the_same_rows(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(in_a_mesh, (str(tmp_path / "store"),), 4)


# -- Lightning


@pytest.mark.xdist_group("lightning_trainer")
@pytest.mark.filterwarnings("ignore")
class TestLightning:
    @pytest.fixture
    def module(self) -> Any:
        import lightning.pytorch as lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)
                self.seen: list[Any] = []

            def training_step(self, batch: Any, _: int) -> Any:
                self.seen.append(batch)
                some = batch[0] if isinstance(batch, list) else batch
                return self.layer(some.float()[:, None]).sum()

            def predict_step(self, batch: Any, _: int) -> Any:
                return batch

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 1e-6)

        return Module()

    def trainer(self, **options: Any) -> Any:
        import lightning.pytorch as lightning

        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        return lightning.Trainer(accelerator="cpu", enable_checkpointing=False, **quiet, **options)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_predict_sees_all_rows_and_says_which(self, module: Any, workers: int) -> None:
        from lightning.pytorch.callbacks import BasePredictionWriter

        class Writer(BasePredictionWriter):
            def write_on_batch_end(self, *found: Any) -> None:
                told.append((found[2].tolist(), found[3]))

        told: list[Any] = []
        trainer = self.trainer(callbacks=[Writer("batch")])
        trainer.predict(module, loader(num_workers=workers, drop_last=True))
        assert told == [(rows, rows) for rows in WHOLE]

    def test_overfit_batches_has_the_first_rows(self, module: Any) -> None:
        self.trainer(overfit_batches=2, max_epochs=2).fit(module, loader())
        assert rows_of(module.seen) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2

    def test_two_loaders_at_once_and_epochs_that_are_cut_short(self, module: Any) -> None:
        pair = [loader(), yoga.DataLoader(list(range(30)), 4, True, seed=6)]
        self.trainer(limit_train_batches=2, max_epochs=2).fit(module, pair)
        assert rows_of(first for first, _ in module.seen)[:2] == WHOLE[:2]
        # An epoch that was cut short is left; the next one is another.
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

        self.trainer(max_epochs=3, callbacks=[Save()]).fit(module, of(before))
        got = sum(rows_of(module.seen)[:done], [])
        module.seen.clear()
        self.trainer(max_epochs=3).fit(module, of(after), ckpt_path=tmp_path / "state", weights_only=False)
        got += sum(rows_of(module.seen), [])
        sampler = yoga.ResumableSampler(64, seed=5)
        assert got == [row for _ in range(3) for row in sampler]


# -- torchdata


@pytest.mark.xdist_group("stateful")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore")
def test_a_state_from_behind_an_epoch_goes_on_with_the_next(workers: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

    def make(in_batches: bool) -> Any:
        sampler = yoga.ResumableSampler(LENGTH, seed=5)
        data = list(range(LENGTH))
        if in_batches:
            batches = yoga.ResumableBatchSampler(sampler, 4)
            return StatefulDataLoader(data, batch_sampler=batches, num_workers=workers)
        return StatefulDataLoader(data, 4, sampler=sampler, num_workers=workers)

    whole = loader()
    expected = [rows_of(whole) for _ in range(4)]
    for in_batches in (False, True):
        one = make(in_batches)
        assert rows_of(one) == expected[0]
        state = one.state_dict()  # behind the loop
        other = make(in_batches)
        other.load_state_dict(state)
        assert [rows_of(other) for _ in range(3)] == expected[1:]


# -- Keras


@pytest.mark.xdist_group("keras_fit")
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
