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
- A DataRef of your own shuffles and shards its records itself: there is no `GeneratorFromKeys`.
- Bad arguments raise ValueError and missing datasets `torchyoga.errors.NotFoundError`, where yogadl asserted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, ParamSpec

from ...rows.types import Row

__all__ = ["DataRef", "Storage", "Stream", "Submittable"]

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
