"""A function that makes a dataset -> one that reads the version of each call, and builds it if need be."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ParamSpec

from ..building.build import BuildOptions
from ..errors import ExistsError, NotFoundError
from ..process.warned import warn_user
from ..reading.dataref import DataRef
from ..reading.version_ref import VersionRef
from ..stores.contract import Versions
from ..stores.refs import fetched
from .arguments import Call, Function
from .code import digest_of
from .parts.many import Many, submitted_by_many
from .staleness import Stale, stale_advice
from .submission import submitted

__all__ = ["Cacheable"]

P = ParamSpec("P")
_warned: set[tuple[str, str]] = set()  # warnings given in this process, and their builds


@dataclass(frozen=True)
class Cacheable:
    """Settings for reading or building the versions of a function's calls; see `Storage.cacheable`.

    Attributes:
        store: the versions are published there.
        lock: holds the writer's lock of an id and a version, or says that it took too long to get.
        options: how to build.
        num_workers: processes that read rows by number.
        stale: what to do if the function's code was different when a version was made.
        many: who builds; None for the process that holds the lock.

    Raises:
        ValueError: `stale` is something else.
    """

    store: Versions
    lock: Callable[[str, str], AbstractContextManager[None]]
    options: BuildOptions
    num_workers: int
    stale: Stale
    many: Many | None = None

    def __post_init__(self) -> None:
        if self.stale not in ("warn", "error", "ignore"):
            raise ValueError(f"stale must be 'warn', 'error' or 'ignore', found {self.stale!r}")

    def decorated(
        self, function: Callable[P, object], id: str, version: str, ignore: Collection[str]
    ) -> Callable[P, DataRef]:
        """The function as one that returns the version that a call of it chooses.

        Raises:
            ValueError, TypeError: as `Function`; when called: as `Storage.cacheable`.
        """
        known = Function(function, id, version, ignore)
        code = digest_of(function)

        @functools.wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> DataRef:
            call = known.call(*args, **kwargs)
            return self._read_or_built(call, code, lambda: function(*args, **kwargs))

        return cached

    def _read_or_built(self, call: Call, code: str | None, make: Callable[[], object]) -> DataRef:
        with contextlib.suppress(NotFoundError):
            return self._read(call, code)
        options = replace(self.options, function=call.noted(code), differing=call.differing_in_all)
        if self.many is not None:
            self.store.check_place(call.id, call.version)
            try:
                return submitted_by_many(
                    make(), self.store, call.id, call.version, options, self.many, self.num_workers
                )
            except ExistsError:
                with contextlib.suppress(NotFoundError):
                    return self._read(call, code)
                raise
        with self.lock(call.id, call.version):
            with contextlib.suppress(NotFoundError):
                return self._read(call, code)
            self.store.check_place(call.id, call.version)
            data = make()
            try:
                return submitted(data, self.store, call.id, call.version, options, self.num_workers)
            except ExistsError:  # perhaps the network was cut, and another machine has built it meanwhile
                with contextlib.suppress(NotFoundError):
                    return self._read(call, code)
                raise

    def _read(self, call: Call, code: str | None) -> VersionRef:
        """The version that a call chooses, if it is what the call would make.

        Raises:
            NotFoundError: it is not published.
            ExistsError: it was made by another call.
        """
        ref = fetched(self.store, call.id, call.version)
        advice = stale_advice(ref.manifest, call, code, self.stale)
        if advice is not None and (ref.manifest.build, advice) not in _warned:
            _warned.add((ref.manifest.build, advice))
            warn_user(advice)
        return ref
