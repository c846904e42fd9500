"""Results of the rows of a published version, kept beside it: read, or made once.

What is kept is a small version of its own, in `Versions.kept`, so that it is locked, published, checked,
downloaded and cleaned as all are.
"""

from __future__ import annotations

import contextlib
import secrets
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from ..building.build import BuildOptions
from ..building.sources import BlockSource
from ..errors import BusyError, CorruptError, ExistsError, NotFoundError, YogaError
from ..process.digests import hexdigest
from ..process.warned import warn_user
from ..reading.dataref import DataRef, WhenStale, title_of
from ..reading.version_ref import VersionColumns, VersionRef
from ..rows.block import Rows
from ..rows.types import Array, Json
from ..stores.contract import Seen, Versions
from ..stores.refs import ref_of, store_of
from ..versions.manifest import FunctionEntry, Manifest
from ..versions.names import encoded, kept_id
from ..views.computed import ComputedRef
from ..views.selection import Part
from ..views.transformed import TransformedRef
from .arguments import encoded as _encoded_value
from .arguments import inside, salted
from .code import digest_of
from .submission import submitted

__all__ = ["columns_of", "Keeping", "Kind", "KeptPlace"]

T = TypeVar("T")
_LOOKS = 4  # at what is replaced while it is being read
_PATIENCE = 86400.0  # seconds, while another process makes it
_ROWS = 2**20  # read at once
_warned: set[tuple[str, str]] = set()  # warnings given in this process, and their builds
_Function: TypeAlias = Callable[..., object]
_NAME = "name"  # of the digest of the function's own name


@dataclass(frozen=True)
class Kind:
    """The words of messages about a kind of result that is kept.

    Attributes:
        call: the method that keeps it.
        noun: what it is, with its article.
        act: what making it is called, as in "to select".
        function: what makes it, as in "made by another condition".
        suffix: of the name it is kept under, so that no two kinds have the same.
    """

    call: str
    noun: str
    act: str
    function: str = "function"
    suffix: str = ""

    @property
    def source(self) -> str:
        """The entry of its info that names the rows that it was made of."""
        return f"{self.act}ed_from"

    @property
    def has(self) -> str:
        """The verb for its number, as in "the packs were made"."""
        return "were" if self.noun.endswith("s") else "was"


@dataclass(frozen=True)
class KeptPlace:
    """Where something is kept.

    Attributes:
        kind: of what is kept.
        home: the store of the version whose rows it was made of; `manifest`: the version.
        store: of what is kept; always the same object, since it knows the leases that it holds.
        fingerprint: of the DataRef whose rows it was made of.
        name: that it is kept under; `id` and `version`: of what is kept.
    """

    kind: Kind
    home: Versions
    store: Versions
    manifest: Manifest
    fingerprint: str
    name: str

    @staticmethod
    def of(kind: Kind, ref: DataRef, name: str) -> KeptPlace:
        """The place for what is made of the rows of a DataRef; ValueError if it has none."""
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, found {name!r:.80}")
        if not name:
            raise ValueError("name must not be empty; leave it out to keep nothing")
        encoded("name", f"{name}{kind.suffix} {'0' * 32}")  # the longest that `version` may be
        found = {home.location.name: home for home in _homes(kind, ref, name)}
        fingerprint = ref.fingerprint
        if len(found) != 1 or fingerprint is None:
            raise _homeless(kind, ref, name)
        (home,) = found.values()
        store = store_of(home.location, home.manifest)
        if store is None:
            raise _homeless(kind, ref, name)
        return KeptPlace(kind, store, store.kept, home.manifest, fingerprint, name)

    @property
    def id(self) -> str:
        """The id of what is kept."""
        return kept_id(self.manifest.id, self.manifest.version)

    @property
    def version(self) -> str:
        """The version of what is kept."""
        name = f"{self.name}{self.kind.suffix}"
        if self.fingerprint == self.manifest.fingerprint:
            return name
        # Of a part of the version, for example, of which something of the same name may be kept.
        return f"{name} {hexdigest(self.fingerprint)}"

    @property
    def what(self) -> str:
        """A name for it, for messages."""
        return f"{self.kind.noun} {self.name!r} of {self.manifest.id!r} {self.manifest.version!r}"

    def is_published(self) -> bool:
        """True if the version is still the one whose rows it is made of."""
        with contextlib.suppress(CorruptError):
            found = self.home.find(self.manifest.id, self.manifest.version)
            return found is not None and found.fingerprint == self.manifest.fingerprint
        return False


