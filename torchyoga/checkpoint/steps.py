"""A saved step: the states of a program's parts under plain names, and the files, all of them there or none.

A model is saved as it is without DistributedDataParallel and `torch.compile`, and loads with or without them.

A step is a folder of files and an index of them, written last. A directory gets it by a rename, a store by
the index alone, and no step is ever written twice: `step-100` is followed by `step-100-1`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

from ..errors import CorruptError, NotFoundError, StateError, YogaError
from ..files.checksum import crc32, crc32_of
from ..files.root import open_regular, sync_folder
from ..order.contract import Saved
from ..stores.address import directory_of, is_url

Write = Callable[[BinaryIO], object]
Check = Callable[[Path], object]
_NAME = re.compile(r"step-(\d{1,18})(?:-(\d{1,9}))?")
INDEX, _MOST_BYTES = "checkpoint.json", 4 * 2**20
_TMP = ".tmp"


def steps_at(place: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None) -> Steps:
    """The steps in a directory or behind a URL.

    Raises:
        ValueError: it is neither, or options were given for a directory.
    """
    text = os.fspath(place)
    if is_url(text):
        from ..stores.objects import Objects  # which needs fsspec

        return _RemoteSteps(Objects(text, storage_options))
    if storage_options:
        raise ValueError(f"storage_options is for a store behind a URL, but {text!r} is a directory")
    return _LocalSteps(directory_of(text))


class Steps(ABC):
    """The saved steps of a program, by names that tell which are newer.

    Attributes:
        place: the directory or URL, for messages.
    """

    place: str

    @abstractmethod
    def listed(self) -> list[str]:
        """The names in the place, those that are only begun too."""

    @abstractmethod
    def begin(self, name: str) -> None:
        """Makes room for a step, and removes what steps have left that were never finished."""

    @abstractmethod
    def write(self, name: str, file: str, write: Write, check: Check | None = None) -> list[int]:
        """Writes a file of a step that has begun, and checks it as it lies there; its size and CRC-32."""

    @abstractmethod
    def publish(self, name: str, index: bytes) -> None:
        """Makes a step whole, once all its files are written."""

    @abstractmethod
    def opened(self, name: str, file: str, most: int) -> BinaryIO:
        """A file of a step; FileNotFoundError, or CorruptError if it has more than `most` bytes."""

    def give_up(self, name: str) -> None:
        """Removes what was written of a step that will not be published."""
        self.remove(name)

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a step; what cannot be removed stays."""

    def names(self) -> list[str]:
        """The steps, the newest first; those behind a URL may be unfinished."""
        return sorted(filter(_NAME.fullmatch, self.listed()), key=_age, reverse=True)

    def next_name(self, step: int) -> str:
        """A name that is free, and newer than all others of the step."""
        taken = [_age(name)[1] for name in self.names() if _age(name)[0] == step]
        return f"step-{step}-{max(taken) + 1}" if taken else f"step-{step}"

    def index(self, name: str) -> Saved:
        """The parts of a step.

        Raises:
            NotFoundError: it was not finished.
            CorruptError: it is damaged.
        """
        try:
            with self.opened(name, INDEX, _MOST_BYTES) as file:
                found = json.loads(file.read())
            body, crc = found["index"], found["crc32"]
            sound = crc == crc32(json.dumps(body).encode()) and body["version"] == 1 and body["ranks"] > 0
            sound = sound and all(min(map(int, entry)) >= 0 for entry in body["files"].values())
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.place}/{name} was never finished") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(f"{self.place}/{name}/{INDEX} is damaged: {error!r}") from error
        if not sound:
            raise CorruptError(f"{self.place}/{name}/{INDEX} is damaged, or of a later version")
        return dict(body)

    def finish(self, name: str, index: Saved) -> None:
        """Publishes a step with its index."""
        body = {"version": 1, **index}
        self.publish(name, json.dumps({"index": body, "crc32": crc32(json.dumps(body).encode())}).encode())

    def read(self, name: str, index: Saved, file: str) -> BinaryIO:
        """A file of a step; CorruptError if it is not as it was written."""
        try:
            nbytes, crc = index["files"][file]
            opened = self.opened(name, file, nbytes)
        except (FileNotFoundError, KeyError) as error:
            raise CorruptError(f"{self.place}/{name} has no {file}") from error
        if crc32_of(opened) != (crc, nbytes):
            opened.close()
            raise CorruptError(f"{self.place}/{name}/{file} is not what was written there: it is damaged")
        opened.seek(0)
        return opened


