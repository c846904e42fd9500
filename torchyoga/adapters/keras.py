"""Streams -> keras.utils.PyDataset, for `model.fit` on every backend; and sequences -> rows.

Keras's own count of steps tells an epoch from a look.
Keras calls `on_epoch_end` for what it looks at, evaluates and cuts short, too; the count, seen on the stack,
distinguishes an epoch from those.

Keras's queue of workers is not used.
After the batch that Keras takes to build a model, the queue hands out those it has read ahead, and then all
from the first.

A fit that begins within an epoch has that epoch alone.
Keras plans as many batches for each epoch of a fit; if the first ended early, Keras on TensorFlow would try
one step more, which moves the optimizer and the random numbers.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import torch

from ..errors import CorruptError, StateError
from ..files.root import sync_folder
from ..order.contract import Appended, Shuffle
from ..order.epoch import Iteration, IterationOptions
from ..order.place import Place
from ..process.numbers import as_int
from ..reading.dataref import DataRef
from ..reading.stream import Stream
from ..rows.types import Batch, Json
from ..sampling.trainers import told_by_keras
from .keras_sequence import as_dataref as as_dataref
from .numbered import NumberedBatches


def make_keras_dataset(
    data: Stream | DataRef,
    batch_size: int,
    *,
    shuffle: Shuffle | None = None,
    seed: int = 0,
    fields: Sequence[str | int] | None = None,
    drop_last: bool = False,
    padding: float | None = None,
) -> KerasDataset:
    """A stream or a DataRef as a `keras.utils.PyDataset`, for `fit(dataset, shuffle=False)` on every backend.

    Args:
        data: gives the rows; a stream also gives their order, shard and start.
        batch_size: rows of a batch B.
        shuffle: of a DataRef: a full shuffle, anew each epoch, or "block"; False by default.
        seed: seed of that shuffle.
        fields: keys of rows that are dicts, for Keras to take as (x,), (x, y) or (x, y, sample_weight); rows
            that are tuples are taken as they are, and a dict without `fields` is one x of several inputs.
        drop_last: leave out a shorter last batch.
        padding: fills ragged rows up to the longest of their batch.

    Pass `shuffle=False` to `fit`, or Keras permutes the batches once more and they cannot be resumed within
    an epoch. Give each rank the stream of its shard, with `drop_shard_remainder=True`; and set
    `distribution.auto_shard_dataset = False`, because the stream is a shard already.

    Raises:
        ValueError: an argument is out of range, or an epoch has no batch.
        SchemaError: a column cannot be an array of numbers; names it.

    Example:
        >>> ref = storage.submit({"x": np.zeros((10, 4)), "y": np.arange(10)}, "points", "1.0")
        >>> dataset = make_keras_dataset(ref, batch_size=4, shuffle=True, fields=("x", "y"))
        >>> len(dataset), [len(y) for x, y in dataset]
        (3, [4, 4, 2])
    """
    if isinstance(data, DataRef):
        data = data.stream(shuffle=shuffle or False, shuffle_seed=seed)
    elif not isinstance(data, Stream):
        raise TypeError(
            f"expected a Stream or a DataRef, found {type(data).__name__}; DataRef.stream() makes a Stream"
        )
    elif shuffle is not None:
        raise ValueError("shuffle= is for a DataRef; a stream already has its shuffle; leave it out")
    cursor = data.cursor
    size = as_int("batch_size", batch_size, low=1)
    batches = NumberedBatches(data.source, cursor.order, cursor.shard, size, drop_last, fields, padding)
    if not batches.steps(Place(0, 0)):
        raise ValueError(f"an epoch has no batch of {batch_size} rows; use a smaller batch_size")
    tree = batches.schema.tree
    parts = len(fields or tree.children) if fields or tree.kind in ("tuple", "list", "namedtuple") else 1
    if not 1 <= parts <= 3:
        raise ValueError(
            f"Keras takes (x,), (x, y) or (x, y, sample_weight), found rows of {parts} parts; choose with "
            "fields=, or cache rows that nest so"
        )
    return KerasDataset(data, batches)


class _Pass:
    """One pass over the batches of an epoch, from where it began."""

    def __init__(self, run: Iteration, steps: int, is_trained_on: bool = True) -> None:
        self.run = run
        self.is_trained_on = is_trained_on
        self.start = run.start
        self.steps = steps
        self.delivered = 0
        self.is_permuted = False
        self._asked = bytearray(steps)
        self.num_asked = 0

    @property
    def is_over(self) -> bool:
        """True if all was trained on, where Keras tells; where it does not, if all was asked for."""
        return (self.delivered or self.num_asked) == self.steps

    def ask(self, index: int) -> None:
        """Notes that a batch was asked for."""
        self.is_permuted = self.is_permuted or not (index == self.num_asked or self._asked[index])
        self.num_asked += not self._asked[index]
        self._asked[index] = 1


class KerasDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """The result of `make_keras_dataset`: a batch is a function of epoch and index, each epoch another.

    Where it begins within an epoch, `fit` it for the rest of that epoch alone and then for the others, as
    `Checkpoint.fit` does: Keras gives all epochs of a fit as many batches as the first.

    An epoch is over when Keras has trained on all of it. What it takes to build a model, evaluates, predicts
    or leaves in the middle moves nothing: the next pass begins where that one did.

    Keras's own queue of workers is not used, because on some backends it hands out batches twice (Keras
    3.15, if the model is not built before `fit`): `workers` is always 1 for Keras.
    """

    def __init__(self, stream: Stream, batches: NumberedBatches) -> None:
        super().__init__()
        self._stream, self._cursor = stream, stream.cursor
        self._batches = batches
        self._pass: _Pass | None = None
        self._planned: int | None = None  # batches of the epochs of this fit
        self._begins = True

    # -- what Keras asks

    @property
    def workers(self) -> int:
        """1 for Keras; it asks when a fit begins, and calls on_epoch_end once before the first epoch then."""
        self._pass, self._planned, self._begins = None, None, True
        return 1

    @property
    def use_multiprocessing(self) -> bool:
        """False for Keras."""
        return False

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self._batches.steps(Place(0, 0))

    @property
    def num_batches(self) -> int:
        """Batches of the epoch under way or about to begin, from where it begins."""
        return self._pass.steps if self._pass is not None else self._batches.steps(self._begin())

    def __getitem__(self, index: int) -> Batch:
        index = as_int("index", index, low=0)
        start = self._pass.start if self._pass is not None else self._begin()
        steps = self.num_batches
        if index >= steps:
            raise IndexError(
                f"batch {index} of the {steps} of epoch {start.epoch} from position {start.position} on"
            )
        if self._pass is not None:
            self._pass.ask(index)
        return self._batches.batch(start, index)

    def __iter__(self) -> Iterator[Batch]:
        start = self._begin()
        return (self._batches.batch(start, index) for index in range(self._batches.steps(start)))

    def on_epoch_begin(self) -> None:
        """Begins a pass, unless one goes on over several epochs of Keras, as `steps_per_epoch` makes it."""
        if self._pass is not None:
            return
        self._follow()
        batches = self._batches
        run = self._cursor.iteration(IterationOptions(batches.batch_size, batches.drop_last))
        start = run.start
        told = told_by_keras()
        self._pass = _Pass(run, batches.steps(start), is_trained_on=told is None or told[0])
        run.hold(self._pass)
        if self._planned not in (None, self._pass.steps):
            raise StateError(
                f"this fit began within an epoch, so Keras gives each of its epochs {self._planned} batches, "
                f"but epoch {start.epoch} has {self._pass.steps}; use Checkpoint.fit, or let a first fit end "
                f"with epochs={start.epoch}. Nothing is lost: go on with initial_epoch={start.epoch}"
            )

    def on_epoch_end(self) -> None:
        """Ends the epoch, if all its batches were trained on.

        Where Keras does not tell, if they were asked for; it reads ahead.
        """
        begins, self._begins = self._begins, False
        done, told = self._pass, told_by_keras()
        if begins or done is None:
            self._pass = None
        elif told is not None and not told[0]:
            self._pass = done if done.is_trained_on else None
        elif done.is_over if done.delivered or told is None else told[1]:
            done.run.taken = self._planned = done.steps
            self._cursor.finished(done.run)
            self._pass = None

    def _follow(self) -> None:
        """Makes batches in the order that the stream has now: a loaded state may have changed it."""
        order = self._cursor.order
        if order is not self._batches.order:
            self._batches = self._batches.ordered(order)

    def _begin(self) -> Place:
        self._follow()
        return self._cursor.begin(self._batches.batch_size, self._batches.drop_last)

    # -- what there is to resume

    @property
    def epoch(self) -> int:
        """The epoch under way, or about to begin: `initial_epoch` for `fit`."""
        return self._stream.epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to begin; see `ResumableSampler.set_epoch`."""
        self._stream.set_epoch(epoch)
        self._pass = None

    @property
    def is_within_epoch(self) -> bool:
        """True if what comes next is the rest of an epoch."""
        return self._begin().position > 0

    def delivered(self, steps: int) -> bool:
        """Counts more batches as trained on, for `Checkpoint`; True if that ends the epoch."""
        now = self._pass
        if now is None:
            return False
        now.delivered = min(now.delivered + steps, now.steps)
        now.run.taken = now.delivered
        self._cursor.reached(now.run)
        return now.delivered == now.steps

    def state_dict(self) -> Json:
        """The state after the last batch that `delivered` counted; `Stream.state_dict` of its stream.

        Raises:
            StateError: Keras has permuted the batches, and the epoch is under way.
        """
        run = self._pass
        if run is not None and run.is_permuted and 0 < run.delivered < run.steps:
            raise StateError(
                "Keras has permuted the batches of this epoch, so no position says which are left; call "
                "fit(shuffle=False), or save at the end of an epoch"
            )
        return self._stream.state_dict()

    def load_state_dict(
        self, state: Mapping[str, Any], strict: bool = True, appended: Appended | None = None
    ) -> None:
        """Continues from a state; see `ResumableSampler.load_state_dict`."""
        self._stream.load_state_dict(state, strict, appended)
        self._pass = None


