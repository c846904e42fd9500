"""LMDB files of TensorPack's LMDBSerializer and of yogadl, whose records are pickles -> rows."""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Sequence
from pathlib import Path

import lmdb
import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, NotFoundError
from ..reading.dataref import DataRef
from ..rows.types import Row

_FORMATS = ("tensorpack", "yogadl")
_OWN_KEYS = {b"__keys__", b"__shapes__", b"__types__"}


class _Opened:
    """An LMDB environment of this process, closed with the last DataRef over it."""

    def __init__(self, path: str) -> None:
        self.process = os.getpid()
        self.environment = lmdb.open(path, subdir=os.path.isdir(path), readonly=True, lock=False)

    def __del__(self) -> None:
        if hasattr(self, "environment"):
            self.environment.close()


# LMDB refuses to open a file twice in a process: those that are open, by the file that the path is now.
_opened: weakref.WeakValueDictionary[tuple[int, int], _Opened] = weakref.WeakValueDictionary()


def from_lmdb(path: str | os.PathLike[str], format: str, *, trust_pickle: bool = False) -> DataRef:
    """The records of an LMDB file that another library wrote, as a DataRef.

    Read it as it is, or submit it to a storage.

    Args:
        path: the file, or the folder that holds `data.mdb`.
        format: `tensorpack`, for what `LMDBSerializer.save` wrote, or `yogadl`, for its `cache.mdb`.
        trust_pickle: records are pickles, and a pickle can run any code when it is read. Pass True only if
            you know who wrote the file.

    Raises:
        ValueError: `trust_pickle` is not True, there is no such format, or something else in this process has
            the file open.
        NotFoundError: there is no such file.
        CorruptError: it is damaged, or lacks records that it lists.

    Example:
        >>> ref = from_lmdb(old_cache, format="tensorpack", trust_pickle=True)
        >>> len(ref), ref[2]
        (3, [2, 4])
    """
    if format not in _FORMATS:
        raise ValueError(f"format={format!r} is not known; pass {' or '.join(_FORMATS)}")
    if trust_pickle is not True:
        raise ValueError(
            f"{os.fspath(path)} holds pickles, as {format} writes them, and reading a pickle can run any "
            "code that its writer put there. If you trust who wrote it, pass trust_pickle=True; then submit "
            "the result to a "
            "Storage, whose files hold none"
        )
    return _PickledRef(os.path.abspath(Path(path).expanduser()), format)


def _file(path: str) -> str:
    """The file itself, where the path is its folder."""
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else path


class _PickledRef(DataRef):
    def __init__(self, path: str, format: str) -> None:
        self.path = path
        self.format = format
        if not os.path.exists(_file(path)):
            raise NotFoundError(f"there is no LMDB file {path}; pass the file, or the folder of its data.mdb")
        self._mine: _Opened | None = None
        self._keys = self._read_keys()

    def __len__(self) -> int:
        return len(self._keys)

    def _title(self) -> str:
        return f"DataRef {self.format} {self.path!r}"

    def __reduce__(self) -> tuple[object, ...]:
        return _PickledRef, (self.path, self.format)

    def take(self, rows: npt.NDArray[np.int64]) -> Sequence[Row]:
        """The records of these numbers."""
        with self._environment().begin() as transaction:
            return [self._loaded(transaction.get(key), key) for key in map(self._key, rows.tolist())]

    def _key(self, number: int) -> bytes:
        return b"%08d" % number if isinstance(self._keys, range) else self._keys[number]

    def _read_keys(self) -> range | list[bytes]:
        with self._environment().begin() as transaction:
            found = transaction.get(b"__keys__")
            if found is None and self.format == "tensorpack":
                # As other writers do it: the keys themselves.
                return [key for key in transaction.cursor().iternext(values=False) if key not in _OWN_KEYS]
        keys = self._loaded(found, b"__keys__")
        if not isinstance(keys, list) or not all(isinstance(key, bytes) for key in keys):
            raise CorruptError(f"{self.path}: __keys__ is not a list of keys; is its format {self.format!r}?")
        # The keys that both libraries write are their numbers, and need not be kept.
        regular = all(key == b"%08d" % number for number, key in enumerate(keys))
        return range(len(keys)) if regular else keys

    def _loaded(self, record: bytes | None, key: bytes) -> Row:
        name = key.decode("ascii", "backslashreplace")
        if record is None:
            raise CorruptError(
                f"{self.path} has no record {name!r}, though it should: {self.format} loses records where "
                "its map was full while it wrote; make the file again, with more space, or submit the source "
                "to a Storage"
            )
        try:
            return pickle.loads(record)
        except Exception as error:
            raise CorruptError(
                f"{self.path}: record {name!r} cannot be unpickled: {error!r}. If TENSORPACK_SERIALIZE was "
                "set when it was written, load it with TensorPack and submit the DataFlow"
            ) from error

    def _environment(self) -> lmdb.Environment:
        if self._mine is not None and self._mine.process == os.getpid():
            return self._mine.environment
        found = os.stat(_file(self.path))
        file = found.st_dev, found.st_ino
        opened = _opened.get(file)
        if opened is not None and opened.process != os.getpid():
            opened.environment.close()  # a copy of the parent's, whose own stays open
            opened = None
        try:
            self._mine = opened or _Opened(self.path)
        except lmdb.Error as error:
            if "already open" in str(error):  # by this path to another file, or by other code
                raise ValueError(
                    f"{self.path} cannot be opened twice in a process: {error} Close what has it open, or "
                    "delete the DataRef over the file that it was"
                ) from error
            raise CorruptError(f"{self.path} cannot be opened as an LMDB file: {error}") from error
        _opened[file] = self._mine
        return self._mine.environment
