"""Keras in and out, on the backend that KERAS_BACKEND names; test_keras.py runs it for each."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import multiprocessing
import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from children import run_program, started
from keras_fits import BATCH, TRAIN, network, train
from kits import check_export

import torchyoga as yoga
from torchyoga.adapters.keras import Checkpoint, KerasDataset, as_dataref, make_keras_dataset
from torchyoga.adapters.tensorflow import make_tf_dataset
from torchyoga.errors import CorruptError, SchemaError, StateError
from torchyoga.testing import assert_rows_equal, check_source

# Processes that are killed are forked from a server that has imported Keras, and used nothing of it.
multiprocessing.set_forkserver_preload(["torchyoga.adapters.keras"])
# After the imports, as users do: no import may fix TensorFlow's devices.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"

N = 22
X = np.random.default_rng(0).random((N, 3), np.float32)
Y = np.arange(N, dtype=np.float32)


class Sequence(keras.utils.PyDataset):
    """Batches of (x, y), (x, y, weight) or dicts, of the backend's tensors or NumPy arrays."""

    def __init__(self, look: str = "xy", native: bool = False, lengths: dict[int, int] | None = None) -> None:
        super().__init__()
        self.look, self.native, self.lengths = look, native, lengths or {}
        self.asked: list[int] = []

    def __len__(self) -> int:
        return -(-N // BATCH)

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        some = slice(index * BATCH, min(N, index * BATCH + self.lengths.get(index, BATCH)))
        x, y = X[some], Y[some]
        if self.native:
            x, y = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y)
        return LOOKS[self.look](x, y)


LOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "x": lambda x, y: (x,),
    "xy": lambda x, y: (x, y),
    "xyw": lambda x, y: (x, y, y),
    "dict": lambda x, y: {"a": x, "b": y},
    "dict of another class": lambda x, y: OrderedDict(a=x, b=y),
    "inputs": lambda x, y: ([x, {"z": y}], y),
    "uneven": lambda x, y: (x, y[1:]),
    "number": lambda x, y: (x, 3),
}


def rows_of(look: str) -> list[Any]:
    return [*map(LOOKS[look], X, Y)]


# -- in


@pytest.mark.parametrize("look", ["x", "xy", "xyw", "dict", "dict of another class", "inputs"])
def test_a_sequence_goes_in_and_comes_back(look: str, tmp_path: Path) -> None:
    check_source(lambda: Sequence(look), rows_of("dict" if "dict" in look else look), tmp_path)


def test_tensors_of_the_backend_go_in(tmp_path: Path) -> None:
    rows = list(yoga.Storage(tmp_path).submit(Sequence("xy", native=True), "x", "1"))
    if keras.backend.backend() == "torch":
        rows = [(x.numpy(), y.numpy()[()]) for x, y in rows]
    for found, expected in zip(rows, rows_of("xy"), strict=True):
        assert_rows_equal(found, expected)


def test_a_sequence_gives_rows_by_number() -> None:
    sequence = Sequence("xy")
    ref = as_dataref(sequence)
    assert (len(ref), sequence.asked) == (N, [0, 5])
    for number in (21, 0, 7, -1):
        assert_rows_equal(ref[number], rows_of("xy")[number])
    assert_rows_equal(list(ref[[1, 4, 2, 5]]), [rows_of("xy")[number] for number in (1, 4, 2, 5)])
    assert sequence.asked == [0, 5, 1]  # each batch once
    again = pickle.loads(pickle.dumps(ref))
    assert_rows_equal(again[9], rows_of("xy")[9])


def test_the_batches_kept_are_bounded() -> None:
    sequence = Sequence("x")
    ref = as_dataref(sequence, cache_bytes=2 * BATCH * 3 * 4)
    list(ref)
    assert sequence.asked[-6:] != []
    sequence.asked.clear()
    ref[[16, 20]]  # the last two
    assert sequence.asked == []
    ref[0], ref[4], ref[16]
    assert sequence.asked == [0, 1, 4]


def test_a_sequence_may_use_its_memory_again(tmp_path: Path) -> None:
    class Reusing(Sequence):
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            self.x[: len(x)], self.y[: len(y)] = x, y
            return self.x[: len(x)], self.y[: len(y)]

    def made() -> Reusing:
        sequence = Reusing()
        sequence.x, sequence.y = np.zeros((BATCH, 3), np.float32), np.zeros(BATCH, np.float32)
        return sequence

    check_source(made, rows_of("xy"), tmp_path)
    ref = as_dataref(made())
    ref[2][0][:] = 100  # readers may change rows
    assert_rows_equal(ref[2], rows_of("xy")[2])


