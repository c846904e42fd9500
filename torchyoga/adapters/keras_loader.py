"""A loader's batches by number, as `numbered.py` has those of rows: for `make_keras_dataset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..errors import SchemaError
from ..loading.lent import LentLoader, numpy_of
from ..order.contract import AnyOrder
from ..order.iteration import Iteration
from ..order.place import Place
from ..rows.node import Path, path_name
from ..rows.types import Batch


class LoaderBatches:
    """The batches of every epoch of a loader, by number, as its workers make them.

    Args:
        lent: the loader.
        fields: keys of batches that are dicts, which become a tuple in this order; None keeps the nesting.

    Raises:
        ValueError: an epoch has no batch, or `fields` are not its keys, or Keras does not take so many parts.
        SchemaError: a batch holds something that is not a number; names it.
    """

    def __init__(self, lent: LentLoader, fields: Sequence[str | int] | None) -> None:
        self._lent, self._fields = lent, fields
        self.batch_size, self.drop_last = lent.options.batch_size, lent.options.drop_last
        self.order = lent.cursor.order
        self._run: Iteration | None = None
        first = lent.loader.peek()
        keys = list(first) if isinstance(first, Mapping) else []
        if fields is not None and (isinstance(fields, str) or not fields or not set(fields) <= set(keys)):
            raise ValueError(f"fields={fields!r} must be keys of the batches, as a tuple; these have {keys}")
        whole = self._whole(first)
        check_parts(len(whole) if isinstance(whole, tuple) else 1)

    def ordered(self, order: AnyOrder) -> LoaderBatches:
        """These batches in the order that the loader has now."""
        self.order, self._run = order, None
        return self

    def steps(self, start: Place) -> int:
        """How many batches an epoch has from `start` on."""
        length = self._lent.cursor.length_in(start.epoch)
        return self._lent.cursor.shard.steps(length, start.position, self.batch_size, self.drop_last)

    def batch(self, start: Place, index: int) -> Batch:
        """Batch `index` of those from `start` on: a dict or a tuple; lists become tuples."""
        run = self._run
        if run is None or run.start != start or run.generation != self._lent.cursor.generation:
            self._run = run = self._lent.cursor.iteration(self._lent.options)
        return self._whole(self._lent.batch(run, index))

    def _whole(self, batch: Batch) -> Batch:
        if self._fields is not None:
            batch = tuple(batch[key] for key in self._fields)
        whole = _arrays(batch, ())
        return whole if isinstance(whole, (dict, tuple)) else (whole,)


def check_parts(parts: int) -> None:
    """Raises ValueError if Keras does not take tuples of so many parts."""
    if not 1 <= parts <= 3:
        raise ValueError(
            f"Keras takes (x,), (x, y) or (x, y, sample_weight), found rows of {parts} parts; choose with "
            "fields=, or cache rows that nest so"
        )


def _arrays(value: Batch, path: Path) -> Batch:
    """A batch over NumPy arrays; lists become tuples, because Keras takes a list for one tensor."""
    if isinstance(value, Mapping):
        return {key: _arrays(one, (*path, key)) for key, one in value.items()}
    if isinstance(value, torch.Tensor) and not value.is_nested:
        return numpy_of(value)
    if isinstance(value, (list, tuple)) and not any(isinstance(one, (str, bytes)) for one in value):
        items = [_arrays(one, (*path, place)) for place, one in enumerate(value)]
        return tuple.__new__(type(value), items) if isinstance(value, tuple) else tuple(items)
    raise SchemaError(
        f"at {path_name(path)!r}: the loader's batches hold a {type(value).__name__}, not an array of "
        "numbers; leave it out with fields=, or collate it to a tensor"
    )
