"""Messages of workers, pickled where its error can be told: by the worker itself.

torch's queue pickles on a thread of its own. If that fails, the thread prints the error, and the training
loop waits without end. Numbers, text and arrays of numbers never fail; a batch with anything else in it is
pickled before the queue gets it, once, and travels as bytes.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import pickle
from collections.abc import Collection, Iterable
from multiprocessing.reduction import ForkingPickler

import numpy as np
import torch

from ..process.raised import Raised
from ..rows.types import Batch, Row

_NUMPY: set[type] = {np.bool_, np.str_, np.bytes_, np.datetime64, np.timedelta64}


_NUMPY |= {cls for cls in np.sctypeDict.values() if issubclass(cls, np.number)}
PLAIN: set[type] = {type(None), bool, int, float, complex, str, bytes, bytearray, *_NUMPY}
PLAIN |= {torch.dtype, torch.Size}


class Plain:
    """A class whose objects can always be pickled: all that inherit from it are in `PLAIN`."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        PLAIN.add(cls)


class Sealed:
    """A pickled batch; pickling it gives the batch itself on the other side.

    Args:
        batch: batches, a parcel of them, or a single row.
        count: how many batches there are; None for a single row.
        contents: what to look for the cause in, if it cannot be pickled.

    Raises:
        TypeError: it cannot be pickled; says what in it cannot.
    """

    def __init__(self, batch: Batch, count: int | None, contents: Batch) -> None:
        buffer = io.BytesIO()
        try:
            ForkingPickler(buffer).dump(batch)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(
                f"a batch cannot be sent from a worker process: there is {_culprit(contents)} in it, which "
                f"cannot be pickled ({error}); return tensors, arrays or plain data, or use num_workers=0"
            ) from error
        except (OSError, RuntimeError) as error:
            if (lack := _lack_of_files(error)) is None:
                raise
            raise lack from error
        self._data = buffer.getvalue()
        self._count = count

    def __reduce__(self) -> tuple[object, ...]:
        return _opened, (self._data, self._count)


def _opened(data: bytes, count: int | None) -> Batch:
    """The batch; or for each batch the error, if it cannot be unpickled."""
    try:
        return ForkingPickler.loads(data)
    except Exception as error:
        lack = _lack_of_files(error)
        if lack is None and isinstance(error, (OSError, EOFError, MemoryError)):
            raise  # the worker has ended, or the system lacks something: torch says what
        failure = Raised(lack or error, "when what a worker process has sent was unpickled")
        return failure if count is None else [failure] * count


def _lack_of_files(error: Exception) -> RuntimeError | None:
    """What to say where the system opens no more files for this process; None if it is another error."""
    if not any(sign in str(error) for sign in ("ancdata", os.strerror(errno.EMFILE))):
        return None
    return RuntimeError(
        "a batch cannot be sent from a worker process: each of its tensors takes an open file, and there are "
        f"too many ({error}); increase the limit (`ulimit -n` in the shell), call "
        "torch.multiprocessing.set_sharing_strategy('file_system') at the beginning of your code, keep fewer "
        "batches, or collate their rows to fewer tensors"
    )


def is_plain(node: Row) -> bool:
    """True for what can always be pickled, and nested as it is: numbers, text, arrays of numbers.

    Args:
        node: any nesting, which does not contain itself.
    """
    cls: type = type(node)
    if cls is dict:
        return _are_plain(node) and _are_plain(node.values())
    if cls is list or cls is tuple:
        return _are_plain(node)
    if cls in PLAIN:
        return True
    if cls is np.ndarray:
        return node.dtype.kind in "biufcSUmM" and node.dtype.metadata is None
    return isinstance(node, tuple) and _has_fields_only(cls) and _are_plain(node)


def _are_plain(nodes: Collection[Row]) -> bool:
    return PLAIN.issuperset(map(type, nodes)) or all(map(is_plain, nodes))


def _culprit(batch: Batch) -> str:
    """The part of a batch that cannot be pickled: the innermost of those that have a place in it."""
    for part in _parts(batch):
        try:
            ForkingPickler.dumps(part)
        except Exception:
            return _culprit(part)
    return f"a {type(batch).__name__}"


def _parts(node: Row) -> Iterable[Row]:
    if type(node) is dict:
        return [*node, *node.values()]
    if isinstance(node, (list, tuple)):
        return node
    return ()


@functools.lru_cache(256)
def _has_fields_only(cls: type) -> bool:
    """True for a namedtuple that is pickled as its class and its fields."""
    ways = ("__reduce__", "__reduce_ex__", "__getstate__")
    are_plain = all(getattr(cls, name, None) is getattr(tuple, name, None) for name in ways)
    return hasattr(cls, "_fields") and are_plain and _can_be_named(cls)


@functools.lru_cache(256)
def _can_be_named(cls: type) -> bool:
    """True for a class that can be pickled: not one within a function."""
    try:
        ForkingPickler.dumps(cls)
    except Exception:
        return False
    return True
