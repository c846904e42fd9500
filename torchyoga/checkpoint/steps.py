"""Saved steps in a folder or behind a URL: each is there whole, or not at all.

A step is a folder of files and an index of them, written last. A directory gets it by a rename, a store by
the index alone, and no step is ever written twice: `step-100` is followed by `step-100-1`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CorruptError, NotFoundError, YogaError
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

    @abstractmethod
    def give_up(self, name: str) -> None:
        """Removes what was written of a step that will not be published."""

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
        found = {"index": body, "crc32": crc32(json.dumps(body).encode())}
        self.publish(name, json.dumps(found).encode())

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
        # Under the name of one that was never finished: a half removed step is none.
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

    def give_up(self, name: str) -> None:
        self.remove(name)

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