class _LocalSteps(Steps):
    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder

    def listed(self) -> list[str]:
        return [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []

    def begin(self, name: str) -> None:
        made = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in made:
            sync_folder(path.parent)
        for other in self.listed():
            if other.endswith(_TMP) and _NAME.fullmatch(other.removesuffix(_TMP)):
                _removed(self._folder / other)
        (self._folder / f"{name}{_TMP}").mkdir()

    def write(self, name: str, file: str, write: Write, check: Check | None = None) -> list[int]:
        begun = self._folder / f"{name}{_TMP}"
        if not begun.is_dir():
            raise YogaError(
                f"{begun} was made by rank 0, but is not there; all ranks must see the folder, "
                "and no other program may save in it"
            )
        return _written(begun / file, write, check)

    def publish(self, name: str, index: bytes) -> None:
        begun = self._folder / f"{name}{_TMP}"
        _written(begun / INDEX, lambda file: file.write(index))
        sync_folder(begun)
        begun.rename(self._folder / name)
        sync_folder(self._folder)

    def opened(self, name: str, file: str, most: int) -> BinaryIO:
        path = self._folder / name / file
        try:
            opened = open(open_regular(path), "rb")  # noqa: SIM115
        except (FileNotFoundError, CorruptError):
            raise
        except OSError as error:
            raise CorruptError(f"{path} cannot be read: {error}") from error
        if os.fstat(opened.fileno()).st_size > most:
            opened.close()
            raise CorruptError(f"{path} has more than the {most} bytes that belong there")
        return opened

    def give_up(self, name: str) -> None:
        shutil.rmtree(self._folder / f"{name}{_TMP}", ignore_errors=True)

    def remove(self, name: str) -> None:
        # Under the name of one that was never finished: a step that is half removed does not count.
        gone = self._folder / f"{name}{_TMP}"
        with contextlib.suppress(OSError):
            (self._folder / name).rename(gone)
            _removed(gone)


class _RemoteSteps(Steps):
    def __init__(self, remote: Any) -> None:
        self.place = remote.url
        self._remote = remote

    def listed(self) -> list[str]:
        return list(self._remote.folders())

    def begin(self, name: str) -> None:
        self._remote.refuse_read_only()
        for other in self.names():
            if self._remote.find_one(f"{other}/{INDEX}") is None:
                self.remove(other)

    def write(self, name: str, file: str, write: Write, check: Check | None = None) -> list[int]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, file)
            found = _written(path, write, check)
            self._remote.upload(str(path), f"{name}/{file}")
        return found

    def publish(self, name: str, index: bytes) -> None:
        self._remote.write(f"{name}/{INDEX}", index)

    def opened(self, name: str, file: str, most: int) -> BinaryIO:
        if file == INDEX:
            return io.BytesIO(self._remote.read(f"{name}/{file}", most))
        (data,) = self._remote.read_ranges(f"{name}/{file}", [(0, most)], most)
        return io.BytesIO(data)

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._remote.delete([f"{name}/{INDEX}"])  # first: what is left is unfinished
            self._remote.delete([f"{name}/{file}" for file in self._remote.find(name)])


def worth_keeping(names: Iterable[str]) -> list[str]:
    """Names, those worth keeping first: the newest of each step, then those that it has replaced.

    Args:
        names: the newest first.

    Example:
        >>> worth_keeping(["step-4-1", "step-4", "step-2"])
        ['step-4-1', 'step-2', 'step-4']
    """
    last: dict[int, str] = {}
    replaced = [name for name in names if last.setdefault(_age(name)[0], name) != name]
    return [*last.values(), *replaced]


