"""The habits of trainers that no interface says: seen from who is calling, and from Accelerate's own state.

The stack is looked at once for each iteration. It shows Accelerate that shards again, or skips; Keras that
takes a batch to build a model; Lightning that asks once how long all epochs are.

A loader is prepared for Accelerate already.
`prepare` would replace it by one whose place is lost. Under Accelerate it deals runs of rows, one to each
rank, as `gather_for_metrics` lays batches end to end and cuts off what was added; at the end of each step the
same positions are consumed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol, TypeGuard

from ..order.contract import Saved
from ..rows.types import Index

_GIVEN_AGAIN = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
_DEPTH = 24  # frames between a loader and the function of a trainer that asks it


class GradientState(Protocol):
    """Accelerate's, which wants to know which loader is active."""

    def _add_dataloader(self, dataloader: object) -> None: ...

    def _remove_dataloader(self, dataloader: object) -> None: ...


class Seeing(Protocol):
    """The wrapper that Lightning's predict puts around a batch sampler, to see each batch."""

    seen_batch_indices: list[list[Index]]
    _batch_sampler: Iterable[Index]


def batches_of_torch() -> tuple[int, Mapping[int, object]]:
    """Facts about torch's loader, if it asks for rows.

    The rows of a batch, 1 if another batch sampler than torch's asks; and the batches that an iterator with
    worker processes has asked for and not delivered. Torch notes these in a dictionary, which outlives an
    iterator that is dropped.
    """
    size = 1
    tasks: Mapping[int, object] = {}
    for frame in _callers():
        if not _module_of(frame).startswith("torch.utils.data."):
            continue
        kind = _asking(frame)
        if kind == "BatchSampler":
            size = frame.f_locals["self"].batch_size
        elif kind == "_MultiProcessingDataLoaderIter":
            tasks = frame.f_locals["self"]._task_info
    return size, tasks


def is_sharded_by_caller() -> bool:
    """True if the caller is Accelerate's BatchSamplerShard, which itself deals whole batches to the ranks."""
    if "accelerate.data_loader" not in sys.modules:
        return False
    shard = sys.modules["accelerate.data_loader"].BatchSamplerShard
    names = ("_iter_with_no_split", "_iter_with_split", "__len__")
    return any(
        frame.f_code.co_name in names and isinstance(frame.f_locals.get("self"), shard)
        for frame in _callers()
    )


def is_accelerate_asking() -> bool:
    """True if Accelerate itself reads the attribute that asks this."""
    return _module_of(sys._getframe(2)).partition(".")[0] == "accelerate"


def is_before_prepare() -> bool:
    """True in a process with an Accelerator: it is to prepare the loaders that it has not prepared yet.

    Not if transformers' Trainer asks: it has an Accelerator, but takes a loader of ours as it is.
    """
    found = sys.modules.get("accelerate.state")
    if found is None or not found.AcceleratorState._shared_state:
        return False
    return not any(_module_of(frame).startswith("transformers.") for frame in _callers())


def num_skipped() -> int:
    """How many of the first batches Accelerate's SkipBatchSampler will throw away, if it is the caller."""
    if "accelerate.data_loader" not in sys.modules:
        return 0
    for frame in _callers():
        if frame.f_code.co_name == "__iter__" and _asking(frame) == "SkipBatchSampler":
            return int(frame.f_locals["self"].skip_batches)
    return 0


def is_skipping_batches() -> bool:
    """True if Accelerate's skip_first_batches reads a loader to make another one of it."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(2):  # before Python 3.12 a comprehension has a frame of its own
        if frame is not None and frame.f_code.co_name == "skip_first_batches":
            return _module_of(frame) == "accelerate.data_loader"
        frame = frame and frame.f_back
    return False


def name_arguments(loader: object) -> None:
    """Names the arguments that Lightning has noted by position, from those on that it gives again by name.

    It does so to make a new loader around another sampler, and both would be given (seen with Lightning
    2.6.6).
    """
    given, names = (getattr(loader, f"__pl_saved_{kind}", ()) for kind in ("args", "arg_names"))
    again = min((names.index(name) for name in _GIVEN_AGAIN if name in names), default=len(names))
    if again < len(names) == len(given):
        named = dict(zip(names[again:], given[again:], strict=True))
        named = {**named, **getattr(loader, "__pl_saved_kwargs", {})}
        for kind, found in (("args", given[:again]), ("arg_names", names[:again]), ("kwargs", named)):
            object.__setattr__(loader, f"__pl_saved_{kind}", found)


def is_planning_epochs() -> bool:
    """True if Lightning's fit asks how long epochs are: it does so once, and means all of them."""
    if not _is_lightning_here():
        return False
    names = [frame.f_code.co_name for frame in _callers() if "lightning" in _module_of(frame)]
    return "setup_data" in names and "reset" not in names


def left_by_lightning(loader: object) -> tuple[Sequence[Saved], Saved] | None:
    """The states that Lightning's fit has read but not given to the loaders, and the one for this loader.

    None if there are none, or none for this loader.

    After a run that began with a checkpoint of the end of an epoch, it takes every later checkpoint for one
    of the end of an epoch, and loads no states (seen with Lightning 2.6.6).
    """
    for frame in _callers() if _is_lightning_here() else ():
        if not _module_of(frame).endswith("loops.fit_loop") or frame.f_locals.get("self") is None:
            continue
        loop: Any = frame.f_locals["self"]
        states: Sequence[Saved] = loop._combined_loader_states_to_load
        if states:
            stateful = [one for one in loop._combined_loader.flattened if hasattr(one, "load_state_dict")]
            for one, state in zip(stateful, states, strict=False):
                if one is loader:
                    return states, state
    return None