def test_sequences_that_are_refused(tmp_path: Path) -> None:
    class Endless(Sequence):
        @property
        def num_batches(self) -> None:
            return None

    class Lengthless(keras.utils.PyDataset):
        def __getitem__(self, index: int) -> Any:
            return X, Y

    storage = yoga.Storage(tmp_path)
    for sequence, error, message in [
        (Endless(), ValueError, r"Endless has no end \(num_batches is None\)"),
        (Lengthless(), ValueError, "Lengthless has no length; give it num_batches or __len__"),
        (Sequence("uneven"), SchemaError, r"Sequence: batch 0 holds arrays of \[3, 4\] rows"),
        (Sequence("number"), SchemaError, "Sequence: batch 0 holds a int; batches are made of arrays"),
        (Sequence("xy", lengths={3: 2}), SchemaError, "batch 3 has 2 rows, but batch 0 has 4; only the last"),
        (Sequence("xy", lengths={0: 0}), SchemaError, "batch 0 has no rows"),
        (Sequence("xy", lengths={0: 1}), SchemaError, "batch 5 has 2 rows, more than the 1 of batch 0"),
    ]:
        with pytest.raises(error, match=message):
            storage.submit(sequence, "x", "1")
    assert storage.list() == []


# -- out


@pytest.fixture
def ref(tmp_path: Path) -> yoga.DataRef:
    return yoga.Storage(tmp_path / "storage").submit({"x": X, "y": Y}, "points", "1", overwrite=True)


def numbers(dataset: KerasDataset) -> list[list[int]]:
    """The rows of the next epoch, batch by batch, as Keras asks for them."""
    dataset.on_epoch_begin()
    found = [np.asarray(dataset[i][1]).astype(int).tolist() for i in range(dataset.num_batches)]
    dataset.on_epoch_end()
    return found


def begun(dataset: KerasDataset) -> KerasDataset:
    """Begins as Keras begins a fit: it asks for the workers, and ends an epoch that it has not begun."""
    assert dataset.workers == 1
    dataset.on_epoch_end()
    return dataset


class Recorder(keras.Sequential):
    """A model that records the rows it was trained on."""

    def train_step(self, *arguments: Any) -> Any:
        self.seen.append(np.asarray(arguments[-1][1]).astype(int).tolist())
        return super().train_step(*arguments)


def recorder() -> Recorder:
    model = Recorder([keras.layers.Dense(1)])
    model.seen = []
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def stream_of(ref: yoga.DataRef, drop_last: bool = False) -> list[list[int]]:
    stream = ref.stream(shuffle=True, shuffle_seed=3)
    return [[int(row["y"]) for row in batch] for _ in range(3) for batch in stream.batches(BATCH, drop_last)]


# Of a batch or two, and of several.
@pytest.mark.parametrize(
    ("num_rows", "drop_last"), [*((rows, False) for rows in (1, 4, 5, 8, N)), (5, True), (N, True)]
)
def test_fit_sees_the_epochs_of_the_stream(tmp_path: Path, num_rows: int, drop_last: bool) -> None:
    ref = yoga.Storage(tmp_path).submit({"x": X[:num_rows], "y": Y[:num_rows]}, "some", "1")
    model, fields = recorder(), ("x", "y")
    dataset = make_keras_dataset(ref, BATCH, shuffle=True, seed=3, fields=fields, drop_last=drop_last)
    model.fit(dataset, epochs=2, shuffle=False, verbose=0)
    model.fit(dataset, epochs=1, shuffle=False, verbose=0)
    assert model.seen == stream_of(ref, drop_last)
    assert dataset.epoch == 3


def test_permuted_by_keras_each_epoch_has_its_batches(ref: yoga.DataRef) -> None:
    model = recorder()
    model.fit(make_keras_dataset(ref, BATCH, shuffle=True, seed=3, fields=("x", "y")), epochs=3, verbose=0)
    expected = stream_of(ref)
    for epoch in range(3):
        assert sorted(model.seen[6 * epoch : 6 * epoch + 6]) == sorted(expected[6 * epoch : 6 * epoch + 6])