class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the weights, the optimizer and the place in the data, all of the same step.

    Args:
        directory: where to save; it is created. A save replaces the last one in a single step.
        dataset: the one passed to `fit`; it learns from this what was trained on.
        every: save after so many batches, besides the end of each epoch; None for the end alone.

    Raises:
        TypeError: the dataset is another one, such as one of tf.data.

    Example:
        >>> ref = storage.submit({"x": np.zeros((10, 4)), "y": np.arange(10)}, "points", "2.0")
        >>> dataset = make_keras_dataset(ref, batch_size=4, shuffle=True, fields=("x", "y"))
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> checkpoint = Checkpoint(tmp_path / "run", dataset, every=2)
        >>> history = checkpoint.fit(model, epochs=3, verbose=0)  # goes on where an interrupted run was saved
        >>> dataset.epoch
        3
    """

    def __init__(
        self, directory: str | os.PathLike[str], dataset: KerasDataset, every: int | None = None
    ) -> None:
        super().__init__()
        if not isinstance(dataset, KerasDataset):
            raise TypeError(
                f"Checkpoint takes what make_keras_dataset returns, found a {type(dataset).__name__}; make "
                "the dataset by that, as only it knows which batches were trained on, and pass it to fit, too"
            )
        self.directory = Path(directory)
        self.dataset = dataset
        self.every = None if every is None else as_int("every", every, low=1)
        self._last = -1  # the batch of this epoch that was trained on last
        self._since = 0  # batches since the last save
        self._place: Json | None = None  # the place in the data, while a validation runs
        self._random: Json | None = None  # to be set when the next batch or epoch begins

    def fit(self, model: keras.Model, epochs: int, **arguments: Any) -> keras.callbacks.History | None:
        """Restores what was saved, and calls `model.fit` until `epochs` are done.

        Args:
            model: built and compiled.
            epochs: epochs of the dataset, in total.
            arguments: others of `model.fit`; `callbacks` see the rest of an epoch as a fit of its own.

        Returns:
            The history of this call, as `model.fit` returns it; None if there was nothing to do.

        Raises:
            ValueError: the model is not built, or an argument would change what an epoch is.
            StateError, CorruptError: as in `restore`.
        """
        for name in ("shuffle", "initial_epoch", "steps_per_epoch"):
            if arguments.get(name):
                raise ValueError(f"{name}={arguments[name]!r} would split the epochs; leave it out")
        if not model.built:
            raise ValueError("the model is not built, so nothing can be restored; begin it with keras.Input")
        self.restore(model)
        # Last, so that what other callbacks change at the end of a batch or an epoch is saved, too.
        arguments = {**arguments, "shuffle": False, "callbacks": [*(arguments.get("callbacks") or []), self]}
        history = None
        while (epoch := self.dataset.epoch) < epochs:
            until = epoch + 1 if self.dataset.is_within_epoch else epochs
            done = model.fit(self.dataset, initial_epoch=epoch, epochs=until, **arguments)
            if history is not None:
                done.epoch = history.epoch + done.epoch
                done.history = {
                    name: history.history.get(name, []) + values for name, values in done.history.items()
                }
            history = done
            if model.stop_training or self.dataset.epoch == epoch:
                break
        return history

    def restore(self, model: keras.Model) -> bool:
        """Puts a model that is built and compiled, and the dataset, back to where they were saved.

        Returns:
            False if nothing has been saved yet.

        Raises:
            CorruptError: what was saved is damaged.
            StateError: it is of another dataset, or of one shuffled differently.
        """
        path = self.directory / "checkpoint.json"
        try:
            saved = json.loads(path.read_text())
            weights = self.directory / Path(saved["weights"]).name
            state, random = saved["data"], dict(saved["random"])
        except FileNotFoundError:
            return False
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptError(
                f"{path} is damaged: {error!r}; remove {self.directory} to start over"
            ) from error
        self.dataset.load_state_dict(state)
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        try:
            model.load_weights(weights)
        except OSError as error:
            raise CorruptError(
                f"{weights} cannot be read: {error}; remove {self.directory} to start over"
            ) from error
        self._random = random
        return True

    def save(self) -> None:
        """Saves now."""
        state = self.dataset.state_dict()
        made = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        self.directory.mkdir(parents=True, exist_ok=True)
        # A name of its own: what the last save points to stays whole until this one is.
        weights = self.directory / f"checkpoint-{secrets.token_hex(8)}.weights.h5"
        self.model.save_weights(weights)
        with weights.open("rb") as file:
            os.fsync(file.fileno())
        staged = weights.with_suffix(".json")
        with staged.open("w") as text:
            json.dump({"weights": weights.name, "data": state, "random": _random_state(self.model)}, text)
            text.flush()
            os.fsync(text.fileno())
        # The files it names are on the disk before it is, and it is before those it named before go.
        sync_folder(self.directory)
        staged.replace(self.directory / "checkpoint.json")
        for folder in (self.directory, *(path.parent for path in made)):
            sync_folder(folder)
        for old in self.directory.glob("checkpoint-*"):
            if old != weights:
                old.unlink(missing_ok=True)
        self._since = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Counts the batches of Keras's epoch anew."""
        self._last = -1
        if not self.dataset.is_within_epoch:
            self._set_random_state()

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Puts the random numbers back to where they were saved: Keras may have drawn some to begin."""
        self._set_random_state()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Counts the batches in the dataset, and saves if it is time."""
        steps, self._last = batch - self._last, batch
        self._since += steps
        ends = self.dataset.delivered(steps)
        if self.every is not None and self._since >= self.every and not ends:
            self.save()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Saves."""
        self.save()

    def on_test_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Notes the place in the data, because validation may use the same dataset."""
        self._place = self.dataset.state_dict()

    def on_test_end(self, logs: Mapping[str, float] | None = None) -> None:
        """Goes back there: no epoch was trained on."""
        if self._place is not None and self.dataset.state_dict() != self._place:
            self.dataset.load_state_dict(self._place)
        self._place = None

    def _set_random_state(self) -> None:
        if self._random is not None:
            _set_random_state(self.model, self._random)
            self._random = None


def _seeds(model: keras.Model) -> list[keras.Variable]:
    """The variables that dropout and its like draw from, which are not weights."""
    weights = {id(variable) for variable in model.weights}
    return [v for v in model.variables if id(v) not in weights and "seed_generator" in v.path]


def _random_state(model: keras.Model) -> Json:
    state: Json = {"backend": keras.backend.backend()}
    state["seeds"] = [keras.ops.convert_to_numpy(seed).tolist() for seed in _seeds(model)]
    if state["backend"] == "torch":  # torch draws from its own generator where a layer has no seed
        state["torch"] = torch.get_rng_state().numpy().tobytes().hex()
    return state


def _set_random_state(model: keras.Model, state: Json) -> None:
    if state["backend"] != keras.backend.backend():
        return  # another backend draws other numbers anyway
    for seed, value in zip(_seeds(model), state["seeds"], strict=True):
        seed.assign(value)
    if "torch" in state:
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["torch"]), dtype=torch.uint8))