def _homes(kind: Kind, ref: DataRef, name: str) -> Iterator[VersionRef | VersionColumns]:
    """The versions that the rows of a DataRef are from."""
    if isinstance(ref, (VersionRef, VersionColumns)):
        yield ref
        return
    if isinstance(ref, (ComputedRef, TransformedRef)):
        raise ValueError(
            f"{kind.call}(name={name!r}) of {title_of(ref)}: the code of a function that makes rows is not "
            f"part of what is kept; {kind.act} before map, submit the rows first, or leave name out"
        )
    below = getattr(ref, "sources", [getattr(ref, "whole", None)])
    for one in below:
        if not isinstance(one, DataRef):
            raise _homeless(kind, ref, name)
        yield from _homes(kind, one, name)


def _homeless(kind: Kind, ref: DataRef, name: str) -> ValueError:
    return ValueError(
        f"{kind.call}(name={name!r}) keeps {kind.noun} beside the published version whose rows are "
        f"{kind.act}ed, but {title_of(ref)} is not of a single one; submit it first, or leave name out"
    )


class Keeping(ABC, Generic[T]):
    """Something that is read where it is kept, or made and kept there.

    Args:
        kind: of what is kept.
        ref: the rows that it is made of.
        name: that it is kept under.
        function: the user's function that makes it, if there is one.
        stale: what to do if what is kept was made by another one.
    """

    def __init__(
        self, kind: Kind, ref: DataRef, name: str, function: Callable[..., object] | None, stale: WhenStale
    ) -> None:
        if stale not in ("warn", "error", "rebuild"):
            raise ValueError(f"stale must be 'warn', 'error' or 'rebuild', found {stale!r}")
        self.place = KeptPlace.of(kind, ref, name)
        self.ref = ref
        self._function = function
        self._stale = stale

    @abstractmethod
    def make(self) -> T:
        """Makes it."""

    @abstractmethod
    def loaded(self, manifest: Manifest) -> T:
        """The kept result; CorruptError if it is damaged, NotFoundError if it was replaced meanwhile."""

    @abstractmethod
    def parts(self, made: T) -> Mapping[str, Array] | BlockSource:
        """The columns that it is kept as, all of one length; or what gives them, many rows at once."""

    @abstractmethod
    def info(self, made: T) -> Json:
        """Facts that are kept besides."""

    @abstractmethod
    def difference(self, manifest: Manifest) -> str | None:
        """How what is kept was asked for in another way than now, as "of the columns ..."; None if not."""

    def read_or_made(self) -> T:
        """The kept result; else it is made, once by all processes that may write."""
        found = self._read()
        if found is not None:
            return found
        store, id, version = self.place.store, self.place.id, self.place.version
        problem: Exception | None = None
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(store.lock(id, version, _PATIENCE))
            except BusyError:
                raise
            except OSError as error:  # nothing may be written there
                problem = error
            found = self._read()
            if found is not None:
                return found
            seen = None if problem else store.seen(id, version)
            # Now, since the function may change what it captures.
            entry = None if self._function is None else _recorded(self._function)
            made = self.make()
            try:
                if problem is None:
                    self._keep(made, entry, seen)
                held.close()
            except (OSError, YogaError) as error:
                problem = error
        if problem is not None:
            self.warn(problem)
        return made

    def warn(self, problem: Exception) -> None:
        """Says that what was made could not be kept."""
        warn_user(
            f"{self.place.what} could not be kept, so the next call has to {self.place.kind.act} again: "
            f"{type(problem).__name__}: {problem}"
        )

    def _keep(self, made: T, entry: FunctionEntry | None, seen: Seen | None) -> None:
        place = self.place
        if not place.is_published():
            raise NotFoundError(
                f"{place.manifest.id!r} {place.manifest.version!r} has been overwritten or removed since "
                "this DataRef was made; fetch it again"
            )
        info: Json = {place.kind.source: place.fingerprint, **self.info(made)}
        options = BuildOptions(progress=False, info=info, function=entry, stats=False)
        store = place.store
        store.check_place(place.id, place.version)
        submitted(self.parts(made), store, place.id, place.version, options, replaces=seen)

    def _read(self) -> T | None:
        """The kept result; None if there is nothing, or it is to be made anew.

        Raises:
            CorruptError: it is damaged.
            ExistsError: it was asked for in another way, or, with `stale="error"`, made by another function.
        """
        place = self.place
        try:
            for _ in range(_LOOKS):
                manifest = place.store.find(place.id, place.version)
                # Of rows that were overwritten since, it serves nobody.
                if manifest is None or manifest.info.get(place.kind.source) != place.fingerprint:
                    return None
                if self._is_stale(manifest):
                    return None
                with contextlib.suppress(NotFoundError):  # it is replaced just now
                    return self.loaded(manifest)
            return None
        except CorruptError as error:
            if self._stale == "rebuild":
                return None
            raise CorruptError(
                f"{place.what} {'is' if place.kind.has == 'was' else 'are'} damaged: {error}; pass "
                f"stale='rebuild' to {place.kind.act} again"
            ) from error

    def _is_stale(self, manifest: Manifest) -> bool:
        """True if it is to be made anew."""
        place, kind = self.place, self.place.kind
        difference = self.difference(manifest)
        if difference is not None:
            if self._stale == "rebuild":
                return True
            raise ExistsError(
                f"{place.what} {kind.has} made {difference}; choose another name, or pass stale='rebuild' to "
                "replace it"
            )
        if manifest.function is None or self._function is None:
            return False
        differ = _differing(manifest.function, self._function)
        if not differ:
            return False
        found = (
            f"{place.what} {kind.has} made by another {kind.function}: its {', its '.join(differ)} differs"
        )
        advice = "pass stale='rebuild' to replace it, or choose another name"
        if self._stale == "error":
            raise ExistsError(f"{found}; {advice}")
        if self._stale == "warn" and (manifest.build, found) not in _warned:
            _warned.add((manifest.build, found))
            warn_user(f"{found}. It is read as it is; {advice}")
        return self._stale == "rebuild"