def test_evaluate_and_predict_see_each_row_once(ref: yoga.DataRef) -> None:
    model = recorder()
    dataset = make_keras_dataset(ref, BATCH, fields=("x", "y"))
    model.fit(
        dataset,
        verbose=0,
        shuffle=False,
        validation_data=make_keras_dataset(ref, 5, fields=("x", "y")),
        epochs=2,
    )
    whole = model.evaluate(X, Y, batch_size=N, verbose=0)
    assert model.evaluate(dataset, verbose=0) == pytest.approx(whole, rel=1e-4)
    assert np.allclose(model.predict(dataset, verbose=0), model.predict(X, verbose=0), atol=1e-5)


def epochs_of(stream: yoga.Stream) -> Any:
    """A function that begins the next epoch of an exported stream, and returns its rows."""
    dataset = begun(make_keras_dataset(stream, BATCH))

    def epoch() -> Iterator[Any]:
        begun(dataset)
        dataset.on_epoch_begin()
        for index in range(dataset.num_batches):
            batch = dataset[index]
            yield from ({key: values[i] for key, values in batch.items()} for i in range(len(batch["x"])))
        dataset.on_epoch_end()

    return epoch


def test_epochs_shards_and_offsets_are_those_of_the_stream(ref: yoga.DataRef) -> None:
    for view in (ref, ref.map_batches(noisy)[::-1].repeat(2)):
        check_export(view, epochs_of)


def noisy(c: Any, draw: Any) -> Any:
    return {**c, "x": c["x"] + draw.normal(size=c["x"].shape)}


def test_items_are_functions_of_epoch_and_index(ref: yoga.DataRef) -> None:
    dataset = begun(make_keras_dataset(ref, BATCH, shuffle=True, seed=3, fields=("x", "y")))
    copies = [copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))]
    for made in [dataset, *copies]:
        for index in (5, 0, 5, 3):
            assert np.asarray(made[index][1]).astype(int).tolist() == stream_of(ref)[index]
    with pytest.raises(IndexError, match="batch 6 of the 6 of epoch 0"):
        dataset[6]
    assert len(dataset) == 6
    assert [np.asarray(y).astype(int).tolist() for _, y in dataset] == stream_of(ref)[:6]


def test_shards_of_files_resume_in_the_order_of_the_state(ref: yoga.DataRef) -> None:
    options: Any = {"shuffle": "block", "shuffle_seed": 3, "locality": "shard"}
    first = ref.stream(shard_rank=0, num_shards=2, **options)
    rows, taken = iter(first), []
    for _ in range(3):
        taken.append(int(next(rows)["y"]))
    others = ref.stream(shard_rank=1, num_shards=2, **options)
    taken += [int(row["y"]) for row, _ in zip(others, range(3), strict=False)]
    dataset = make_keras_dataset(ref.stream(**options), BATCH, fields=("x", "y"))
    assert sorted(sum(numbers(begun(dataset)), [])) == list(range(N))
    dataset.load_state_dict(first.state_dict())
    begun(dataset)
    rest = sum(numbers(dataset), [])
    assert sorted(taken + rest) == list(range(N))


def test_a_block_shuffle_differs_from_a_full_one(ref: yoga.DataRef) -> None:
    block, full = (
        numbers(begun(make_keras_dataset(ref, BATCH, shuffle=kind, seed=3, fields=("x", "y"))))  # type: ignore[arg-type]
        for kind in ("block", True)
    )
    assert sorted(sum(block, [])) == sorted(sum(full, []))
    assert block != full