def seen_by_lightning(batch_sampler: Iterable[Index] | None) -> tuple[Iterable[Index] | None, Seeing | None]:
    """A batch sampler without the wrapper of Lightning's predict; and that wrapper, which wants to see each
    batch, or None."""
    if _is_seeing(batch_sampler):
        return batch_sampler._batch_sampler, batch_sampler
    return batch_sampler, None


def _is_seeing(batch_sampler: object) -> TypeGuard[Seeing]:
    return type(batch_sampler).__name__ == "_IndexBatchSamplerWrapper"


def is_read_by_accelerate() -> bool:
    """True if the caller is a loader of Accelerate's own."""
    loaders = ("DataLoaderShard", "DataLoaderDispatcher")
    return "accelerate.data_loader" in sys.modules and any(
        frame.f_code.co_name == "__iter__" and _asking(frame) in loaders for frame in _callers()
    )


def is_only_looked_at() -> bool:
    """True if what is asked for will not be trained on.

    Keras takes a batch to build a model with it, and on TensorFlow two, to see what they look like.
    Lightning's sanity check takes two, before the first validation. torchdata's StatefulDataLoader, given a
    state of the end of an epoch, takes an iterator with all that it prefetches, to find that it has ended.
    """
    for frame in _callers():
        module, name = _module_of(frame), frame.f_code.co_name
        if module.startswith("keras.") and name in ("_symbolic_build", "get_tf_dataset"):
            return True
        if name == "_run_sanity_check" and "lightning" in module:
            return True
        if module.startswith("torchdata.stateful") and name == "__init__":
            state = frame.f_locals.get("next_iter_state")
            return bool(state and state.get("_iterator_finished"))
    return False


def evaluated_by_lightning() -> str:
    """ "validate", "test" or "predict" if the caller is that method of Lightning's Trainer, else ""."""
    for frame in _callers() if _is_lightning_here() else ():
        loop = frame.f_locals.get("self")
        if loop is not None and _module_of(frame).endswith(("evaluation_loop", "prediction_loop")):
            name = loop.trainer.state.fn.value
            return "" if name == "fit" else str(name)
    return ""


def is_evaluated() -> bool:
    """True if Keras evaluates or predicts: for as many steps as given, each time from the first batch."""
    return "keras" in sys.modules and any(
        frame.f_code.co_name in ("evaluate", "predict") and _module_of(frame).startswith("keras.")
        for frame in _callers()
    )


def is_keras_building() -> bool:
    """True if Keras, in whatever thread, takes a batch to build a model with it.

    It is for data that TensorFlow's threads ask for while Keras waits.
    """
    names = ("_maybe_symbolic_build", "_symbolic_build")
    return any(frame.f_code.co_name in names for frames in _frames_of_keras() for frame in frames)


def epochs_without_length() -> int:
    """Epochs that a Keras fit under way, in whatever thread, plans over data that does not say its length.

    Keras takes the length of the first for the length of all. 0 if there is no such fit.
    """
    for frames in _frames_of_keras():
        found = next((frame for frame in frames if "epoch_iterator" in frame.f_locals), None)
        if found is not None and found.f_code.co_name == "fit":
            fit = found.f_locals
            epochs: Any = fit["epoch_iterator"]
            if not epochs.steps_per_epoch and epochs.data_adapter.num_batches is None:
                return int(fit["epochs"]) - int(fit["initial_epoch"])
    return 0


def told_by_keras() -> tuple[bool, bool] | None:
    """Whether Keras trains on an epoch that it begins or ends here, and whether it has used all of it.

    None if the caller is not Keras.
    """
    epochs: Any = None  # Keras's EpochIterator
    for frame in _callers():
        name, module = frame.f_code.co_name, _module_of(frame)
        if epochs is None and module == "keras.src.trainers.epoch_iterator":
            epochs = frame.f_locals["self"]
            # A reset drops what was read; the steps begin from 0 again when all were done.
            is_used_up = name != "reset" and not 0 < epochs._steps_seen < (epochs._num_batches or 0)
        elif epochs is not None and module.startswith("keras.") and "epoch_iterator" in frame.f_locals:
            return name == "fit", is_used_up
    return None


def _frames_of_keras() -> Iterator[list[FrameType]]:
    """Keras's frames of each thread, innermost first."""
    for frame in sys._current_frames().values() if "keras" in sys.modules else ():
        found: list[FrameType] = []
        caller: FrameType | None = frame
        while caller is not None:
            if _module_of(caller).startswith("keras."):
                found.append(caller)
            caller = caller.f_back
        yield found


def _is_lightning_here() -> bool:
    return "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _asking(frame: FrameType) -> str:
    """The name of the class whose method a frame is of."""
    return type(frame.f_locals.get("self")).__name__


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def gradient_state() -> GradientState | None:
    """Accelerate's GradientState, if there is an Accelerator: it wants to know which loader is active."""
    found = sys.modules.get("accelerate.state")
    if found is None or not found.GradientState._shared_state:
        return None
    state: GradientState = found.GradientState()
    return state


def accelerate_device() -> object:
    """The device of the Accelerator, or None."""
    return _of_accelerate("PartialState", "device")


def accelerate_mesh() -> object:
    """The DeviceMesh of the Accelerator, or None."""
    return _of_accelerate("AcceleratorState", "device_mesh")


def _of_accelerate(kind: str, name: str) -> object:
    found = sys.modules.get("accelerate.state")
    return None if found is None else getattr(found, kind)._shared_state.get(name)
