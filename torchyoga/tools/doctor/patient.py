"""A loader or a dataset as the doctor sees it: its rows, digests to compare them by, and loaders like it."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import hashlib
import random
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from types import FunctionType
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, RandomSampler, SequentialSampler

from ...loading.loader import DataLoader
from ..auto_meter import start_method

_BATCH, _WORKERS = 64, 2  # of a dataset that comes without a loader
_OF_WORKERS = ("worker_init_fn", "multiprocessing_context", "prefetch_factor")
_MOST_KEYS, _DEEPEST = 4096, 3
_OF_ALL = (RandomSampler, SequentialSampler)
_EVALUATION = {"val", "valid", "validation", "test", "testing", "eval", "evaluation", "dev"}


@dataclass(frozen=True)
class Patient:
    """The loader, or the dataset, that is examined.

    Attributes:
        dataset: the dataset.
        loader: its loader.
        is_alone: True if only the dataset was given: the loader is what torch's would be.
        names: of variables that hold it.
        evaluates: True if it was iterated without gradients.
        starts: what decided the order as each iteration that was seen began.
        sets_epoch: True if the code around it calls `set_epoch`.
    """

    dataset: Any
    loader: TorchLoader[Any]
    is_alone: bool = False
    names: tuple[str, ...] = ()
    evaluates: bool = False
    starts: tuple[str, ...] = ()
    sets_epoch: bool = False

    @staticmethod
    def of(thing: object, names: Iterable[str] = (), **seen: Any) -> Patient:
        """The patient for a loader of torch's or torchyoga's, or a dataset; `seen`: its other attributes.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(thing, TorchLoader):
            return Patient(thing.dataset, thing, names=tuple(names), **seen)
        has_rows = hasattr(thing, "__getitem__") or hasattr(thing, "__getitems__")
        is_sized = isinstance(thing, Sized) and not isinstance(thing, str)
        if (is_sized and has_rows) or isinstance(thing, IterableDataset):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of few CPUs
                loader = TorchLoader(cast("Dataset[Any]", thing), _BATCH, num_workers=_WORKERS)
            return Patient(thing, loader, True, tuple(names))
        if isinstance(inner := getattr(thing, "loader", None), TorchLoader):  # which moves its batches
            return Patient.of(inner, names, **seen)
        raise TypeError(
            f"doctor takes a DataLoader or a dataset, found {type(thing).__name__}; pass the loader that the "
            "training loop iterates"
        )

    @property
    def is_ours(self) -> bool:
        """True for a loader of torchyoga's."""
        return isinstance(self.loader, DataLoader)

    @property
    def is_iterable(self) -> bool:
        """True for a dataset without row numbers."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def is_evaluation(self) -> bool:
        """True if its name or the dataset's split says it is for evaluation, or no gradients are kept."""
        said, inner = [*self.names], self.dataset
        for _ in range(_DEEPEST):  # a Subset of it, say
            kept = getattr(inner, "__dict__", {})
            if kept.get("train") is False:
                return True
            said += [type(inner).__name__, *(str(kept.get(name, "")) for name in ("split", "mode", "subset"))]
            inner = kept.get("dataset")
        words = {word.lower() for text in said for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}
        return self.evaluates or bool(words & _EVALUATION)

    @property
    def num_workers(self) -> int:
        """Worker processes of the loader."""
        return self.loader.num_workers

    @property
    def start_method(self) -> str:
        """How its workers start: fork, forkserver or spawn."""
        return start_method(self.loader)

    def keys(self, most: int) -> list[Any]:
        """Some row numbers, or what else its sampler gives, from all over the dataset. In a trial."""
        keys: Sequence[Any] = []
        loader = self.loader
        has_own = loader.batch_size is None and loader.batch_sampler is not None
        if self.is_ours or (type(loader.sampler) in _OF_ALL and not has_own):
            keys = range(len(self.dataset))
        if not keys:  # it may know which rows there are
            keys = list(islice(numbers(loader), _MOST_KEYS))
            with suppress(TypeError):  # of lists of rows, say
                keys = sorted(set(keys))
        last = len(keys) - 1
        places = sorted({last * n // max(1, most - 1) for n in range(most)}) if keys else []
        return [keys[at] for at in places]

    def batch_size(self) -> int | None:
        """Rows of a batch, as a sampler of batches gives them if need be; None for single rows.

        It may draw from the sampler, so ask in a trial only.
        """
        loader = self.loader
        draws = self.is_ours and loader.batch_size == 1  # a sampler of batches may decide
        if loader.batch_sampler is None or (loader.batch_size is not None and not draws):
            return loader.batch_size
        return max(1, len(next(iter(loader.batch_sampler), [0])))

    def probe(self, collate_fn: Any, keys: Sequence[Any], num_workers: int, **more: Any) -> TorchLoader[Any]:
        """A loader of torch's over the dataset itself, whose batches are what a function makes of a row.

        Nothing takes the dataset's place, so that its `worker_init_fn` finds it. Make and use it in a trial.
        """
        loader = self.loader
        given: dict[str, Any] = {"batch_size": 1, "generator": torch.Generator().manual_seed(0)}
        for name in ("worker_init_fn", "multiprocessing_context", "persistent_workers"):
            given[name] = getattr(loader, name)
        if not self.is_iterable:
            given["sampler"] = keys
            if loader.batch_sampler is None:
                given["batch_size"] = None  # its sampler gives lists of rows
        given |= {"collate_fn": collate_fn, "num_workers": num_workers, **more}
        return TorchLoader(self.dataset, **given)

    def again(self, num_workers: int | None = None) -> TorchLoader[Any]:
        """The loader with workers of its own, from its next epoch on. Make and use it in a trial.

        One of torchyoga's is a new one, which gives rows in any order.

        Args:
            num_workers: another number of workers, which live from epoch to epoch.
        """
        loader, count = self.loader, self.num_workers if num_workers is None else num_workers
        changed: dict[str, Any] = {"num_workers": count, "pin_memory": False}  # a forked child has no CUDA
        if num_workers is not None:
            changed["persistent_workers"] = count > 0
        if not isinstance(loader, DataLoader):
            loader = copy.copy(loader)
            if count != loader.num_workers:  # torch's own defaults
                changed |= {"prefetch_factor": 2 if count else None, "timeout": 0}
            vars(loader).update(changed, _iterator=None)  # workers that persist are the other one's
            return loader
        size = self.batch_size()
        if size is None or loader.batch_sampler is not None:
            changed["collate_fn"] = loader.collate_fn  # torch's for single rows collates nothing
        if count:
            changed |= {name: getattr(loader, name) for name in _OF_WORKERS}
        changed |= {"seed": 0, "shuffle": True, "num_replicas": 1, "rank": 0, "seed_rows": loader.seed_rows}
        return DataLoader(self.dataset, size, **changed)


def numbers(loader: TorchLoader[Any]) -> Iterator[Any]:
    """The row numbers that a loader's sampler gives, one after the other."""
    if loader.batch_sampler is None:
        yield from loader.sampler
        return
    for batch in loader.batch_sampler:
        yield from batch


_MOST_LEAVES, _DEEP = 256, 8
_SAID = re.compile(r"\(made as row (.+)\)$", re.MULTILINE)
_PLAIN = (str, bytes, int, float, complex, bool, type(None), datetime.date, datetime.timedelta, list, tuple)


def made(dataset: Any, row: Any) -> object:
    """A row of a dataset with row numbers, as a collate_fn gets it; several for a list of numbers."""
    if not hasattr(dataset, "__getitems__") or isinstance(row, (list, tuple)):
        return dataset[row]
    rows = dataset.__getitems__([row])
    return rows[0] if isinstance(rows, list) and rows else rows


def seed_all(number: int) -> None:
    """Seeds the generators that all code shares. In a trial."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def rows_of(patient: Patient, most: int) -> Iterator[object]:
    """Some rows from all over the dataset, or the first ones of a stream."""
    if patient.is_iterable:
        return islice(iter(patient.dataset), most)
    return (made(patient.dataset, key) for key in patient.keys(most))


def leaves(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """The values that a row or a batch is made of, each with the path to it."""
    parts: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        parts = [(f"{path}.{key}" if path else str(key), one) for key, one in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        parts = [(f"{path}.{name}" if path else name, one) for name, one in value._asdict().items()]
    elif isinstance(value, (list, tuple)) and not _is_numbers(value):
        parts = [(f"{path}[{number}]", one) for number, one in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(f"{path}.{name}" if path else name, one) for name, one in vars(value).items()]
    if not parts or depth == _DEEP:
        yield path, value
        return
    for inner, one in parts[:_MOST_LEAVES]:
        yield from leaves(one, inner, depth + 1)


def _is_numbers(value: list[object] | tuple[object, ...]) -> bool:
    return len(value) > 8 and all(isinstance(one, (int, float)) for one in value)


def digest(value: object) -> str | None:
    """A digest of a row, or of a generator's state; None if a part of it is of an unknown kind."""
    found = hashlib.blake2b(digest_size=8)
    for path, leaf in leaves(value):
        data = _bytes_of(leaf)
        if data is None:
            return None
        found.update(f"{path}:{type(leaf).__name__}{getattr(leaf, 'shape', '')}:".encode())
        found.update(data)
    return found.hexdigest()


def _bytes_of(leaf: object) -> bytes | None:
    if is_dense(leaf):
        whole = leaf.detach().resolve_conj().resolve_neg().contiguous()  # a single value of any stride is
        return bytes(whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy().data)
    if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject:
        return repr(leaf.tolist()).encode()
    if isinstance(leaf, (np.ndarray, np.generic)) or type(leaf).__module__.startswith("PIL."):
        data: bytes = leaf.tobytes()  # type: ignore[attr-defined]
        return data
    is_plain = isinstance(leaf, _PLAIN) or (isinstance(leaf, Mapping) and not leaf)
    return repr(leaf).encode() if is_plain else None


def is_dense(value: object) -> TypeGuard[torch.Tensor]:
    """True for a tensor whose values lie in the memory of this machine."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"


def row_said(text: str) -> str | None:
    """The row that an error's text says was being made, as it is written in Python; None if it says none."""
    found = _SAID.findall(text)
    return found[-1] if found else None


def name_rows(dataset: object) -> None:
    """Lets errors that rows of a dataset raise note the row, in this process and those that it forks."""
    kind: Any = type(dataset)
    for name in ("__getitem__", "__getitems__"):
        method = getattr(kind, name, None)
        if isinstance(method, FunctionType):  # not of a list, say
            setattr(kind, name, _noting(method, dataset))


def _noting(function: Callable[..., Any], dataset: object) -> Callable[[Any, Any], Any]:
    """A method of rows that notes in an error which row was being made."""

    @wraps(function)
    def noting(self: Any, rows: Any) -> Any:
        try:
            return function(self, rows)
        except Exception as raised:
            error: Any = raised
            row = rows[0] if isinstance(rows, (list, tuple)) and len(rows) == 1 else rows
            if self is dataset and not isinstance(row, (list, tuple)):
                with suppress(Exception):  # Python 3.10, or an error that keeps no attributes
                    error.add_note(f"(made as row {int(row) if isinstance(row, np.integer) else row!r})")
            raise

    return noting