@pytest.mark.parametrize("stop", range(13))
def test_it_resumes_at_every_step_and_once_more(ref: yoga.DataRef, stop: int) -> None:
    whole = stream_of(ref)

    def made(state: Any) -> KerasDataset:
        dataset = begun(make_keras_dataset(ref, BATCH, shuffle=True, seed=3, fields=("x", "y")))
        if state is not None:
            dataset.load_state_dict(json.loads(json.dumps(state)))
        return dataset

    def run(dataset: KerasDataset, steps: int) -> list[list[int]]:
        found: list[list[int]] = []
        while len(found) < steps:
            begun(dataset)
            dataset.on_epoch_begin()
            for index in range(min(dataset.num_batches, steps - len(found))):
                found.append(np.asarray(dataset[index][1]).astype(int).tolist())
                if dataset.delivered(1):
                    dataset.on_epoch_end()
                    break
        return found

    for second in range(len(whole) - stop):
        first = made(None)
        found = run(first, stop)
        more = made(first.state_dict())
        found += run(more, second)
        found += run(made(more.state_dict()), len(whole) - len(found))
        assert found == whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The losses of a training that nothing interrupts."""
    folder = tmp_path_factory.mktemp("trained") / "whole"
    folder.mkdir()
    yoga.Storage(folder.parent / "storage").submit({"x": X, "y": Y}, "points", "1")
    train(folder)
    found = losses(folder)
    assert len(found) == 18
    return found


def test_a_fit_that_is_killed_and_resumed_has_the_same_losses(
    ref: yoga.DataRef, whole: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    # In the first epoch, with one batch left of it, and in the second; steps that were not saved are done
    # again.
    for die_after, done in [(3, 3), (4, 6), (4, 9)]:
        assert run_program(TRAIN, str(folder), str(die_after)).returncode == 9
        assert losses(folder) == whole[:done]
    train(folder)
    assert losses(folder) == whole


def test_validation_over_the_same_dataset_does_not_use_up_an_epoch(ref: yoga.DataRef, tmp_path: Path) -> None:
    dataset = make_keras_dataset(ref, BATCH, shuffle=True, seed=3, fields=("x", "y"))
    model = recorder()
    model.build((None, 3))
    Checkpoint(tmp_path / "run", dataset).fit(model, epochs=3, verbose=0, validation_data=dataset)
    assert model.seen == stream_of(ref)


def test_the_place_counts_trained_batches_where_keras_reads_ahead(ref: yoga.DataRef, tmp_path: Path) -> None:
    dataset = make_keras_dataset(ref, BATCH, shuffle=True, seed=3, fields=("x", "y"))
    checkpoint, model, places = Checkpoint(tmp_path / "run", dataset), recorder(), []

    class Places(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            state = json.loads((tmp_path / "run" / "checkpoint.json").read_text())["data"]
            places.append((state["epoch"], state["position"]))

    model.fit(
        dataset, epochs=4, steps_per_epoch=3, shuffle=False, verbose=0, callbacks=[checkpoint, Places()]
    )
    assert model.seen == stream_of(ref)[:12]
    assert places == [(0, 12), (1, 0), (1, 12), (2, 0)]


def test_a_checkpoint_is_whole_if_training_is_killed_at_any_moment(
    ref: yoga.DataRef, whole: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    for wait in (0.0, 0.013, 0.031):
        with started(TRAIN, str(folder), "-1") as victim:
            deadline, lines = time.monotonic() + 120, count_lines(folder)
            while count_lines(folder) == lines and victim.is_running and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(wait)  # it trains and saves
            victim.kill()
    train(folder)
    assert losses(folder) == whole
    assert len(list((folder / "run").iterdir())) == 2


def losses(folder: Path) -> list[str]:
    """Steps and their losses; a step that was done again, with the same loss, counts once."""
    return list(dict.fromkeys((folder / "losses").read_text().split()))


def count_lines(folder: Path) -> int:
    path = folder / "losses"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_the_rest_of_an_epoch_takes_a_fit_of_its_own(ref: yoga.DataRef, tmp_path: Path) -> None:
    stream = ref.stream(shuffle=True, shuffle_seed=3, start_offset=12)
    dataset = make_keras_dataset(stream, BATCH, fields=("x", "y"))
    model = recorder()
    with pytest.raises(
        StateError, match="this fit began within an epoch, so Keras gives each of its epochs 3 batches"
    ):
        model.fit(dataset, epochs=3, shuffle=False, verbose=0)
    model.fit(dataset, epochs=3, initial_epoch=1, shuffle=False, verbose=0)
    assert model.seen == stream_of(ref)[3:]


def test_a_checkpoint_refuses_arguments_that_it_cannot_follow(ref: yoga.DataRef, tmp_path: Path) -> None:
    dataset = make_keras_dataset(ref, BATCH, shuffle=True, seed=3, fields=("x", "y"))
    checkpoint, model = Checkpoint(tmp_path / "run", dataset, every=4), network()
    mine = tmp_path / "run" / "mine.weights.h5"
    mine.parent.mkdir()
    mine.write_text("of the user's own")
    with pytest.raises(ValueError, match="the model is not built, so nothing can be restored"):
        checkpoint.fit(recorder(), epochs=1)
    with pytest.raises(ValueError, match="shuffle=True would split the epochs"):
        checkpoint.fit(model, epochs=1, shuffle=True)
    with pytest.raises(StateError, match="Keras has permuted the batches of this epoch"):
        model.fit(dataset, epochs=9, callbacks=[checkpoint], verbose=0)
    assert mine.exists()
    other = make_keras_dataset(ref, BATCH, shuffle=True, seed=4, fields=("x", "y"))
    history = Checkpoint(tmp_path / "other", other).fit(model, epochs=2, verbose=0)
    assert (history.epoch, len(history.history["loss"])) == ([0, 1], 2)
    with pytest.raises(StateError, match="the state has seed 4, but here it is 3"):
        Checkpoint(tmp_path / "other", dataset).restore(model)
    (tmp_path / "other" / "checkpoint.json").write_text('{"weights": 3}')
    with pytest.raises(CorruptError, match=r"checkpoint.json is damaged"):
        Checkpoint(tmp_path / "other", other).restore(model)


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot sync folders")
def test_a_checkpoint_survives_a_power_cut(ref: yoga.DataRef, tmp_path: Path) -> None:
    from powercut import Tree, lay_out, recorded  # not found if this file is run alone

    dataset = make_keras_dataset(ref, BATCH, shuffle=True, seed=3, fields=("x", "y"))
    disk, model, other = tmp_path / "disk", network(), network()
    disk.mkdir()
    model.optimizer.build(model.trainable_variables)

    def save(value: float) -> None:
        model.set_weights([np.full_like(weights, value) for weights in model.get_weights()])
        checkpoint = Checkpoint(disk / "runs" / "run", dataset)
        checkpoint.set_model(model)
        checkpoint.save()

    def restored(tree: Tree) -> float | None:
        folder = tmp_path / f"after-{len(list(tmp_path.iterdir()))}"
        lay_out(tree, folder)
        if not Checkpoint(folder / "runs" / "run", dataset).restore(other):
            return None
        return float(other.get_weights()[0][0, 0])

    for before, value in ((None, 1.0), (1.0, 2.0)):
        *cuts, end = recorded(disk, functools.partial(save, value)).cuts
        assert {restored(tree) for cut in cuts for tree in cut.trees(4)} == {before, value}
        assert {restored(tree) for tree in end.trees(20)} == {value}


def test_data_that_keras_cannot_take_is_refused(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    rows = [{"x": X[i], "t": "text", "r": np.arange(i), "y": i, "n": None} for i in range(9)]
    ref = storage.submit(rows, "rows", "1")
    for options, error, message in [
        ({}, SchemaError, "column 't' is not an array of numbers but str"),
        ({"fields": ("x", "r")}, SchemaError, "column 'r' has rows of different lengths; pass padding="),
        ({"fields": ("x", "r"), "padding": 0.5}, ValueError, "padding=0.5 is not a value of column 'r'"),
        (
            {"fields": ("x", "z")},
            ValueError,
            "must be keys of the rows, as a tuple; these rows are dicts with the keys",
        ),
        ({"fields": "x"}, ValueError, "must be keys of the rows, as a tuple"),
        ({"fields": ("x", "y", "n", "t")}, SchemaError, "column 't' is not an array"),
        ({"fields": ("x", "y"), "batch_size": 0}, ValueError, "batch_size must be at least 1"),
        (
            {"fields": ("x", "y"), "batch_size": 10, "drop_last": True},
            ValueError,
            "an epoch has no batch of 10 rows",
        ),
    ]:
        with pytest.raises(error, match=message):
            make_keras_dataset(ref, **{"batch_size": 4, **options})
    with pytest.raises(ValueError, match="a stream already has its shuffle"):
        make_keras_dataset(ref.stream(), 4, shuffle=True, fields=("x", "y"))
    with pytest.raises(TypeError, match="what make_keras_dataset returns, found a list; make the dataset by"):
        Checkpoint(tmp_path, [])
    with pytest.raises(TypeError, match="expected a Stream or a DataRef, found list"):
        make_keras_dataset([1], 4)
    with pytest.raises(ValueError, match="found rows of 4 parts"):
        make_keras_dataset(storage.submit([(1, 2, 3, 4)], "four", "1"), 1)
    with pytest.raises(ValueError, match="the dataset is empty"):
        make_keras_dataset(storage.submit([], "none", "1"), 1)


def test_the_nesting_and_dtypes_of_batches(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    rows = [([{"a": X[i]}, np.arange(i, dtype=np.int16)], i, None) for i in range(5)]
    (inputs, y, weight) = make_keras_dataset(storage.submit(rows, "rows", "1"), 3, padding=-1)[0]
    assert_rows_equal(inputs[0]["a"], X[:3])
    assert_rows_equal(inputs[1], np.array([[-1, -1], [0, -1], [0, 1]], np.int16))
    assert_rows_equal((y, weight), (np.arange(3), None))
    alone = make_keras_dataset(storage.submit(X, "alone", "1"), 3)[0]
    assert_rows_equal(alone, (X[:3],))


# -- batches that Keras takes without training on them; tf.data under Keras


@functools.cache
def mirrored() -> Any:
    """Two devices; made once, because the collectives of several strategies block each other."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(params=["alone", "mirrored"] if IS_TENSORFLOW else ["alone"])
