"""Storage: submit, fetch, cacheable; joining the rooms."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, ParamSpec
from urllib.request import url2pathname

from torch.utils.data import DataLoader, Dataset, IterableDataset

from .adapters import dataflow, sequence
from .adapters.arrays import from_arrays, is_arrays
from .adapters.python import IteratorSource
from .adapters.ref import RefSource
from .adapters.torch import IterableSource, MapSource, is_map_style
from .arguments import Call, Function
from .build import BlockSource, BuildOptions, RowSource, build
from .cache import Cache, default_folder
from .code import digest_of
from .dataref import DataRef, VersionRef
from .errors import CorruptError, ExistsError, NotFoundError
from .facts import plain
from .formats import format_named
from .manifest import FileEntry, Manifest
from .mapped import flattened, info_of
from .mirror import Mirror
from .order import as_int
from .reader import Reader
from .remote import Remote, is_url
from .rooted import Root
from .schema import Schema
from .store import Store
from .twice import Watched
from .versions import Held, Seen, Versions
from .warned import warn_user

__all__ = ["Storage"]

_log = logging.getLogger("torchyoga")
P = ParamSpec("P")
_LOOKS = 5  # at a version that others overwrite at the same time
_warned: set[tuple[str, str]] = set()  # what was said in this process, and of which build


class Storage:
    """A directory, or a store behind a URL, of cached datasets, each under an id and a version.

    Any number of threads, processes and machines that see it may use it at once.

    Args:
        url: a directory, where `~` is the home directory; or a URL that fsspec knows, such as
            s3://bucket/prefix, gs://bucket/prefix or https://host/path (read-only). See docs/remote.md.
        format: the file format of new datasets, `lmdb` or `hdf5`; the same rows at the same speed.
        compression: of new HDF5 datasets: `gzip`, `lzf` or, with the package hdf5plugin, `blosc` or `zstd`.
        storage_options: of fsspec's filesystem, such as credentials and an endpoint; never written anywhere.
            Without them the environment's are used.
        cache_dir: where files of a store are kept on this machine; by default in the user's cache folder.
            Any number of storages and processes may share one.
        cache_bytes: to keep there; files that were not used for longest are deleted first. None for as many
            as the disk holds.
        timeout: seconds to wait while others build the same version.
        lease_seconds: a builder for a store that shows no sign of life for so long counts as dead.
        shared: others of the same group may write what is made in the directory, or in `cache_dir`. By
            default only its owner may, and nobody else may read what is cached of a store.

    Raises:
        ValueError: an argument is out of range.
        ImportError: the package for this kind of URL is not installed; names it.

    Example:
        >>> storage = Storage(tmp_path / "storage")
        >>> ref = storage.submit([{"x": 1}, {"x": 2}], "numbers", "1.0")
        >>> len(ref), storage.fetch("numbers", "1.0")[1]
        (2, {'x': 2})
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        format: str = "lmdb",
        compression: str | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        timeout: float = 86400.0,
        lease_seconds: float = 60.0,
        shared: bool = False,
    ) -> None:
        text = os.fspath(url)
        if not isinstance(url, str) and re.match(r"[A-Za-z0-9]{2,}:/[^/]", text):
            raise ValueError(f"{text!r} was a URL before it was made a path; pass it as text")
        format_named(format, compression)
        if not timeout >= 0:
            raise ValueError(f"timeout must be at least 0 seconds, found {timeout!r}")
        if not 1 <= lease_seconds <= 86400:
            raise ValueError(f"lease_seconds must be in 1..86400, found {lease_seconds!r}")
        self.format = format
        self.compression = compression
        self.timeout = timeout
        self._store: Versions
        if is_url(text):
            folder = default_folder() if cache_dir is None else Path(cache_dir).expanduser().absolute()
            limit = None if cache_bytes is None else as_int("cache_bytes", cache_bytes, low=0)
            self._store = Mirror(Remote(text, storage_options), Cache(folder, limit, shared), lease_seconds)
        else:
            for name, value in (("storage_options", storage_options), ("cache_dir", cache_dir)):
                if value:
                    raise ValueError(f"{name} is for a store behind a URL, but {text!r} is a directory")
            self._store = Store(Root(_directory(text), shared=shared))

    @property
    def url(self) -> str:
        """The directory or URL."""
        return self._store.name

    @property
    def path(self) -> Path:
        """The directory; ValueError if it is a URL."""
        if not isinstance(self._store, Store):
            raise ValueError(f"{self.url} is no directory of this machine; use its url")
        return self._store.root

    def __repr__(self) -> str:
        compression = f", compression={self.compression!r}" if self.compression else ""
        return f"Storage({self.url!r}, format={self.format!r}{compression})"

    def submit(
        self,
        data: Any,
        id: str,
        version: str,
        overwrite: bool = False,
        *,
        num_workers: int = 0,
        schema: Schema | None = None,
        max_rows: int | None = None,
        progress: bool | None = None,
        format: str | None = None,
        compression: str | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> DataRef:
        """Reads `data` once, keeps it, and returns it as a DataRef.

        Args:
            data: a map-style torch Dataset or anything with `__len__` and `__getitem__` (a list, say), a
                torch IterableDataset, an array, a tensor, a dict of arrays (rows along the first axis), a
                DataRef, a `tf.data.Dataset`, a Keras `PyDataset` or `Sequence`, a TensorPack `DataFlow`, an
                iterable, or a function that returns any of these, such as a generator function.
            id: which dataset; any non-empty text.
            version: which version of it; any non-empty text.
            overwrite: replace that version if it is there. Who has opened it keeps what it opened.
            num_workers: processes that read a map-style dataset or a Keras sequence.
            schema: what a row looks like, if the first rows do not show it: `Schema.of(row,
                ragged=["tokens"])`.
            max_rows: more rows than this are an error: for a source that may have no end.
            progress: show a progress bar; by default on a terminal.
            format: another file format than the storage's.
            compression: another compression than the storage's.
            info: JSON data to keep beside the rows, up to 1 MiB, which comes back as `DataRef.info`. What it
                does not name is added: `classes`, `class_to_idx` and `features` of the source, or all that
                the `info` of a DataRef holds.

        Raises:
            ExistsError: that version is published and `overwrite` is False.
            SchemaError: a row does not fit; names row, column, expected and found.
            TypeError: `data` is nothing that rows can be read from; or `info` is none of JSON's.
            ValueError: `info` is too long, or nests too deep.
            OSError: the disk is full or cannot be written.
            RemoteError: the store cannot be reached or written; what was built is kept for the next try.

        Whatever is raised, nothing is published and an older version stays. An interrupted build of a
        map-style dataset is continued by the next call; arrays and DataRefs, which go in fast, start over.

        Three rows of a map-style dataset are read a second time; if they differ, as those of an augmentation
        do, there is a warning.
        """
        if not overwrite:
            self._refuse_existing(id, version)
        options = self._options(schema, max_rows, progress, format, compression, info)
        with self._store.lock(id, version, self.timeout):
            if not overwrite:
                self._refuse_existing(id, version)
            self._store.check_place(id, version)  # before anything is built in vain
            # Before anything is built, which may take so long that others have published meanwhile.
            replaces = self._store.seen(id, version) if overwrite else None
            return self._built(data, num_workers, id, version, options, replaces)

    def fetch(
        self,
        id: str,
        version: str,
        verify: bool = True,
        *,
        download: bool = False,
        progress: bool | None = None,
    ) -> DataRef:
        """A published version as a DataRef. Of a version in a store only the manifest is read.

        Args:
            id: which dataset.
            version: which version of it.
            verify: check every block against its checksum when it is first read; False for storage that
                checks itself.
            download: bring all files of a version in a store now, rather than when they are wanted.
            progress: show a progress bar for that; by default on a terminal.

        Raises:
            NotFoundError: it is not published, or not yet; says which versions are.
            CorruptError: its manifest is damaged or its files are missing or cut.
            RemoteError: the store cannot be reached.
            ValueError: all files are to be brought, but the cache keeps fewer bytes.
        """
        return self._fetched(id, version, verify, download, progress)

    def _fetched(
        self,
        id: str,
        version: str,
        verify: bool = True,
        download: bool = False,
        progress: bool | None = None,
    ) -> VersionRef:
        for _ in range(3):
            manifest = self._store.manifest(id, version)
            # Overwritten or removed while it was being opened? The next look tells which.
            with contextlib.suppress(NotFoundError):
                return self._ref(manifest, verify, download, progress)
        return self._ref(self._store.manifest(id, version), verify, download, progress)

    def cacheable(
        self,
        id: str,
        version: str,
        *,
        ignore: Collection[str] = (),
        stale: Literal["warn", "error", "ignore"] = "warn",
        num_workers: int = 0,
        schema: Schema | None = None,
        max_rows: int | None = None,
        progress: bool | None = None,
        format: str | None = None,
        compression: str | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Callable[[Callable[P, Any]], Callable[P, DataRef]]:
        """Decorates a function that makes a dataset: it runs once, ever; every later call, in any process,
        reads.

        Called by many threads, processes or machines at once, one builds and the others wait for it. The
        function may return whatever `submit` takes, or be a generator function. A version knows the arguments
        that it was made with, as digests, and how the function was written; see docs/caching.md.

        Args:
            id: which dataset; names of arguments in braces choose it, as in `"mnist-{train}"`. Braces
                themselves are written `{{` and `}}`.
            version: which version of it, likewise.
            ignore: names of arguments that say nothing of the rows, such as a folder or a token.
            stale: what to do if the function was written otherwise when the version was made, or if the
                version has no record of what made it.
            num_workers: this and all that follows as `submit` has it.
            schema: likewise.
            max_rows: likewise.
            progress: likewise.
            format: likewise.
            compression: likewise.
            info: likewise; one dict for all versions, which does not see later changes of it.

        Raises:
            ValueError: braces hold no name of an argument, or `ignore` has another name; at the decoration.
            TypeError: by a call: an argument that counts has no digest that is the same in every process, or
                the function does not take these arguments.
            ExistsError: by a call: the version was made with other arguments; or, with `stale="error"`, by
                other code, or by nobody knows what.

        Example:
            >>> @storage.cacheable("powers-{exponent}", "1.0")
            ... def powers(exponent, count=10):
            ...     return [n**exponent for n in range(count)]
            >>> powers(2)[3], powers(3)[3]
            (9, 27)
            >>> powers(2, count=20)  # doctest: +ELLIPSIS
            Traceback (most recent call last):
            torchyoga.errors.ExistsError: 'powers-2' '1.0' is published already, made with another count ...
        """
        if stale not in ("warn", "error", "ignore"):
            raise ValueError(f"stale must be 'warn', 'error' or 'ignore', found {stale!r}")
        options = self._options(schema, max_rows, progress, format, compression, info)

        def decorate(function: Callable[P, Any]) -> Callable[P, DataRef]:
            known = Function(function, id, version, ignore)
            code = digest_of(function)

            def checked(ref: VersionRef, call: Call) -> DataRef:
                told = _told_of(ref.manifest, call, code, stale)
                if told is not None and (ref.manifest.build, told) not in _warned:
                    _warned.add((ref.manifest.build, told))
                    warn_user(told)
                return ref

            @functools.wraps(function)
            def cached(*args: P.args, **kwargs: P.kwargs) -> DataRef:
                call = known.call(*args, **kwargs)
                with contextlib.suppress(NotFoundError):
                    return checked(self._fetched(call.id, call.version), call)
                with self._store.lock(call.id, call.version, self.timeout):
                    with contextlib.suppress(NotFoundError):
                        return checked(self._fetched(call.id, call.version), call)
                    self._store.check_place(call.id, call.version)
                    data = function(*args, **kwargs)
                    noted = replace(options, function=call.noted(code), differing=call.differing_in_all)
                    try:
                        return self._built(data, num_workers, call.id, call.version, noted)
                    except (
                        ExistsError
                    ):  # a network was cut, and another machine has built it in the meantime?
                        with contextlib.suppress(NotFoundError):
                            return checked(self._fetched(call.id, call.version), call)
                        raise

            return cached

        return decorate

    def convert(
        self,
        id: str,
        version: str,
        *,
        format: str | None = None,
        compression: str | None = None,
        to: str | None = None,
        progress: bool | None = None,
    ) -> DataRef:
        """Writes a version in another format: the same rows, the same fingerprint.

        Args:
            id: which dataset.
            version: which version of it; replaced in one step, and who has opened it keeps what it opened.
            format: the file format, by default the storage's.
            compression: one that the format has, or None.
            to: publish under this version instead and keep the old one.
            progress: show a progress bar; by default on a terminal.

        Raises:
            NotFoundError: it is not published.
            ExistsError: `to` is published already.
            CorruptError: it is damaged. Nothing is published.

        Example:
            >>> before = storage.submit({"x": np.arange(5)}, "x", "1.0", format="lmdb")
            >>> after = storage.convert("x", "1.0", format="hdf5", compression="gzip")
            >>> after.fingerprint == before.fingerprint, after[3]["x"]
            (True, np.int64(3))
        """
        options = self._options(None, None, progress, format, compression)
        target = version if to is None else to
        with self._store.lock(id, target, self.timeout):
            if to is not None:
                self._refuse_existing(id, to)
            self._store.check_place(id, target)
            replaces = self._store.seen(id, version) if to is None else None
            whole = self._fetched(id, version)
            kept = replace(options, info=whole.manifest.info, function=whole.manifest.function)
            source, _ = _source(whole, 0)
            return self._ref(build(source, self._store, id, target, kept, replaces), verify=True)

    def copy(
        self,
        id: str,
        version: str,
        to: Storage,
        *,
        overwrite: bool = False,
        progress: bool | None = None,
    ) -> DataRef:
        """Copies a version to another storage: the same files, each checked before it is sent.

        Interrupted, it is continued by the next call: files that have arrived are not sent again.

        Args:
            id: which dataset.
            version: which version of it.
            to: another directory or store.
            overwrite: replace another version of that name there. The same one is never sent twice.
            progress: show a progress bar; by default on a terminal.

        Raises:
            NotFoundError: it is not published here, or was removed meanwhile. If it is overwritten meanwhile,
                the new one is copied.
            ExistsError: another version of that name is there, and `overwrite` is False.
            CorruptError: a file is damaged here. Nothing is published there.
            RemoteError: a store cannot be reached or written.
            OSError: the disk is full.

        Example:
            >>> ref = storage.submit({"x": np.arange(5)}, "copied", "1.0")
            >>> backup = Storage(tmp_path / "backup")
            >>> storage.copy("copied", "1.0", to=backup).fingerprint == ref.fingerprint
            True
        """
        if not isinstance(to, Storage):
            raise TypeError(f"to must be a Storage, found {to!r:.80}; pass Storage({to!r:.80})")
        manifest = self._store.manifest(id, version)
        with to._store.lock(id, version, to.timeout):
            for _ in range(_LOOKS):
                found = to._store.find(id, version)
                if found is not None and found.is_copy_of(manifest):
                    return to._ref(found, verify=True)
                if not overwrite:
                    to._refuse_existing(id, version)
                to._store.check_place(id, version)
                replaces = to._store.seen(id, version) if overwrite else None
                try:
                    found = to._store.receive(manifest, self._checked(manifest), replaces, progress)
                    return to._ref(found, verify=True)
                except (CorruptError, FileNotFoundError):
                    latest = self._latest(manifest, "copied")
                    if latest.build == manifest.build:
                        raise
                    manifest = latest
        raise self._overwritten(manifest, "copied")

    def _latest(self, manifest: Manifest, doing: str) -> Manifest:
        """What is published now under the id and version of a manifest; NotFoundError if nothing is."""
        found = self._store.find(manifest.id, manifest.version)
        if found is None:
            raise NotFoundError(
                f"{manifest.id!r} {manifest.version!r} in {self.url} was removed while it was {doing}; "
                "submit it again, or fetch another"
            )
        return found

    def _overwritten(self, manifest: Manifest, doing: str) -> NotFoundError:
        return NotFoundError(
            f"{manifest.id!r} {manifest.version!r} in {self.url} was overwritten {_LOOKS} times while it was "
            f"{doing}; try again when nobody overwrites it"
        )

    def _checked(self, manifest: Manifest) -> Held:
        """A function that gives a file of a version at a path here, once it has been found sound."""
        files = self._store.files(manifest)

        @contextlib.contextmanager
        def held(entry: FileEntry) -> Iterator[str]:
            assert manifest.schema is not None, "a version with files has a schema"
            with files.held(entry) as path:
                folder, name = os.path.split(path)
                problems = Reader(folder, manifest.schema, [replace(entry, name=name)]).verify_all()
                if problems:
                    raise CorruptError(f"{files.name} is damaged: {problems[0]}; nothing was published")
                yield path

        return held

    def clean(self, grace: float = 86400.0) -> list[str]:
        """Removes what interrupted builds and uploads have left, and files that were replaced.

        Args:
            grace: seconds; what is younger stays, for it may belong to a build under way, or to readers that
                have not downloaded it yet. A store tells the age by its own clock.

        Returns:
            The names of what was removed.

        Raises:
            RemoteError: the store cannot be reached or written.
        """
        if not isinstance(grace, (int, float)) or not grace >= 0:
            raise ValueError(f"grace must be at least 0 seconds, found {grace!r}; it cleans all versions")
        return self._store.clean(grace)

    def list(self) -> list[tuple[str, str]]:
        """All published (id, version), sorted."""
        return self._store.published()

    def versions(self, id: str) -> list[str]:  # type: ignore[valid-type]  # `list` above is the method
        """The published versions of an id, sorted; empty if there are none."""
        return self._store.versions(id)

    def remove(self, id: str, version: str) -> None:
        """Deletes a version. Who has opened it keeps what it opened; of a version in a store, what it has
        downloaded.

        Raises:
            NotFoundError: it is not published.
            RemoteError: the store cannot be reached or written.
        """
        self._store.remove(id, version, self.timeout)

    def check(self, id: str, version: str) -> None:
        """Reads a whole version and compares it with its manifest, both ways.

        Raises:
            NotFoundError: it is not published, or was removed meanwhile. If it is overwritten meanwhile, the
                new one is checked.
            CorruptError: names everything that is missing, cut, damaged or not in the manifest.
            RemoteError: the store cannot be reached; what is in the cache is not asked.
        """
        manifest = self._store.manifest(id, version)
        for _ in range(_LOOKS):
            problems = self._problems(manifest)
            if not problems:
                return
            latest = self._latest(manifest, "checked")
            if latest.build == manifest.build:
                raise CorruptError(
                    f"{id!r} {version!r} is damaged: {'; '.join(problems)}. Remove it and build it again"
                )
            manifest = latest
        raise self._overwritten(manifest, "checked")

    def _problems(self, manifest: Manifest) -> Sequence[str]:
        """What is missing, cut, damaged or not in the manifest, also if it is about to be removed."""
        try:
            problems = self._store.check_files(manifest)
        except FileNotFoundError as error:
            return [str(error)]
        if manifest.schema is not None:
            with self._store.fresh(manifest) as files:
                problems += Reader(files, manifest.schema, manifest.files).verify_all()
        return problems

    def _options(
        self,
        schema: Schema | None,
        max_rows: int | None,
        progress: bool | None,
        format: str | None,
        compression: str | None,
        info: Mapping[str, Any] | None = None,
    ) -> BuildOptions:
        if format is None or format == self.format:
            format, compression = self.format, compression or self.compression
        format_named(format, compression)
        return BuildOptions(
            format, compression, schema, max_rows, progress, info={} if info is None else plain(info)
        )

    def _built(
        self,
        data: Any,
        num_workers: int,
        id: str,
        version: str,
        options: BuildOptions,
        replaces: Seen | None = None,
    ) -> VersionRef:
        """Builds a version, whose lock is held, in the place of what was seen there."""
        left_out: dict[str, str] = {}
        source, info = _source(data, num_workers, options.schema, left_out)
        watched = None
        if isinstance(source, RowSource) and source.seekable and source.length is not None:
            watched = Watched(source)
        try:
            options = replace(options, info=plain({**info, **options.info}))
        except ValueError as error:  # both are too long together
            left_out |= dict.fromkeys(info, str(error))
        reasons = [f"{name} ({left_out[name]})" for name in left_out if name not in options.info]
        if reasons:
            _log.warning(
                "%s: of what the dataset says of itself, %r %r does not keep %s; say it with info=",
                source.name,
                id,
                version,
                ", ".join(reasons),
            )
        if watched is not None:
            options = replace(options, before_publishing=partial(_warn_of_random_rows, watched, id, version))
        return self._ref(build(watched or source, self._store, id, version, options, replaces), verify=True)

    def _refuse_existing(self, id: str, version: str) -> None:
        if self._store.find(id, version) is not None:
            raise ExistsError(
                f"{id!r} {version!r} is published already in {self.url}; "
                "fetch it, choose another version, or pass overwrite=True"
            )

    def _ref(
        self, manifest: Manifest, verify: bool, download: bool = False, progress: bool | None = None
    ) -> VersionRef:
        ref = VersionRef(self._store.files(manifest), manifest, verify)
        if download:
            ref.download(progress)
        if len(ref):
            ref.open()
        return ref


def _directory(text: str) -> Path:
    """The directory of a path, or of a URL of one as `Path.as_uri` and RFC 8089 write it."""
    scheme, _, rest = text.partition(":")
    if scheme.lower() in ("file", "local") and rest.startswith("/"):
        host, _, below = rest[2:].partition("/")
        if not rest.startswith("//"):
            return Path(url2pathname(rest)).absolute()
        if host in ("", "localhost"):
            return Path(url2pathname(f"/{below}")).absolute()
        if host == "~":
            return Path(url2pathname(rest[2:])).expanduser().absolute()
        raise ValueError(f"{text!r} names a host, {host!r}; a file of this machine is file:///{rest[2:]}")
    if not text or re.match(r"(file|local):|[A-Za-z][A-Za-z0-9+.-]+:/", text, re.IGNORECASE):
        raise ValueError(
            f"{text!r} is neither a directory nor a URL; a URL has two slashes, as in s3://bucket, or three, "
            "as in file:///home/me"
        )
    return Path(text).expanduser().absolute()


def _warn_of_random_rows(watched: Watched, id: str, version: str) -> None:
    if watched.differ():
        warn_user(
            f"rows of {watched.name} differ when they are read again, as by a random augmentation; {id!r} "
            f"{version!r} keeps those of its build for every epoch. Cache the dataset without what is "
            "random, and do that to the rows you load"
        )


def _told_of(manifest: Manifest, call: Call, code: str | None, stale: str) -> str | None:
    """What to warn of before a version is read for a call; None if it is what the call would make.

    Raises:
        ExistsError: it is not.
    """
    what, made = f"{manifest.id!r} {manifest.version!r}", manifest.function
    anew = f"choose another version, or call storage.remove({manifest.id!r}, {manifest.version!r}) first"
    if made is None:
        found = f"{what} does not say what made it, for submit or an older torchyoga did"
        if call.names:
            found += f", so {', '.join(call.names)} could not be compared"
        advice = f"to build it with {call.function.name}, {anew}; stale='ignore' reads it and says nothing"
    else:
        differing = call.differing(made)
        if differing:
            raise ExistsError(
                f"{what} is published already, made with another {' and another '.join(differing)} than "
                f"this call of {call.function.name} has. {call.advice(made)}"
            )
        captured = call.captured_differing(made)
        if captured:
            others = " and another ".join(captured)
            found = f"{call.function.name} has another {others} around it than when it made {what}"
        elif None in (code, made.code) or code == made.code:
            return None
        else:
            found = f"{call.function.name} is written otherwise than when it made {what}"
        advice = f"to build it anew, {anew}; if the rows are the same, pass stale='ignore'"
    if stale == "ignore":
        return None
    if stale == "error":
        raise ExistsError(f"{found}; {advice}")
    return f"{found}. It is read as it is; {advice}"


def _refuse_several(data: Any) -> None:
    """Raises TypeError for a tuple, a list or a dict of datasets, whose rows it would be."""
    several = list(data.values()) if isinstance(data, dict) else data
    if (
        isinstance(several, (list, tuple))
        and several
        and all(isinstance(item, (Dataset, DataRef, DataLoader)) for item in several)
    ):
        raise TypeError(
            f"a {type(data).__name__} of {len(several)} datasets was given, but a version holds one; give "
            'each a version of its own. With cacheable, let an argument choose, as in "mnist-{split}", and '
            "return the dataset that it names"
        )


def _through_door(data: Any, num_workers: int) -> Any:
    """The data of another framework as a source or a DataRef, anything else as it is.

    A framework is known by the modules that the classes of the data were made in, so it is loaded already.
    """
    frameworks = {cls.__module__.partition(".")[0] for cls in type(data).__mro__}
    found: RowSource | BlockSource | None = None
    if "tensorflow" in frameworks:
        from .adapters import tensorflow

        found = tensorflow.source_of(data)
    if frameworks & {"keras", "tf_keras"}:
        found = sequence.source_of(data, num_workers)
    if "tensorpack" in frameworks:
        found = dataflow.source_of(data)
    return data if found is None else found


def _odd_one(data: dict[Any, Any]) -> str:
    """Which value keeps a dict from being one of arrays."""
    key, value = next((k, v) for k, v in data.items() if isinstance(v, dict) or not is_arrays(v))
    return f"{key!r:.80} is a {type(value).__name__}; numpy.asarray or torch.as_tensor makes an array of it"


def _source(
    data: Any, num_workers: int, schema: Schema | None = None, left_out: dict[str, str] | None = None
) -> tuple[RowSource | BlockSource, dict[str, Any]]:
    """A source of the rows, and what the data says of itself; `left_out` is as `info_of` has it."""
    _refuse_several(data)
    info = info_of(data, left_out)
    data = _through_door(from_arrays(data) if is_arrays(data) else data, num_workers)
    if isinstance(data, (RowSource, BlockSource)):
        return data, info
    flat = flattened(data)
    data = data if flat is None else flat
    if isinstance(data, DataRef) and data.schema is not None and schema in (None, data.schema):
        return RefSource(data, data.schema), info
    if isinstance(data, IterableDataset):
        return IterableSource(data, num_workers), info
    if isinstance(data, (str, bytes, bytearray, dict, set, frozenset)):
        raise TypeError(
            f"a {type(data).__name__} is no dataset; pass a list, a dict of arrays, a Dataset or an iterable"
            + (f". {_odd_one(data)}" if isinstance(data, dict) and data else "")
        )
    if is_map_style(data):
        return MapSource(data, num_workers), info
    if isinstance(data, Iterable):
        return IteratorSource(data), info
    if callable(data):
        return _source(data(), num_workers, schema, left_out)
    raise TypeError(
        f"no rows can be read from a {type(data).__name__}; pass a Dataset, an array or an iterable"
    )
