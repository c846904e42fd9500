"""The store below a storage: what a test acts on as another process, or asks what `Storage` does not say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import torchyoga as yoga
from torchyoga.storage import store_of
from torchyoga.stores import retry
from torchyoga.stores.cache import Cache
from torchyoga.stores.local import LocalStore
from torchyoga.stores.objects import Objects
from torchyoga.stores.remote import RemoteStore
from torchyoga.versions.file_entry import SIZES

Patch = Callable[[object, str, float], None]


def objects_of(storage: yoga.Storage) -> Any:
    """The objects of a storage behind a URL."""
    return store_of(storage)._remote


def files_below(storage: yoga.Storage, id: str) -> dict[str, int]:
    """All files of a dataset's versions, and the bytes of each."""
    if isinstance(store_of(storage), RemoteStore):
        return {name: int(found.nbytes) for name, found in objects_of(storage).find(id).items()}
    folder = storage.path / id
    return {
        str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()
    }


def data_files(storage: yoga.Storage, id: str) -> list[str]:
    """Those that are no manifests."""
    return sorted(name for name in files_below(storage, id) if not name.endswith(".json"))


def over(store: object, storage: yoga.Storage) -> yoga.Storage:
    """That storage, with another store below it."""
    storage._store = store  # type: ignore[assignment]
    return storage


def told(storage: yoga.Storage, **instead: Callable[..., Any]) -> None:
    """From now on `instead["clean"](clean, ...)` is called, not `clean(...)` of the store, and so on."""
    store = store_of(storage)

    def overridden(name: str, act: Callable[..., Any]) -> Any:
        def method(own: object, *arguments: Any, **more: Any) -> Any:
            return act(partial(getattr(type(store), name), own), *arguments, **more)

        return method

    methods = {name: overridden(name, act) for name, act in instead.items()}
    arguments = (store.root,) if isinstance(store, LocalStore) else store.__reduce__()[1]
    over(type("Told", (type(store),), methods)(*arguments), storage)


def _seen(request: str) -> Any:
    def sent(remote: Watched, *arguments: Any) -> Any:
        send = partial(getattr(Objects, request), remote)
        act = remote.instead.get(request)
        return send(*arguments) if act is None else act(send, *arguments)

    return sent


class Watched(Objects):
    """Objects behind a URL: `instead["find"](find, folder)` is called in place of `find(folder)`, and so on.

    With `is_silent`, holders of leases give no sign of life, as if their machine stood still.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None, is_silent: bool = False) -> None:
        super().__init__(url, options)
        self.is_silent = is_silent
        self.instead: dict[str, Callable[..., Any]] = {}

    def at(self, folder: str) -> Watched:
        found = Watched(f"{self.url}/{folder}", self.options, self.is_silent)
        found.instead = self.instead
        return found

    def write(self, name: str, data: bytes) -> None:
        if not (self.is_silent and threading.current_thread().name == "torchyoga lease"):
            super().write(name, data)

    create, replace, delete = map(_seen, ("create", "replace", "delete"))
    find, find_one, read, read_ranges = map(_seen, ("find", "find_one", "read", "read_ranges"))
    stream, now = map(_seen, ("stream", "now"))


def watched(
    place: tuple[str, Any],
    folder: Path,
    lease_seconds: float = 2,
    is_silent: bool = False,
    cache: type[Cache] = Cache,
    cache_bytes: int | None = None,
) -> yoga.Storage:
    """A storage behind a URL, with a cache in a folder, whose objects are `Watched`."""
    storage = yoga.Storage(place[0], storage_options=place[1], cache_dir=folder, timeout=60)
    return over(RemoteStore(Watched(*place, is_silent), cache(folder, cache_bytes), lease_seconds), storage)


def an_hour_later(storage: yoga.Storage) -> None:
    """An hour passes on the clock of its store, which is `watched`."""
    later = objects_of(storage).now() + 3600
    objects_of(storage).instead["now"] = lambda now: later


def short_lists(patch: Callable[[Any, str, Any], None]) -> None:
    """A few files and parents make lists: until patches are undone."""
    for kind in SIZES:
        patch(SIZES, kind, (1, 2, 4))


def tidied(
    storage: yoga.Storage,
    id: str,
    rows: dict[str, list[Any]],
    what: str,
    versions: tuple[str, str],
    random: np.random.Generator,
) -> None:
    """Deletes a row, compacts, removes or cleans, in a history and in what its versions are to hold.

    Args:
        storage: has the history of `id`.
        id: which dataset.
        rows: of each version, changed in step.
        what: "delete", "compact", "remove" or "clean"; anything else does nothing.
        versions: the one that is looked at, and the name of a new one.
        random: draws the row.
    """
    before, name = versions
    if what == "delete" and len(rows[before]) > 1:
        gone = int(random.integers(len(rows[before])))
        storage.delete_rows(id, before, rows=[gone], to=name)
        rows[name] = [one for number, one in enumerate(rows[before]) if number != gone]
    elif what == "compact":
        storage.convert(id, before)
    elif what == "remove" and len(rows) > 1:
        storage.remove(id, before)
        del rows[before]
    elif what == "clean":
        storage.clean(0, id=id)


def short_waits(first: float, longest: float = 8.0, patch: Patch = setattr) -> None:
    """Requests of this process are tried again after so long: for ever, or until patches are undone."""
    patch(retry, "_FIRST_WAIT", first)
    patch(retry, "_LONGEST_WAIT", longest)