def strategy(request: pytest.FixtureRequest) -> Any:
    """The strategies under which models are made; on TensorFlow also one over two devices, which reads far
    ahead."""
    return contextlib.nullcontext if request.param == "alone" else mirrored().scope


class Steps(keras.callbacks.Callback):
    """Counts the trained steps, records their rows by their losses, and stops after a given step."""

    def __init__(self, stop: int = -1) -> None:
        super().__init__()
        self.num_steps, self.stop, self.sums = 0, stop, []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.num_steps += 1
        self.sums.append(round(float(logs["loss"]), 3))
        self.model.stop_training = self.num_steps == self.stop


@functools.cache
def summing(strategy: Any = contextlib.nullcontext) -> Any:
    """A model whose loss is the mean of its batch's y, whatever it learns; one, as each takes a second."""
    with strategy():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", loss=lambda y, found: y + 0 * keras.ops.sum(found, axis=-1))
    return model


def means_of(ref: yoga.DataRef, epochs: int) -> list[float]:
    stream = ref.stream(shuffle=True, shuffle_seed=3)
    batches = [[row["y"] for row in batch] for _ in range(epochs) for batch in stream.batches(BATCH)]
    return [round(float(np.mean(batch)), 3) for batch in batches]


def exported(ref: yoga.DataRef, look: str) -> tuple[yoga.Stream, Any, Any]:
    """A stream, a function that makes a dataset of it, and the dataset."""
    stream = ref.stream(shuffle=True, shuffle_seed=3)
    if look == "keras":
        dataset = make_keras_dataset(stream, BATCH, fields=("x", "y"))
        return stream, lambda: dataset, dataset

    def make(**options: Any) -> Any:
        return make_tf_dataset(stream, BATCH, **options).map(lambda row: (row["x"], row["y"]))

    return stream, make, make()


