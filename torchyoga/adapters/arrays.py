"""Arrays, tensors and .npy files -> rows, in place: nothing is copied before a row is asked for."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np
import torch

from ..errors import CorruptError, NotFoundError, SchemaError
from ..formats.items import Mapped
from ..formats.mapped import Memory, bytes_from
from ..process.buffers import BufferPool, address_of
from ..reading.dataref import DataRef
from ..reading.stored_ref import ColumnsRef
from ..rows.block import Data, bounds_of
from ..rows.column import Column
from ..rows.schema import Schema
from ..rows.types import Array, Ints, Row

ArrayOrTensor: TypeAlias = Array | torch.Tensor  # (N, ...)
Arrays: TypeAlias = ArrayOrTensor | str | os.PathLike[str]  # in memory, or in a file


def is_arrays(data: object) -> TypeGuard[ArrayOrTensor | dict[Hashable, ArrayOrTensor]]:
    """True for an array or a tensor with rows, and for a dict of such."""
    if isinstance(data, dict):
        return bool(data) and all(isinstance(value, (np.ndarray, torch.Tensor)) for value in data.values())
    return isinstance(data, (np.ndarray, torch.Tensor))


def from_arrays(data: Arrays | Mapping[Any, Arrays]) -> DataRef:
    """Existing arrays as a DataRef: nothing is copied, nothing is cached.

    Args:
        data: an array or a tensor (N, ...), the path of a `.npy` file, or a dict of these, with rows along
            the first axis. A `.npy` file is mapped, not loaded; a DataRef over it, or over a `numpy.memmap`,
            pickles by its path.

    Rows are `data[i]`, or dicts of such elements; a row that is one element of a tensor has no dimensions. Do
    not change the arrays while they are read.

    Raises:
        SchemaError: an array has no rows, or another number of rows than the others, or holds objects.
        NotFoundError: there is no such file.
        CorruptError: a file is not a `.npy` file, or is cut.

    Example:
        >>> ref = from_arrays({"image": np.zeros((3, 28, 28), np.uint8), "label": np.arange(3)})
        >>> len(ref), ref[2]["label"]
        (3, np.int64(2))
    """
    given: Mapping[Hashable, object] = data if isinstance(data, Mapping) else {"the array": data}
    arrays = {name: _loaded(name, value) for name, value in given.items()}
    packed = {name: _packed(array) for name, array in arrays.items()}
    return _over(arrays, packed, given is data)


def _over(arrays: dict[Hashable, ArrayOrTensor], packed: dict[Hashable, _Packed], in_dicts: bool) -> DataRef:
    """A DataRef over arrays, which pickles as `packed`."""
    for name, array in arrays.items():
        if array.ndim == 0:
            raise SchemaError(
                f"{name!r} has 0 dimensions, so it has no rows; pass one with rows along its first axis"
            )
        if isinstance(array, np.ndarray) and array.dtype.hasobject:
            raise SchemaError(
                f"{name!r} is an array of dtype {array.dtype}, which cannot be kept; pass a list of rows"
            )
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise SchemaError(
            f"the arrays have different numbers of rows: {lengths}; rows go along the first axis"
        )
    firsts = {name: _first_row(array) for name, array in arrays.items()}
    schema = Schema.of(firsts if in_dicts else firsts["the array"])
    pool = BufferPool()
    pairs = zip(schema.columns, map(_readable, arrays.values()), strict=True)
    columns = [_column(column, array, pool) for column, array in pairs]
    length = next(iter(lengths.values()))
    return ColumnsRef("arrays", schema, length, columns, (_remade, (packed, in_dicts)), has_runs=True)


def _loaded(name: Hashable, value: object) -> ArrayOrTensor:
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value
    if not isinstance(value, (str, os.PathLike)):
        raise SchemaError(
            f"{name!r}: expected an array, a tensor or the path of a .npy file, found {value!r:.80}; make an "
            'array of a list by np.asarray, and pass several as a dict, {"x": x, "y": y}'
        )
    path = Path(value).expanduser().absolute()
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}; pass the path of a .npy file") from None
    except OSError:
        raise
    except Exception as error:  # of any kind: a damaged header is read as Python's text
        raise CorruptError(f"{path} cannot be read as a .npy file of numbers, or is cut: {error}") from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise CorruptError(
            f"{path} holds several arrays (.npz); save each as a .npy file, which can be mapped"
        )
    return found


def _first_row(array: ArrayOrTensor) -> Row:
    if len(array):
        return array[0]
    if isinstance(array, torch.Tensor):
        return array.new_zeros(array.shape[1:])
    return np.broadcast_to(np.zeros((), array.dtype), (1, *array.shape[1:]))[0]  # a row may be large


def _readable(array: ArrayOrTensor) -> Array:
    if isinstance(array, np.ndarray):
        return array
    array = array.detach().cpu()
    if array.dtype.is_floating_point and array.dtype not in (torch.float16, torch.float32, torch.float64):
        array = array.contiguous().view(torch.uint16 if array.dtype.itemsize == 2 else torch.uint8)
    return array.resolve_conj().resolve_neg().numpy()


def _column(column: Column, array: Array, pool: BufferPool) -> Callable[[Ints | slice], Data]:
    if column.is_ragged:
        return lambda rows: _text(array[rows].tolist())
    stride = array.strides[0] if array.size else 0
    if stride < max(1, column.row_bytes) or not array[0, ...].flags.c_contiguous:
        # Not runs of bytes: rows scattered over memory, or one row repeated.
        return lambda rows: Data(np.ascontiguousarray(array[rows], column.storage))
    span = bytes_from(array, (len(array) - 1) * stride + column.row_bytes)
    items = Mapped(1, stride, Memory([span]))
    items.append(np.zeros(1, np.int64), len(array), np.full((1, 1), address_of(span)))

    def take(rows: Ints | slice) -> Data:
        if isinstance(rows, slice):
            return Data(np.ascontiguousarray(array[rows], column.storage))
        found = items.pick(rows, pool.empty, 0, column.row_bytes)
        values = found.view(array.dtype).reshape(len(rows), *array.shape[1:])
        return Data(values.astype(column.storage, copy=False))  # a NumPy scalar has no byte order

    return take


def _text(values: list[str] | list[bytes]) -> Data:
    encoded = [v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v for v in values]
    offsets = bounds_of(map(len, encoded))
    return Data(np.frombuffer(b"".join(encoded), np.uint8), offsets)


# -- pickling: what lies in a file is sent as its path


class _InFile(NamedTuple):
    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_Packed: TypeAlias = ArrayOrTensor | _InFile


def _packed(array: ArrayOrTensor) -> _Packed:
    if not isinstance(array, np.memmap) or not array.size or min(array.strides, default=0) < 0:
        return array
    owner: Array = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not isinstance(owner.base, mmap.mmap) or array.filename is None:
        return array
    # `offset` of a view is that of the array it was made from: the address gives the place in the file.
    begin = owner.offset - owner.offset % mmap.ALLOCATIONGRANULARITY
    offset = begin + address_of(array) - address_of(np.frombuffer(owner.base, np.uint8))
    return _InFile(os.path.abspath(array.filename), offset, array.dtype.str, array.shape, array.strides)


def _unpacked(packed: _Packed) -> ArrayOrTensor:
    if not isinstance(packed, _InFile):
        return packed
    try:
        data: Array = np.memmap(packed.path, np.uint8, "r")
    except FileNotFoundError:
        raise NotFoundError(f"{packed.path} has been removed since this DataRef was made") from None
    itemsize = np.dtype(packed.dtype).itemsize
    steps = ((n - 1) * stride for n, stride in zip(packed.shape, packed.strides, strict=True))
    if packed.offset + sum(steps) + itemsize > data.size:
        raise CorruptError(f"{packed.path} has been cut since this DataRef was made")
    first = data[packed.offset : packed.offset + itemsize].view(packed.dtype)
    return np.lib.stride_tricks.as_strided(first, packed.shape, packed.strides, subok=True, writeable=False)


def _remade(packed: dict[Hashable, _Packed], in_dicts: bool) -> DataRef:
    return _over({name: _unpacked(value) for name, value in packed.items()}, packed, in_dicts)
