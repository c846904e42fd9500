"""The parts of a program that have a state -> their states under plain names, and back.

A model is saved as it is without DistributedDataParallel and `torch.compile`, and loads with or without them.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import StateError

__all__ = ["check_readable", "load", "load_sharded", "saved", "sharded", "write"]

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def saved(items: Mapping[str, Any]) -> dict[str, Any]:
    """The state of each item, by name.

    Raises:
        TypeError: a state is divided among ranks.
    """
    states = {}
    for name, item in items.items():
        state = _plain(item.state_dict())
        if any(type(value).__name__ == "DTensor" for value in _leaves(state)):
            raise TypeError(
                f"{name} is divided among ranks (a DTensor); save it by torch.distributed.checkpoint: "
                "override save() by dcp.save({'run': self}, checkpoint_id=...), see docs/howto/script.md"
            )
        states[name] = _unwrapped(item, state) if isinstance(item, nn.Module) else state
    return states


def load(items: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Loads the states of all items: models first, for optimizers look at them.

    Raises:
        StateError: an item refuses its state.
    """
    for name in sorted(items, key=lambda name: not isinstance(items[name], nn.Module)):
        item, state = items[name], states[name]
        if isinstance(item, nn.Module):
            state = _wrapped(item, state)
        with _explained(name):
            item.load_state_dict(state)


def sharded(items: Mapping[str, Any]) -> dict[str, Any]:
    """The states for torch.distributed.checkpoint, which may be divided among ranks."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    states: dict[str, Any] = {}
    for name, item in items.items():
        if isinstance(item, nn.Module):
            states[name] = get_model_state_dict(item)
        elif (model := _model_of(item, items)) is not None:
            states[name] = get_optimizer_state_dict(model, item)
        else:
            states[name] = _plain(item.state_dict())
    return states


def load_sharded(items: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Loads what `sharded` gave, under any number of ranks."""
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    for name in sorted(items, key=lambda name: not isinstance(items[name], nn.Module)):
        item, state = items[name], states.get(name, {})  # one that is empty is not kept
        with _explained(name):
            if isinstance(item, nn.Module):
                set_model_state_dict(item, state)
            elif (model := _model_of(item, items)) is not None:
                set_optimizer_state_dict(model, item, state)
            else:
                item.load_state_dict(state)


def write(states: Mapping[str, Any], file: Any) -> None:
    """Writes states as `torch.load` reads them with `weights_only=True`."""
    torch.save(dict(states), file)


def check_readable(path: Path, states: Mapping[str, Any]) -> None:
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


class _explained:
    """Makes an error of an item's own a StateError that names it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Begins to load."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (RuntimeError, ValueError, KeyError, TypeError, AttributeError)):
            raise StateError(
                f"{self._name} refuses the state that was saved under its name: {error}"
            ) from error


def _plain(state: Any) -> Any:
    """The same with numbers of Python where they are NumPy's, which `weights_only` refuses."""
    if type(state) is dict:
        return {key: _plain(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_plain(value) for value in state)
    return state.item() if isinstance(state, np.generic) else state


def _leaves(state: Any) -> Any:
    if isinstance(state, Mapping):
        for value in state.values():
            yield from _leaves(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from _leaves(value)
    else:
        yield state


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


def _model_of(item: Any, items: Mapping[str, Any]) -> nn.Module | None:
    """The model whose parameters an optimizer steps; None if it is no optimizer, or of another model."""
    if not isinstance(item, torch.optim.Optimizer):
        return None
    steps = {id(value) for group in item.param_groups for value in group["params"]}
    for other in items.values():
        if isinstance(other, nn.Module) and steps <= set(map(id, other.parameters())):
            return other
    return None
