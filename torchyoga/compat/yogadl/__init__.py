"""yogadl's documented interface over torchyoga: change a program's imports, and it runs.

`import torchyoga.compat.yogadl as yogadl` includes `dataref`, `storage` and `tensorflow`.

What differs, for the better:

- `start_offset` counts positions over all shards, so that any other number of shards can continue there; in
  yogadl it counted the rows of one shard.
- The whole dataset is shuffled before it is sharded, so a shard sees different rows each epoch. The order for
  a seed is torchyoga's, and two seeds never give the same shuffle in different epochs.
- An iteration of `make_tf_dataset` that ends early, as `.take(5)` does, uses up no epoch.
- Any data that torchyoga takes can be submitted, not `tf.data.Dataset` alone.
- A dataset is published when it is complete. `submit` still replaces what is there, in one step.
- `S3Storage` and `GCSStorage` need no lock server, and warn that its `url` is ignored; there is no
  `rw_coordinator`.
- Records are not pickled: there is no `LmdbAccess`, and files that yogadl wrote are read by
  `torchyoga.from_lmdb`.
- Bad arguments raise ValueError and missing datasets `torchyoga.errors.NotFoundError`, where yogadl asserted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, ParamSpec

import numpy as np

from ...rows.types import Row

__all__ = [
    "DataRef",
    "GeneratorFromKeys",
    "non_sequential_shard",
    "sequential_shard",
    "shard_keys",
    "shuffle_keys",
    "Storage",
    "Stream",
    "Submittable",
]

P = ParamSpec("P")
Submittable = Any  # in yogadl a tf.data.Dataset; TensorFlow is not loaded here just to name it


def __getattr__(name: str) -> ModuleType:
    if name in ("dataref", "storage", "tensorflow"):  # the last one loads TensorFlow
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Stream:
    """Records, an epoch at a time, from a function that makes them.

    Args:
        iterator_fn: makes an iterator over the records of the next epoch.
        length: number of records in an epoch.
        output_types: TensorFlow dtypes of a record, nested like it; for `tensorflow.make_tf_dataset`.
        output_shapes: shapes of a record, nested like it.

    Example:
        >>> stream = Stream(lambda: iter("abc"), 3)
        >>> len(stream), list(stream)
        (3, ['a', 'b', 'c'])
    """

    def __init__(
        self,
        iterator_fn: Callable[[], Iterator[Row]],
        length: int,
        output_types: Any = None,
        output_shapes: Any = None,
    ) -> None:
        self.iterator_fn = iterator_fn
        self.length = length
        self.output_types = output_types
        self.output_shapes = output_shapes

    def __iter__(self) -> Iterator[Row]:
        return self.iterator_fn()

    def __len__(self) -> int:
        return self.length


class DataRef(ABC):
    """A dataset that gives streams; subclass it for data of your own."""

    @abstractmethod
    def stream(
        self,
        start_offset: int = 0,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
        shuffle_seed: int | None = None,
        shard_rank: int = 0,
        num_shards: int = 1,
        drop_shard_remainder: bool = False,
    ) -> Stream:
        """The records in sequence."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of records, over all shards."""


class Storage(ABC):
    """A place where datasets are kept."""

    @abstractmethod
    def submit(self, data: Submittable, dataset_id: str, dataset_version: str) -> None:
        """Keeps a dataset; an existing one is replaced."""

    @abstractmethod
    def fetch(self, dataset_id: str, dataset_version: str) -> DataRef:
        """A dataset that was kept."""

    @abstractmethod
    def cacheable(
        self, dataset_id: str, dataset_version: str
    ) -> Callable[[Callable[P, object]], Callable[P, DataRef]]:
        """Decorates a function that makes a dataset, which then runs once."""