@pytest.mark.parametrize("look", ["tf.data", "keras"])
@pytest.mark.parametrize("num_rows", [4, 22])  # each replica takes an equal part of a batch
def test_only_training_uses_up_an_epoch(tmp_path: Path, strategy: Any, look: str, num_rows: int) -> None:
    rows = {"x": X[:num_rows], "y": Y[:num_rows]}
    ref = yoga.Storage(tmp_path).submit(rows, "few", "1")
    stream, _, dataset = exported(ref, look)
    _, _, validation = exported(ref, look)
    steps = Steps()
    model = summing(strategy)
    means = means_of(ref, 4)
    model.fit(dataset, epochs=2, shuffle=False, verbose=0, callbacks=[steps], validation_data=validation)
    assert stream.epoch == 2
    model.fit(dataset, epochs=1, shuffle=False, verbose=0, callbacks=[steps])
    if look == "keras":
        model.evaluate(dataset, verbose=0)
        model.predict(dataset, verbose=0)
    assert stream.epoch == 3
    model.fit(dataset, epochs=1, shuffle=False, verbose=0, callbacks=[steps])
    assert steps.sums == means
    assert stream.state_dict()["epoch"] == 4 == stream.state_after(steps.num_steps, BATCH)["epoch"]


@pytest.mark.parametrize("look", ["tf.data", "keras"])
def test_validation_on_a_part_has_the_same_part_each_time(tmp_path: Path, strategy: Any, look: str) -> None:
    rows = {"x": np.tile(X, (8, 1)), "y": np.tile(Y, 8)}  # more than TensorFlow reads ahead
    ref = yoga.Storage(tmp_path).submit(rows, "many", "1")
    _, _, dataset = exported(ref, look)
    stream, _, validation = exported(ref, look)
    model = summing(strategy)
    arguments: Any = {"shuffle": False, "verbose": 0, "validation_data": validation, "validation_steps": 2}
    history = model.fit(dataset, epochs=3, **arguments).history["val_loss"]
    assert history == pytest.approx([np.mean(means_of(ref, 1)[:2])] * 3, rel=1e-5)
    assert stream.epoch == 0


