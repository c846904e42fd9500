"""What trainers do that no interface says: told by who is calling, and by Accelerate's own state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = [
    "accelerate_device",
    "accelerate_mesh",
    "batches_of_torch",
    "gradient_state",
    "is_only_looked_at",
    "is_planning_epochs",
    "is_read_by_accelerate",
    "is_sharded_by_caller",
    "left_by_lightning",
    "num_skipped",
    "seen_by_lightning",
]

_DEPTH = 24  # frames between a loader and the function of a trainer that asks it


def batches_of_torch() -> tuple[int, Any]:
    """What asks for rows: torch's BatchSampler, of so many rows a batch (1 if it is another), and its iterator.

    That is None unless it asks ahead, for worker processes.
    """
    size, fetcher = 1, None
    for frame in _callers():
        asking: Any = frame.f_locals.get("self")
        if not _module_of(frame).startswith("torch.utils.data."):
            continue
        if type(asking).__name__ == "BatchSampler":
            size = asking.batch_size
        elif type(asking).__name__ == "_MultiProcessingDataLoaderIter":
            fetcher = asking
    return size, fetcher


def is_sharded_by_caller() -> bool:
    """True if Accelerate's BatchSamplerShard asks: it deals whole batches to the ranks by itself."""
    if "accelerate.data_loader" not in sys.modules:
        return False
    shard = sys.modules["accelerate.data_loader"].BatchSamplerShard
    names = ("_iter_with_no_split", "_iter_with_split", "__len__")
    return any(
        frame.f_code.co_name in names and isinstance(frame.f_locals.get("self"), shard)
        for frame in _callers()
    )


def num_skipped() -> int:
    """How many of the first batches Accelerate's SkipBatchSampler will throw away, if it is what asks."""
    if "accelerate.data_loader" not in sys.modules:
        return 0
    for frame in _callers():
        asking: Any = frame.f_locals.get("self") if frame.f_code.co_name == "__iter__" else None
        if type(asking).__name__ == "SkipBatchSampler":
            return int(asking.skip_batches)
    return 0


def is_planning_epochs() -> bool:
    """True if Lightning's fit asks how long epochs are: it does so once, and means all of them."""
    if not _is_lightning_here():
        return False
    names = [frame.f_code.co_name for frame in _callers() if "lightning" in _module_of(frame)]
    return "setup_data" in names and "reset" not in names


def left_by_lightning(loader: Any) -> tuple[Any, Any]:
    """The states that Lightning's fit has read and not given to the loaders, and the one for this loader.

    After a run that began with a checkpoint of the end of an epoch, it takes every later checkpoint for one
    of the end of an epoch, and loads no states (seen with Lightning 2.6.6).
    """
    for frame in _callers() if _is_lightning_here() else ():
        loop: Any = frame.f_locals.get("self") if _module_of(frame).endswith("loops.fit_loop") else None
        if loop is not None and loop._combined_loader_states_to_load:
            states = loop._combined_loader_states_to_load
            stateful = [one for one in loop._combined_loader.flattened if hasattr(one, "load_state_dict")]
            for one, state in zip(stateful, states, strict=False):
                if one is loader:
                    return states, state
    return None, None


def seen_by_lightning(batch_sampler: Any) -> tuple[Any, Any]:
    """A batch sampler out of what Lightning's predict puts around it; and that, which wants to be told, or
    None."""
    if type(batch_sampler).__name__ == "_IndexBatchSamplerWrapper":
        return batch_sampler._batch_sampler, batch_sampler
    return batch_sampler, None


def is_read_by_accelerate() -> bool:
    """True if a loader of Accelerate's own asks."""
    loaders = ("DataLoaderShard", "DataLoaderDispatcher")
    return "accelerate.data_loader" in sys.modules and any(
        frame.f_code.co_name == "__iter__" and type(frame.f_locals.get("self")).__name__ in loaders
        for frame in _callers()
    )


def is_only_looked_at() -> bool:
    """True if what is asked for will not be trained on.

    Keras takes a batch to build a model with it; torchdata's StatefulDataLoader, given a state of the end of
    an epoch, an iterator with all that it prefetches, to find that it is at its end.
    """
    for frame in _callers():
        module, name = _module_of(frame), frame.f_code.co_name
        if module.startswith("keras.") and name == "_symbolic_build":
            return True
        if module.startswith("torchdata.stateful") and name == "__init__":
            state = frame.f_locals.get("next_iter_state")
            return bool(state and state.get("_iterator_finished"))
    return False


def _is_lightning_here() -> bool:
    return "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def gradient_state() -> Any:
    """Accelerate's GradientState, if there is an Accelerator: it wants to know which loader is active."""
    found = sys.modules.get("accelerate.state")
    return found.GradientState() if found is not None and found.GradientState._shared_state else None


def accelerate_device() -> Any:
    """The device of the Accelerator, or None."""
    return _of_accelerate("PartialState", "device")


def accelerate_mesh() -> Any:
    """The DeviceMesh of the Accelerator, or None."""
    return _of_accelerate("AcceleratorState", "device_mesh")


def _of_accelerate(kind: str, name: str) -> Any:
    found = sys.modules.get("accelerate.state")
    return None if found is None else getattr(found, kind)._shared_state.get(name)