def sequential_shard(keys: list[bytes], shard_index: int, num_shards: int) -> list[bytes]:
    """A run of the keys; the first shards have one more each if the keys do not divide evenly.

    Example:
        >>> [sequential_shard([b"a", b"b", b"c", b"d", b"e"], i, 3) for i in range(3)]
        [[b'a', b'b'], [b'c', b'd'], [b'e']]
    """
    size, longer = divmod(len(keys), num_shards)
    start = shard_index * size + min(shard_index, longer)
    return keys[start : start + size + (shard_index < longer)]


def non_sequential_shard(keys: list[bytes], shard_index: int, num_shards: int) -> list[bytes]:
    """Every `num_shards`-th key.

    Example:
        >>> [non_sequential_shard([b"a", b"b", b"c", b"d", b"e"], i, 3) for i in range(3)]
        [[b'a', b'd'], [b'b', b'e'], [b'c']]
    """
    return keys[shard_index::num_shards]


def shard_keys(
    keys: list[bytes],
    shard_index: int,
    num_shards: int,
    sequential: bool = False,
    drop_shard_remainder: bool = False,
) -> list[bytes]:
    """The keys of a shard; each shard has equally many if `drop_shard_remainder`.

    Raises:
        ValueError: there is no such shard, or there are fewer keys than shards.
    """
    if not 0 <= shard_index < num_shards:
        raise ValueError(f"shard_index must be in 0..{num_shards - 1}, found {shard_index}")
    if drop_shard_remainder:
        if len(keys) < num_shards:
            raise ValueError(f"{len(keys)} keys are too few for {num_shards} shards; use fewer shards")
        keys = keys[: len(keys) // num_shards * num_shards]
    return (sequential_shard if sequential else non_sequential_shard)(keys, shard_index, num_shards)


def shuffle_keys(keys: list[bytes], seed: int | None = None) -> list[bytes]:
    """Shuffles a list in place, as NumPy's RandomState does, and returns it."""
    np.random.RandomState(seed).shuffle(keys)
    return keys


class GeneratorFromKeys:
    """Makes generators of records, each time for the next epoch.

    Args:
        keys: of the records.
        initial_offset: where the first generator begins; more than an epoch means later epochs.
        read_val_from_key_fn: gives the record of a key.
        shuffle_at_start: shuffle the keys.
        shuffle_after_epoch: shuffle them again after each epoch.
        shuffle_seed: for the shuffle.

    Example:
        >>> made = GeneratorFromKeys([b"a", b"b", b"c"], 2, bytes.decode, False, False, None)
        >>> list(made.instantiate_generator()), list(made.instantiate_generator())
        (['c'], ['a', 'b', 'c'])
    """

    def __init__(
        self,
        keys: list[bytes],
        initial_offset: int,
        read_val_from_key_fn: Callable[[bytes], Row],
        shuffle_at_start: bool,
        shuffle_after_epoch: bool,
        shuffle_seed: int | None,
    ) -> None:
        if initial_offset < 0 or not keys:
            raise ValueError(
                f"expected keys and an offset of at least 0, found {len(keys)} and {initial_offset}"
            )
        if shuffle_after_epoch and (not shuffle_at_start or shuffle_seed is None):
            raise ValueError("shuffle_after_epoch=True needs shuffle_at_start=True and a shuffle_seed")
        self._keys = keys
        self._epoch, self._offset = divmod(initial_offset, len(keys))
        self._read = read_val_from_key_fn
        self._shuffles, self._reshuffles, self._seed = shuffle_at_start, shuffle_after_epoch, shuffle_seed

    def instantiate_generator(self) -> Iterator[Row]:
        """The records of the next epoch; it counts as begun when its first record is asked for."""
        keys, epoch, offset = list(self._keys), self._epoch, self._offset
        self._epoch, self._offset = epoch + 1, 0
        if self._shuffles:
            seed = self._seed
            keys = shuffle_keys(keys, seed + epoch if self._reshuffles and seed is not None else seed)
        yield from map(self._read, keys[offset:])
