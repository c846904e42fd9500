"""A loader's batches for a framework that asks for them ahead, again or by number, and counts by itself."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..order.epoch import Iteration, IterationOptions
from ..rows.types import Batch
from .loader import DataLoader, parts_of


class LentLoader:
    """A loader that stays where it is until the framework says what was trained on.

    A copy with a cursor of its own makes the batches, with the same workers, collation and seeds. It starts
    processes afresh rather than by a fork: the frameworks run threads, which a forked child does not have.

    Attributes:
        loader: the user's, whose cursor counts.
        cursor: that cursor.

    Raises:
        ValueError: the loader has another library's sampler, whose batches have no numbers.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._indices, self._pipeline = parts_of(loader)
        if self._indices.may_repeat:
            raise ValueError(
                "this loader draws its rows from another library's sampler, whose place TensorFlow and Keras "
                "cannot follow; pass shuffle= or a ResumableSampler to the loader"
            )
        self.loader, self.cursor = loader, self._indices.cursor
        kept = (loader.dataset, loader.generator, loader.multiprocessing_context)
        self._copy = deepcopy(loader, {id(one): one for one in kept})
        context = loader.multiprocessing_context or multiprocessing
        if context.get_start_method(allow_none=True) in (None, "fork"):
            number, self._copy.num_workers = self._copy.num_workers, 1  # torch refuses it with none
            self._copy.multiprocessing_context = "forkserver"
            self._copy.num_workers = number
        self._batches: Iterator[Batch] = iter(())
        self._next: tuple[Iteration, int] | None = None

    @property
    def options(self) -> IterationOptions:
        """How iterations of the loader are asked for."""
        return IterationOptions(self.loader.batch_size or 1, self.loader.drop_last)

    def begun(self) -> Iteration:
        """An iteration that begins now, and which `DataLoader.state_after` is about from now on."""
        self._pipeline.latest = run = self.cursor.iteration(self.options)
        return run

    def batch(self, run: Iteration, index: int) -> Batch:
        """Batch `index` of an iteration, uncounted; they are made ahead if asked for in order."""
        if self._next != (run, index):
            self._copy.load_state_dict(self.cursor.state_of(run, run.after_batches(index, run.batch_size)))
            self._batches = iter(self._copy)
        batch = next(self._batches)
        self._next = run, index + 1
        return batch


def numpy_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor as an array; bfloat16 and 8-bit floats as the dtypes of ml_dtypes."""
    try:
        return tensor.numpy(force=True)
    except TypeError:
        import ml_dtypes  # comes with TensorFlow and Keras; NumPy itself has no such numbers

        name = str(tensor.dtype).removeprefix("torch.")
        bits = tensor.view({1: torch.uint8, 2: torch.int16}[tensor.element_size()])
        return bits.numpy(force=True).view(np.dtype(getattr(ml_dtypes, name)))