def columns_of(store: Versions, manifest: Manifest) -> dict[str, Part]:
    """All rows of the columns of what is kept.

    Raises:
        NotFoundError: it has been replaced or removed.
        CorruptError: it is damaged, or has other columns than such have.
    """
    schema = manifest.schema
    if schema is None or any(c.is_ragged or c.storage.kind not in "iu" for c in schema.columns):
        raise CorruptError("it does not hold the parts that it should")
    ref = ref_of(store, manifest)
    chunks: list[list[Part]] = [[np.zeros(0, column.storage)] for column in schema.columns]
    for start in range(0, len(ref), _ROWS):
        rows = ref.take(np.arange(start, min(start + _ROWS, len(ref))))
        assert isinstance(rows, Rows), "a version gives blocks"
        for chunk, data in zip(chunks, rows.block.data, strict=True):
            chunk.append(data.values.copy())  # whose memory is used again
    try:
        return {
            column.name: np.concatenate(chunk) for column, chunk in zip(schema.columns, chunks, strict=True)
        }
    except ValueError as error:  # columns of arrays
        raise CorruptError(f"it does not hold the parts that it should: {error}") from None


def _recorded(condition: _Function) -> FunctionEntry:
    """The record of a condition; what has no digest, such as an object of a user's class, is left out.

    Example:
        >>> below = lambda k: lambda y: y < k
        >>> _differing(_recorded(below(5)), below(6)), _differing(_recorded(below(5)), below(5))
        (['captured k'], [])
    """
    salt = secrets.token_hex(16)
    values = _values(condition, frozenset())
    digests = {name: salted(salt, name, value) for name, value in values.items()}
    return FunctionEntry(digest_of(condition), salt, digests)


def _differing(entry: FunctionEntry, condition: _Function) -> list[str]:
    """Parts of a condition that differ from a record: "code", "default low", "captured low", "argument 0"."""
    code, values = digest_of(condition), _values(condition, frozenset())
    found = ["code"] if None not in (code, entry.code) and code != entry.code else []
    for name in sorted({*values, *entry.arguments}):
        if name == _NAME and None not in (code, entry.code):
            continue  # a function may move
        now = salted(entry.salt, name, values[name]) if name in values else None
        if now != entry.arguments.get(name):
            found.append(name)
    return found


def _values(function: _Function, within: frozenset[int]) -> dict[str, bytes]:
    """Everything besides its code that a function depends on, as `encoded` gives it."""
    found = {name: _encoded(value, within | {id(function)}) for name, value in _parts(function)}
    return {name: value for name, value in found.items() if value is not None}


def _parts(function: _Function) -> Iterator[tuple[str, object]]:
    yield _NAME, function  # of one without source, such as NumPy's, it is all that is known
    written, bound = inside(function)
    for layer, (args, named) in enumerate(bound):
        more = f" of layer {layer}" if layer else ""
        yield from ((f"argument {number}{more}", value) for number, value in enumerate(args))
        yield from ((f"argument {name}{more}", value) for name, value in named.items())
    if isinstance(written, types.FunctionType):
        code, defaults = written.__code__, written.__defaults__ or ()
        last = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
        named_defaults: Mapping[str, object] = written.__kwdefaults__ or {}
        yield from ((f"default {name}", value) for name, value in zip(last, defaults, strict=True))
        yield from ((f"default {name}", value) for name, value in named_defaults.items())
        for name, cell in zip(code.co_freevars, written.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # nothing has been assigned yet
                continue
            yield f"captured {name}", value


def _encoded(value: object, within: frozenset[int]) -> bytes | None:
    try:
        return _encoded_value(value)
    except TypeError:
        pass
    # A lambda, or a function within a function, has no name, but a code; one may capture itself.
    if not isinstance(value, types.FunctionType) or id(value) in within:
        return None
    code = digest_of(value)
    return None if code is None else _encoded_value([code, _values(value, within)])
