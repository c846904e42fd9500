"""The parts of a program that have a state -> their states under plain names, and back.

A model is saved as it is without DistributedDataParallel and `torch.compile`, and loads with or without them.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import StateError

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def saved(items: Mapping[str, Any]) -> dict[str, Any]:
    """The state of each item, by name."""
    states = {}
    for name, item in items.items():
        state = _plain(item.state_dict())
        states[name] = _unwrapped(item, state) if isinstance(item, nn.Module) else state
    return states


def load(items: Mapping[str, Any], states: Mapping[str, Any]) -> None:
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