@pytest.mark.parametrize("look", ["tf.data", "keras"])
def test_with_steps_per_epoch_the_epochs_follow_one_another(
    ref: yoga.DataRef, strategy: Any, look: str
) -> None:
    stream, _, dataset = exported(ref, look)
    steps = Steps()
    model = summing(strategy)
    model.fit(dataset, epochs=4, steps_per_epoch=3, shuffle=False, verbose=0, callbacks=[steps])
    assert steps.sums == means_of(ref, 2)
    assert stream.epoch == 2
    if look == "tf.data":
        endless = exported(ref, look)[2].repeat()
        steps = Steps()
        model.fit(endless, epochs=3, steps_per_epoch=4, verbose=0, shuffle=False, callbacks=[steps])
        assert steps.sums == means_of(ref, 2)


def weights_of(model: Any) -> list[Any]:
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def test_a_tf_dataset_is_resumed_bit_for_bit(ref: yoga.DataRef, strategy: Any) -> None:
    def made() -> Any:
        with strategy():
            # torch has no seed for each layer, and building a model draws numbers.
            return network(0.3 if keras.backend.backend() != "torch" else 0.0)

    stream, make, dataset = exported(ref, "tf.data")
    whole = made()
    whole.fit(dataset, epochs=3, shuffle=False, verbose=0)
    for stop in (5, 6, 9):
        stream, make, dataset = exported(ref, "tf.data")
        model, steps = made(), Steps(stop)
        model.fit(dataset, epochs=3, shuffle=False, verbose=0, callbacks=[steps])
        state = json.dumps(stream.state_after(stop, BATCH))
        stream, make, _ = exported(ref, "tf.data")  # as in another process that has loaded the model
        stream.load_state_dict(json.loads(state))
        while (epoch := stream.epoch) < 3:
            rest = make(one_epoch=True)
            assert int(rest.cardinality()) == (6 - stop % 6 if epoch == stop // 6 else 6)
            run: Any = {"initial_epoch": epoch, "epochs": epoch + 1, "callbacks": [steps]}
            model.fit(rest, shuffle=False, verbose=0, **run)
        assert steps.num_steps == 18
        for expected, found in zip(weights_of(whole), weights_of(model), strict=True):
            assert np.array_equal(expected, found)


def test_a_fit_is_not_cut_short_silently(ref: yoga.DataRef) -> None:
    stream, make, _ = exported(ref, "tf.data")
    stream.load_state_dict(stream.state_after(4, BATCH))
    model = summing()
    for epochs, message in [
        (3, "StateError: this dataset begins within epoch 0, of which 2 batches are left, and Keras would"),
        (1, "UserWarning: make_tf_dataset: this dataset begins within an epoch and does not say how long"),
    ]:
        with pytest.raises(tf.errors.OpError, match=message):
            model.fit(make(), epochs=epochs, shuffle=False, verbose=0)
    steps = Steps()
    model.fit(make(one_epoch=True), shuffle=False, verbose=0, callbacks=[steps])
    with pytest.raises(tf.errors.OpError, match="made with one_epoch=True for epoch 1 from position 0 on"):
        model.fit(make(one_epoch=True), epochs=2, shuffle=False, verbose=0, callbacks=[steps])
    assert steps.sums == means_of(ref, 2)[4:]
    endless = make().repeat()
    model.fit(endless, steps_per_epoch=4, epochs=2, shuffle=False, verbose=0)
