"""Warns of a dataset whose rows are drawn again for each epoch, so that a resume may give other rows.

A dataset's attributes are looked at, its rows are not.
A state says which rows come next, by their numbers. It cannot say what a dataset has behind a number, if that
is drawn in the training loop's process, as negative samples are. To make a row may take long, move a
generator, or open a file before workers are forked. Attributes with an entry for each row cost some
microseconds, and that is where rows that are drawn are kept. One that changes within an epoch counts what is
read, or keeps it: rows are drawn between epochs.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from ..order.contract import Saved
from ..process.messages import warn_user
from ..process.seeding import generators
from ..reading.dataref import DataRef

_SAMPLED = 16  # entries of an attribute
_MOST = 8  # attributes, and parts of a dataset
_KEY = "drawn"  # of a state: digests of what the dataset held when the epoch began
_CURE = (
    "Draw them from a generator that is seeded by (seed, loader.epoch), before each epoch and after "
    "load_state_dict: see docs/resume.md, Rows that are drawn for each epoch"
)


class Redrawn:
    """Compares what a dataset holds for its rows when epochs begin, and with what a state says of it."""

    def __init__(self) -> None:
        self._epoch = -1  # the one that has begun last
        self._held: Mapping[str, str] = {}  # digests, when it began
        self._moving: set[str] = set()  # attributes that changed within an epoch
        self._at_end: tuple[object, ...] | None = None  # the generators, when it was over
        self._loaded_epoch: object = None  # if a state within it was loaded last
        self._has_warned = False

    def load(self, state: Mapping[str, object], extra: Saved) -> None:
        """Takes over into `extra` what a state says."""
        drawn = state.get(_KEY)
        extra.pop(_KEY, None)
        if drawn and isinstance(drawn, Mapping) and len(drawn) <= _MOST:
            extra[_KEY] = {str(name): str(digest) for name, digest in drawn.items()}
        is_within = state.get("position") or state.get("steps")
        self._loaded_epoch, self._at_end = state["epoch"] if is_within else None, None

    def begun(self, dataset: object, epoch: int, extra: Saved, is_kept: bool) -> None:
        """Notes in `extra` what the dataset holds in this epoch; warns, once, if that was drawn again.

        Or if it has changed, while persistent workers keep what they began with (`is_kept`).
        """
        held, saved = self._still(dataset), extra.pop(_KEY, {})
        if held:
            extra[_KEY] = held
        others = ", ".join(sorted(_that_differ(saved, held))) if epoch == self._loaded_epoch else ""
        if others:
            self._warn(
                f"when the state was saved, {others} of the dataset held other numbers than now, so the rest "
                f"of epoch {epoch} may be of other rows, though prove() counts each position once. {_CURE}"
            )
        # A dataset with a set_epoch says that its rows belong to an epoch. Where no generator has moved that
        # all code shares, they were not drawn from one.
        is_next = self._at_end is not None and epoch != self._epoch
        others = ", ".join(sorted(_that_differ(self._held, held))) if is_next else ""
        if others and is_kept:
            self._warn(
                f"{others} of the dataset changed between epochs {self._epoch} and {epoch}, but persistent "
                "workers keep the dataset as it was when they began: the rows are those of before. Leave out "
                "persistent_workers=True"
            )
        if others and not hasattr(dataset, "set_epoch") and _shared() != self._at_end:
            self._warn(
                f"{others} of the dataset changed between epochs {self._epoch} and {epoch}, and so did a "
                "generator: if it was drawn anew, rows may be others after a resume, though prove() counts "
                f"each position once. {_CURE}. Ignore this if you seed so already, as by "
                "np.random.seed(100 + epoch)"
            )
        self._epoch, self._held, self._at_end, self._loaded_epoch = epoch, held, None, None

    def ended(self, dataset: object) -> None:
        """An epoch is over."""
        if not self._has_warned:
            held = _held(dataset)
            self._moving |= {name for name in held if self._held.get(name) != held[name]}
            self._at_end = None if self._moving.issuperset(held) else _shared()

    def _still(self, dataset: object) -> dict[str, str]:
        """Digests of what a dataset holds, without what changed within an epoch."""
        return {name: digest for name, digest in _held(dataset).items() if name not in self._moving}

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(message)


def _shared() -> tuple[object, ...]:
    """Where `random` and NumPy are; not torch, which each pass of its loaders moves, as validation does."""
    return generators()[:-1]


def _held(dataset: object) -> dict[str, str]:
    """Digests of the attributes with numbers for each row, by their names."""
    found: dict[str, str] = {}
    for path, part in _parts(dataset):
        for name, value in sorted(vars(part).items()):
            with contextlib.suppress(Exception):  # the user's own code says how long it is
                numbers = _sampled(value, part)
                if numbers is not None and len(found) < _MOST:
                    found[path + name] = f"{zlib.crc32(repr(numbers).encode()):08x}"
    return found


def _parts(dataset: object) -> Iterator[tuple[str, object]]:
    """A dataset and, of torch's subsets, those within, with the names by which they are reached."""
    if isinstance(dataset, DataRef) or not hasattr(dataset, "__dict__"):
        return
    yield "", dataset
    if type(dataset) is Subset:
        for path, part in _parts(dataset.dataset):
            yield f"dataset.{path}", part
    if type(dataset) is ConcatDataset:
        for number, one in enumerate(dataset.datasets[:_MOST]):
            for path, part in _parts(one):
                yield f"datasets[{number}].{path}", part


def _sampled(value: Any, part: Any) -> list[object] | None:
    """Some entries of an attribute that has one for each row of its dataset; None for any other.

    Entries of floats may be scores or losses, which change with the training; entries that are all zeros, or
    not numbers, may be a cache that is not filled yet. Text may be paths, which differ between machines.
    """
    if type(value) not in (list, tuple, np.ndarray, torch.Tensor) or not 0 < len(value) == len(part):
        return None
    if type(value) is torch.Tensor and value.device.type != "cpu":
        return None
    entries = [value[place] for place in range(0, len(value), max(1, len(value) // _SAMPLED))]
    numbers = [_numbers(entry) for entry in entries]
    is_known = all(some is not None and not isinstance(some, float) for some in numbers)
    return numbers if is_known and any(map(_is_filled, numbers)) else None


def _numbers(entry: object) -> object:
    """The first numbers of an entry, without its text; None if it is something else."""
    if isinstance(entry, torch.Tensor):
        entry = entry.flatten()[:_SAMPLED].tolist() if entry.ndim else entry.item()
    elif isinstance(entry, np.ndarray):
        entry = entry.ravel()[:_SAMPLED].tolist() if entry.dtype.kind in "biuf" else None
    elif isinstance(entry, np.generic):
        entry = entry.item()
    if isinstance(entry, list | tuple):
        numbers = [_numbers(one) for one in entry[:_SAMPLED] if not isinstance(one, str)]
        return None if None in numbers else numbers
    if isinstance(entry, float):
        return float(f"{entry:.4g}")  # the last bits differ between machines
    return entry if isinstance(entry, int) else None


def _is_filled(numbers: object) -> bool:
    return any(map(_is_filled, numbers)) if isinstance(numbers, list) else bool(numbers)


def _that_differ(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """The names of the attributes that are in both and have other digests."""
    return {name for name in now if before.get(name, now[name]) != now[name]}
