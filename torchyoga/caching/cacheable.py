"""A function that makes a dataset -> one that reads the version of each call, and builds it if need be."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ParamSpec

from ..building.build import BuildOptions
from ..errors import ExistsError, NotFoundError
from ..process.messages import warn_user
from ..reading.dataref import DataRef
from ..reading.version_ref import VersionRef
from ..stores.contract import Seen, Versions
from ..stores.refs import fetched
from .arguments import Call, Function
from .code import digest_of
from .lineage import Record, check_record, lineage_of
from .many import submitted_by_many
from .planned import Many
from .staleness import FunctionCode, SourceFiles, Stale, stale_advice
from .submission import submitted

P = ParamSpec("P")
_log = logging.getLogger("torchyoga")
_warned: set[tuple[str, str]] = set()  # warnings given in this process, and their builds


@dataclass(frozen=True)
class Cacheable:
    """Settings for reading or building the versions of a function's calls; see `Storage.cacheable`.

    Attributes:
        store: the versions are published there.
        lock: holds the writer's lock of an id and a version, or says that it took too long to get.
        options: how to build.
        num_workers: processes that read rows by number.
        stale: what to do if the function's code, or the files that it reads, were different when a version
            was made.
        sources: patterns of those files.
        record: what the lineage of a version holds; `message`: what the user says in it.
        many: who builds; None for the process that holds the lock.

    Raises:
        ValueError, TypeError: `stale`, `record` or `message` is something else.
    """

    store: Versions
    lock: Callable[[str, str], AbstractContextManager[None]]
    options: BuildOptions
    num_workers: int
    stale: Stale
    sources: Sequence[str | os.PathLike[str]] = ()
    record: Record = True
    message: str | None = None
    many: Many | None = None

    def __post_init__(self) -> None:
        if self.stale not in ("warn", "error", "ignore", "rebuild"):
            raise ValueError(f"stale must be 'warn', 'error', 'ignore' or 'rebuild', found {self.stale!r}")
        check_record(self.record, self.message)

    def decorated(
        self, function: Callable[P, object], id: str, version: str, ignore: Collection[str]
    ) -> Callable[P, DataRef]:
        """The function as one that returns the version that a call of it chooses.

        Raises:
            ValueError, TypeError: as `Function`; when called: as `Storage.cacheable`.
        """
        known = Function(function, id, version, ignore)
        recipe = FunctionCode(function, digest_of(function), SourceFiles.of(self.sources, function))

        @functools.wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> DataRef:
            call = known.call(*args, **kwargs)
            return self._read_or_built(call, recipe, lambda: function(*args, **kwargs))

        return cached

    def _read_or_built(self, call: Call, recipe: FunctionCode, make: Callable[[], object]) -> DataRef:
        with contextlib.suppress(NotFoundError, _StaleError):
            return self._read(call, recipe)
        with self.lock(call.id, call.version) if self.many is None else contextlib.nullcontext():
            replaces = None
            try:
                return self._read(call, recipe)  # others may have built it meanwhile
            except NotFoundError:
                pass
            except _StaleError as error:
                _log.warning("building %r %r anew: %s", call.id, call.version, error)
                replaces = self.store.seen(call.id, call.version)
            return self._built(call, recipe, make, replaces)

    def _built(
        self, call: Call, recipe: FunctionCode, make: Callable[[], object], replaces: Seen | None
    ) -> DataRef:
        self.store.check_place(call.id, call.version)
        # Before the files are read, which may change meanwhile.
        entry = recipe.noted(call.noted(recipe.code))
        data = make()
        options = replace(
            self.options,
            function=entry,
            differing=lambda made: call.differing_in_all(made) + recipe.differing(made),
            lineage=lineage_of(recipe.function, self.record, self.message),
        )
        id, version = call.id, call.version
        try:
            if self.many is None:
                return submitted(data, self.store, id, version, options, self.num_workers, replaces)
            return submitted_by_many(
                data, self.store, id, version, options, self.many, self.num_workers, replaces
            )
        except ExistsError:  # perhaps the network was cut, and another machine has built it meanwhile
            with contextlib.suppress(NotFoundError, _StaleError):
                return self._read(call, recipe)
            raise

    def _read(self, call: Call, recipe: FunctionCode) -> VersionRef:
        """The version that a call chooses, if it is what the call would make.

        Raises:
            NotFoundError: it is not published.
            ExistsError: it was made by another call.
            _StaleError: it is to be built anew.
        """
        ref = fetched(self.store, call.id, call.version)
        advice = stale_advice(ref.manifest, call, recipe, self.stale)
        if advice is not None and self.stale == "rebuild":
            raise _StaleError(advice)
        if advice is not None and (ref.manifest.build, advice) not in _warned:
            _warned.add((ref.manifest.build, advice))
            warn_user(advice)
        return ref


class _StaleError(Exception):
    """A version is to be built anew; says why."""