def _age(name: str) -> tuple[int, int]:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _removed(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _written(path: Path, write: Write, check: Check | None = None) -> list[int]:
    """The size and CRC-32 of a new file, which is on the disk when this returns."""
    try:
        with path.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch.save hides a failed write behind an error of its own
        failed = error if isinstance(error, OSError) else error.__context__
        if isinstance(failed, OSError):
            said = f"saving failed ({failed.strerror}); free some space there, or choose another folder"
            raise OSError(failed.errno, said, str(path)) from error
        raise
    if check is not None:
        check(path)
    with path.open("rb") as file:
        crc, nbytes = crc32_of(file)
    return [nbytes, crc]


_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def states_of(items: Mapping[str, Any]) -> dict[str, Any]:
    """The state of each item, by name."""
    states = {}
    for name, item in items.items():
        state = _plain(item.state_dict())
        states[name] = _unwrapped(item, state) if isinstance(item, nn.Module) else state
    return states


def load_states(items: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Loads the states of all items.

    Raises:
        StateError: an item refuses its state.
    """
    for name, item in _models_first(items):
        state = states[name]
        if isinstance(item, nn.Module):
            state = _wrapped(item, state)
        with _explained(name):
            item.load_state_dict(state)


def refuse_divided(items: Mapping[str, Any]) -> None:
    """Raises TypeError, on all ranks, if a model is divided among them."""
    for name, item in items.items():
        parts = item.modules() if isinstance(item, nn.Module) else ()
        if any(type(part).__name__ == "FullyShardedDataParallel" or _has_dtensor(part) for part in parts):
            raise TypeError(
                f"{name} is divided among ranks; save it by torch.distributed.checkpoint: override save() by "
                "dcp.save({'run': self}, checkpoint_id=...), see docs/howto/script.md"
            )


def without_state(items: Mapping[str, Any]) -> list[str]:
    """The optimizers that have not stepped yet."""
    return [
        name for name, item in items.items() if isinstance(item, torch.optim.Optimizer) and not item.state
    ]


def sharded(items: Mapping[str, Any]) -> dict[str, Any]:
    """The states for torch.distributed.checkpoint, which may be divided among ranks.

    Raises:
        TypeError: an optimizer steps parameters of no model among the items.
    """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    states: dict[str, Any] = {}
    fresh = without_state(items)
    for name, item in items.items():
        if isinstance(item, nn.Module):
            states[name] = get_model_state_dict(item)
        elif isinstance(item, torch.optim.Optimizer):
            states[name] = get_optimizer_state_dict(_model_of(name, item, items), item)
        else:
            states[name] = _plain(item.state_dict())
    for name in fresh:  # torch has made a state, to have one
        items[name].state.clear()
    return states


def load_sharded(items: Mapping[str, Any], states: Mapping[str, Any], fresh: list[str]) -> None:
    """Loads what `sharded` gave, under any number of ranks; `fresh` as `without_state` gave it then."""
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    for name, item in _models_first(items):
        state = states.get(name, {})  # one that is empty is not kept
        with _explained(name):
            if isinstance(item, nn.Module):
                set_model_state_dict(item, state)
            elif isinstance(item, torch.optim.Optimizer):
                set_optimizer_state_dict(_model_of(name, item, items), item, state)
                if name in fresh:
                    item.state.clear()
            else:
                item.load_state_dict(state)


def check_readable(states: Mapping[str, Any], path: Path) -> None:
    """Raises TypeError, naming the item, if states could not be loaded again with `weights_only=True`."""
    try:
        torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError:
        for name, state in states.items():
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            try:
                torch.load(file, map_location="cpu", weights_only=True)
            except pickle.UnpicklingError as error:
                raise TypeError(
                    f"the state of {name} holds what torch.load refuses with weights_only=True: "
                    f"{str(error).splitlines()[0][:300]}; let its state_dict() give tensors, numbers, text, "
                    "lists and dicts"
                ) from error
        raise


def _models_first(items: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The items in the order in which they are loaded, for optimizers look at models."""
    return sorted(items.items(), key=lambda pair: not isinstance(pair[1], nn.Module))


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Makes an error of an item's own a StateError that names it."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{name} refuses the state that was saved under its name: {error}") from error


def _plain(state: Any) -> Any:
    """The same with numbers of Python where they are NumPy's, which `weights_only` refuses."""
    if type(state) is dict:
        return {key: _plain(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_plain(value) for value in state)
    return state.item() if isinstance(state, np.generic) else state


def _has_dtensor(part: nn.Module) -> bool:
    return any(type(value).__name__ == "DTensor" for value in part.parameters(recurse=False))


def _unwrapped(model: nn.Module, state: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """A model's state under the names that it has without wrappers."""
    found = OrderedDict((_plain_name(model, key), value) for key, value in state.items())
    versions = getattr(state, "_metadata", {})  # of the parts of a model, by their names
    vars(found)["_metadata"] = {_plain_name(model, path): part for path, part in versions.items()}
    return found


def _wrapped(model: nn.Module, state: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """The state that `_unwrapped` gave, under the names that a model has."""
    left = dict(state)
    found: OrderedDict[str, Any] = OrderedDict()
    for key in model.state_dict():
        plain = _plain_name(model, key)
        if plain in state:
            found[key] = state[plain]
            left.pop(plain, None)
    found.update(left)  # which the model refuses, by name
    versions = getattr(state, "_metadata", {})
    own = {path: _plain_name(model, path) for path, _ in model.named_modules(remove_duplicate=False)}
    vars(found)["_metadata"] = {path: versions[plain] for path, plain in own.items() if plain in versions}
    return found


def _plain_name(model: nn.Module, name: str) -> str:
    """The name of a part without those of wrappers around it."""
    plain: list[str] = []
    part: nn.Module | None = model
    for step in name.split(".") if name else ():
        is_wrapper = isinstance(part, _WRAPPERS) and step == "module"
        if not is_wrapper and step != "_orig_mod":
            plain.append(step)
        part = getattr(part, "_modules", {}).get(step)
    return ".".join(plain)


def _model_of(name: str, optimizer: torch.optim.Optimizer, items: Mapping[str, Any]) -> nn.Module:
    """The model whose parameters an optimizer steps, or all models, if these are of several."""
    models = {other: item for other, item in items.items() if isinstance(item, nn.Module)}
    steps = {id(value) for group in optimizer.param_groups for value in group["params"]}
    for model in models.values():
        if steps <= set(map(id, model.parameters())):
            return model
    together = nn.ModuleDict(models)
    if not steps <= set(map(id, together.parameters())):
        raise TypeError(f"{name} steps parameters of no model here; pass its models, too")
    return together
