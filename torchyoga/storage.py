"""A user's calls of submit, fetch, cacheable and more into calls of the rooms below.

Door: `Storage`. Never sees the network, or how rows are shuffled.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, overload

from .formats.contract import format_named
from .process.lazy import later
from .process.numbers import as_int
from .reading.dataref import DataRef
from .reading.instead import advised
from .rows.schema import Schema
from .stores import history, opened, refs, spare, transfer
from .stores.contract import Store
from .stores.history import TagEntry, VersionLog
from .stores.local import LocalStore
from .views.info import Info, said_and_asked

if TYPE_CHECKING:
    from .building import build as _build
    from .caching import cacheable as _cacheable
    from .caching import grown as _grown
    from .caching import lineage as _lineage
    from .caching import many as _many
    from .caching.cacheable import Stale
    from .caching.grown import Numbers, Where
    from .coding import encoding as _encoding
    from .coding.encoders import Encoder
    from .rows.types import Json
else:  # loaded when they are first called, so that a first dataset opens at once
    _build = later("torchyoga.building.build")
    _cacheable = later("torchyoga.caching.cacheable")
    _encoding = later("torchyoga.coding.encoding")
    _grown = later("torchyoga.caching.grown")
    _lineage = later("torchyoga.caching.lineage")
    _many = later("torchyoga.caching.many")

__all__ = ["Storage", "store_of"]

P = ParamSpec("P")


class Storage:
    """A directory of cached datasets, or a store of them behind a URL; each has an id and a version.

    Any number of threads, processes and machines may use it at once.

    Args:
        url: a directory, where `~` is the home directory; or a URL that fsspec knows, such as
            s3://bucket/prefix, gs://bucket/prefix or https://host/path (read-only). See docs/remote.md.
        format: the file format of new datasets, `lmdb` or `hdf5`; the same rows at the same speed.
        compression: for new HDF5 datasets: `gzip`.
        storage_options: for fsspec's filesystem, such as credentials and an endpoint; never written
            anywhere. Without them the environment's are used.
        cache_dir: the folder for files of a store on this machine; by default in the user's cache folder.
            Any number of storages and processes may share one.
        cache_bytes: the most bytes to keep there; the files that were unused for the longest time are deleted
            first. None for no limit.
        file_bytes: about how many bytes of rows go into a file of a new version. A cache keeps whole files,
            so a file must be much smaller than the `cache_bytes` of those who read it. By default 64 MiB for
            a URL, or a 32nd of `cache_bytes` if that is less; 1 GiB for a directory, which needs no cache.
        timeout: seconds to wait while another process builds the same version.
        lease_seconds: after so many seconds without a sign of life, a process that builds for a store counts
            as dead.
        shared: True lets users of the same group write to the files in the directory, or in `cache_dir`. By
            default only their owner may, and other users may not read what is cached from a store.

    Raises:
        ValueError: an argument is out of range.
        ImportError: the package for this kind of URL is not installed; the message names it.

    Example:
        >>> storage = Storage(tmp_path / "storage")
        >>> ref = storage.submit([{"x": 1}, {"x": 2}], "numbers", "1.0")
        >>> len(ref), storage.fetch("numbers", "1.0")[1]
        (2, {'x': 2})
    """

    @advised
    def __init__(
        self,
        url: str | os.PathLike[str],
        format: str = "lmdb",
        compression: str | None = None,
        *,
        storage_options: Mapping[str, object] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        file_bytes: int | None = None,
        timeout: float = 86400.0,
        lease_seconds: float = 60.0,
        shared: bool = False,
    ) -> None:
        format_named(format, compression)
        if not timeout >= 0:
            raise ValueError(f"timeout must be at least 0 seconds, found {timeout!r}")
        if not 1 <= lease_seconds <= 86400:
            raise ValueError(f"lease_seconds must be in 1..86400, found {lease_seconds!r}")
        self.format = format
        self.compression = compression
        self.timeout = timeout
        self._lease_seconds = lease_seconds
        self._store = opened.opened(url, storage_options, cache_dir, cache_bytes, lease_seconds, shared)
        self.url = self._store.name
        file_bytes = self._store.file_bytes if file_bytes is None else file_bytes
        self.file_bytes = as_int("file_bytes", file_bytes, 1)

    @property
    def path(self) -> Path:
        """The directory.

        Raises:
            ValueError: the storage has a URL.
        """
        if not isinstance(self._store, LocalStore):
            raise ValueError(f"{self.url} is not a directory of this machine; use its url")
        return self._store.root

    def __repr__(self) -> str:
        compression = f", compression={self.compression!r}" if self.compression else ""
        return f"Storage({self.url!r}, format={self.format!r}{compression})"

    @advised
    def submit(
        self,
        data: object,
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
        info: Info | None = None,
        codecs: Mapping[str, Encoder | None] | None = None,
        executor: object | None = None,
        together: bool = False,
        stats: bool = True,
        record: bool = True,
        message: str | None = None,
    ) -> DataRef:
        """Reads `data` once, stores its rows as a version, and returns the version as a DataRef.

        Args:
            data: a map-style torch Dataset or anything with `__len__` and `__getitem__`, such as a list, a
                torch IterableDataset, an array, a tensor, a dict of arrays (rows along the first axis), a
                DataRef, a `tf.data.Dataset`, a Keras `PyDataset` or `Sequence`, a TensorPack `DataFlow`, an
                iterable, or a function that returns any of these, such as a generator function.
            id: the name of the dataset; any non-empty text.
            version: the name of the version; any non-empty text.
            overwrite: replace that version if it exists. Readers that already have it open go on reading the
                old data.
            num_workers: the number of processes that read a map-style dataset or a Keras sequence.
            schema: the types and shapes of a row, if the first rows do not show them: `Schema.of(row,
                ragged=["tokens"])`.
            max_rows: more rows than this are an error; for a source that may have no end.
            progress: show a progress bar; by default on a terminal.
            format: a file format other than the storage's.
            compression: a compression other than the storage's. The size of files is always the storage's:
                `Storage(..., file_bytes=...)`.
            info: JSON data to keep with the rows, up to 1 MiB: a dict, or a list of names of the dataset's
                attributes. Read it as `DataRef.info`, or its entries as attributes of the DataRef. The
                dataset's `classes`, `class_to_idx` and `features`, or all of the `info` of a DataRef, are
                added unless it has entries of these names.
            codecs: for columns by name, how to encode the values: `yoga.codecs.jpeg()`, `png()`, `zstd()` or
                `flac(...)`. They are stored as bytes, and `DataRef.decoded` decodes them. Values of a DataRef
                that are encoded already stay as they are; None for a column decodes them first.
            executor: workers that build parts of the version: any executor of `concurrent.futures`, loky,
                Dask (`client.get_executor()`) or MPI, or your own over another engine. See docs/caching.md.
            together: all processes that make this call, such as the ranks of torchrun or the tasks of a Slurm
                array, build parts of the version. A process that calls it later gets the published version.
            stats: keep statistics of each column with the rows, for `DataRef.stats`.
            record: record with the version how it was made: code, commit, packages, user and time, as
                docs/caching.md lists it. In a directory this includes the source text and the host. False
                records nothing.
            message: a text about the version, up to 4,096 characters; `log` shows it.

        Raises:
            ExistsError: that version is published and `overwrite` is False.
            BusyError: other processes still build it after `timeout` seconds.
            LostError: other processes took the work over, because this one showed no sign of life; nothing
                was published.
            SchemaError: a row does not fit; the message says which row and column, what was expected and what
                was found.
            TypeError: rows cannot be read from `data`; or `info` is not JSON data.
            AttributeError: `info` names an attribute that the dataset does not have.
            ValueError: `info` is too long, or nests too deep; or `record` or `message` is out of range.
            OSError: the disk is full or cannot be written.
            RemoteError: the store cannot be reached or written; what was built is kept for the next call.

        After any error nothing is published, and an older version stays. The next call continues an
        interrupted build of a map-style dataset. Arrays and DataRefs, which are stored fast, start over.

        At the end three rows of a map-style dataset are read twice more. If they differ, as augmented rows
        do, a warning says so.
        """
        as_int("num_workers", num_workers, low=0)
        if not overwrite and not together:
            self._store.refuse_existing(id, version)
        lineage = _lineage.lineage_of(data, record, message)
        options = self._options(
            schema, max_rows, progress, format, compression, info, codecs, stats, num_workers, lineage
        )
        many = self._builders(executor, together)
        if together and overwrite:
            raise ValueError(
                "together=True cannot overwrite: a caller that comes last would build it once more; remove "
                "the version first"
            )
        if num_workers and executor is not None:
            raise ValueError(
                f"num_workers={num_workers} reads rows for one builder, and executor= has many; pass one of "
                "them"
            )
        with self._lock(id, version) if many is None else nullcontext():
            if many is None:
                if not overwrite:
                    self._store.refuse_existing(id, version)
                self._store.check_place(id, version)  # before anything is built in vain
            return _many.submitted_by(many, data, self._target(id, version, overwrite), options)

    @advised
    def fetch(
        self,
        id: str,
        version: str | None = None,
        verify: bool = True,
        *,
        tag: str | None = None,
        latest: bool = False,
        download: bool = False,
        progress: bool | None = None,
    ) -> DataRef:
        """A published version as a DataRef. For a version in a store only the manifest is read.

        Args:
            id: the dataset.
            version: the version; or else `tag` or `latest`, exactly one of the three.
            verify: check every block against its checksum when it is first read; False for storage that
                checks itself.
            tag: the version that this tag names.
            latest: True for the newest version: the only one that no other version was made from.
            download: download all files of a version in a store now, not when they are read.
            progress: show a progress bar for that; by default on a terminal.

        Raises:
            NotFoundError: the version is not published; the message says which versions are. Or there is no
                such tag; or the version of the tag was removed, or overwritten by other rows; or there are
                several newest versions, which the message names.
            CorruptError: the manifest or the tag is damaged, or files are missing or cut.
            RemoteError: the store cannot be reached.
            TypeError: not exactly one of `version`, `tag` and `latest` is given.
            ValueError: `download` is True, but the files are larger than the cache may be.

        Example:
            >>> ref = storage.submit([1, 2], "fetched", "1.0")
            >>> entry = storage.tag("fetched", "prod", "1.0")
            >>> len(storage.fetch("fetched", tag="prod")), len(storage.fetch("fetched", latest=True))
            (2, 2)
        """
        how = refs.Opening(verify, download, progress)
        return refs.chosen(self._store, id, version, tag, latest, how)

    @advised
    def cacheable(
        self,
        id: str,
        version: str,
        *,
        ignore: Collection[str] = (),
        stale: Stale = "warn",
        sources: Sequence[str | os.PathLike[str]] = (),
        num_workers: int = 0,
        schema: Schema | None = None,
        max_rows: int | None = None,
        progress: bool | None = None,
        format: str | None = None,
        compression: str | None = None,
        info: Info | None = None,
        codecs: Mapping[str, Encoder | None] | None = None,
        executor: object | None = None,
        together: bool = False,
        stats: bool = True,
        record: bool = True,
        message: str | None = None,
    ) -> Callable[[Callable[P, object]], Callable[P, DataRef]]:
        """Decorates a function that makes a dataset: it runs only once; every later call reads the cache.

        If many threads, processes or machines call it at once, one builds and the others wait. The function
        may return anything that `submit` takes, or be a generator function. A version records digests of its
        arguments and of the function's code; see docs/caching.md.

        Args:
            id: the name of the dataset. It may contain names of arguments in braces, as in `"mnist-{train}"`.
                Write `{{` and `}}` for braces themselves.
            version: the name of the version; it may contain names of arguments, too.
            ignore: names of arguments that the rows do not depend on, such as a folder or a token.
            stale: what to do with a version that was made by other code of the function or of what it names
                in its module, or from other `sources`, or that has no record of how it was made: "warn" once,
                and read it; raise an "error"; "ignore" this; or "rebuild" the version, in place of the old
                one.
            sources: patterns of the files that the function reads, such as `["raw/*.png"]`, relative to the
                folder of the function's file. Their names, sizes, times and digests are recorded.
            num_workers: as in `submit`.
            schema: as in `submit`.
            max_rows: as in `submit`.
            progress: as in `submit`.
            format: as in `submit`.
            compression: as in `submit`.
            info: as in `submit`; attributes of the dataset are read when a version is built.
            codecs: as in `submit`.
            executor: as in `submit`.
            together: as in `submit`: processes that would wait for the builder help it.
            stats: as in `submit`.
            record: as in `submit`. The digests by which a version counts as stale are always recorded.
            message: as in `submit`.

        Raises:
            ValueError: when decorated: braces or `ignore` contain a text that is not the name of an argument.
            TypeError: when called: an argument has no digest that is the same in every process, or the
                function does not take these arguments.
            ExistsError: when called: the version was made with other arguments; or, with `stale="error"`, by
                other code, or it has no record of how it was made.
            FileNotFoundError: when called: the version must be built, and a pattern of `sources` matches no
                file.
            BusyError: when called: other processes still build it after `timeout` seconds.

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
        options = self._options(
            schema, max_rows, progress, format, compression, info, codecs, stats, num_workers
        )
        many = self._builders(executor, together)
        cacheable = _cacheable.Cacheable(
            self._store, self._lock, options, stale, sources, record, message, many
        )

        def decorate(function: Callable[P, object]) -> Callable[P, DataRef]:
            return cacheable.decorated(function, id, version, ignore)

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
        codecs: Mapping[str, Encoder | None] | None = None,
        stats: bool = True,
        record: bool = True,
        message: str | None = None,
    ) -> DataRef:
        """Writes a version into files of its own, in any format: the same rows, the same fingerprint.

        Small files become files of ordinary size. The bytes of deleted rows are gone once no other version
        uses the files that contain them. `codecs` encodes values in another way, so the fingerprint changes,
        and a state of the old version does not fit.

        Args:
            id: the dataset.
            version: the version. It is replaced in one step; readers that have it open go on reading the old
                files.
            format: the file format; by default the version's own, and its compression.
            compression: a compression that the format has, or None.
            to: the name of a new version; the old one then stays.
            progress: show a progress bar; by default on a terminal.
            codecs: as in `submit`, for some columns; None decodes a column. Image files of the right kind
                stay as they are.
            stats: as in `submit`; they are computed again.
            record: as in `submit`; the record of the function stays.
            message: as in `submit`.

        Raises:
            NotFoundError: the version is not published.
            KeyError: it has no such column.
            ExistsError: `to` is published already.
            BusyError: other processes still build it after `timeout` seconds.
            LostError: other processes took the work over, because this one showed no sign of life; nothing
                was published.
            CorruptError: the version is damaged. Nothing is published.

        Example:
            >>> before = storage.submit({"x": np.arange(5)}, "x", "1.0", format="lmdb")
            >>> after = storage.convert("x", "1.0", format="hdf5", compression="gzip")
            >>> after.fingerprint == before.fingerprint, after[3]["x"]
            (True, np.int64(3))
            >>> reduced = storage.delete_rows("x", "1.0", rows=[0, 3], to="1.1")
            >>> storage.remove("x", "1.0")  # its file stays, for "1.1" names it
            >>> storage.convert("x", "1.1").fingerprint == reduced.fingerprint  # now the file is gone
            True
            >>> texts = storage.submit([{"text": "line " * 50}] * 3, "lines", "1.0")
            >>> small = storage.convert("lines", "1.0", codecs={"text": yoga.codecs.zstd()}, to="2.0")
            >>> len(small[0]["text"]) < 50, small.decoded()[0] == texts[0]
            (True, True)
        """
        lineage = _lineage.lineage_of(None, record, message)
        options = self._options(
            None, None, progress, format, compression, codecs=codecs, stats=stats, lineage=lineage
        )
        target = version if to is None else to
        with self._lock(id, target):
            if to is not None:
                self._store.refuse_existing(id, to, False)
            self._store.check_place(id, target)
            into = self._target(id, target, to is None)
            return _grown.converted(version, into, options, format is None, compression)

    def append(
        self,
        data: object,
        id: str,
        version: str | None = None,
        *,
        after: str | None = None,
        num_workers: int = 0,
        max_rows: int | None = None,
        progress: bool | None = None,
        info: Info | None = None,
        codecs: Mapping[str, Encoder | None] | None = None,
        record: bool = True,
        message: str | None = None,
    ) -> DataRef:
        """Publishes a version with the rows of `after` and then those of `data`; writes only the new rows.

        The versions share the files of `after`, which stay as long as one of them uses them. The fingerprint
        is the same as if all rows were submitted at once. Any number of processes may append at a time:
        without `after` each appends to what was published before. See docs/caching.md.

        Args:
            data: the new rows, as in `submit`; they get the schema, the format and the codecs of `after`.
            id: the dataset.
            version: the name of the new version; by default the next free number.
            after: a published version of the dataset; by default the newest one when the rows are published.
            num_workers: as in `submit`.
            max_rows: as in `submit`, of the new rows.
            progress: as in `submit`.
            info: entries to add to the info of `after`; they replace entries of the same names.
            codecs: as in `submit`, to change the recorded codec of a column, such as its quality. Another
                kind of codec is a SchemaError.
            record: as in `submit`.
            message: as in `submit`.

        Raises:
            NotFoundError: `after` is not published, or was removed meanwhile; or the dataset has no version,
                or several newest ones.
            ExistsError: `version` is published already.
            SchemaError: a new row does not fit the schema of `after`; the message names the column.
            BusyError: other processes still build one of the two after `timeout` seconds.
            LostError, OSError, RemoteError, TypeError, ValueError: as in `submit`.

        After any error nothing is published. The next call continues an interrupted one, as in `submit`.

        Example:
            >>> old = storage.submit({"x": np.arange(3)}, "grown", "1")
            >>> new = storage.append({"x": np.arange(3, 5)}, "grown", "2", after="1", message="May")
            >>> len(new), new.fingerprint == storage.submit({"x": np.arange(5)}, "at once", "1").fingerprint
            (5, True)
            >>> newest = storage.append({"x": np.arange(5, 7)}, "grown")  # after "2", as version "3"
            >>> storage.versions("grown"), len(newest)
            (['1', '2', '3'], 7)
        """
        growth = _grown.Growth(self._store, self.timeout, id, after)
        lineage = _lineage.lineage_of(data, record, message)
        options = self._options(
            None, max_rows, progress, None, None, info, num_workers=num_workers, lineage=lineage
        )
        with growth.named(version) as to:
            return _grown.appended(data, growth, to, options, partial(_encoding.fitted, codecs or {}))

    def add_columns(
        self,
        data: object,
        id: str,
        version: str | None = None,
        *,
        after: str | None = None,
        columns: Sequence[str] | None = None,
        batch_size: int | None = None,
        replace: bool = False,
        num_workers: int = 0,
        progress: bool | None = None,
        codecs: Mapping[str, Encoder | None] | None = None,
        executor: object | None = None,
        record: bool = True,
        message: str | None = None,
    ) -> DataRef:
        """Publishes a version with the rows of `after` and more columns; writes only the new columns.

        The versions share the files of `after`. Readers of some columns read only the files of these. The
        fingerprint is the same as if whole rows were submitted at once. A state that was saved with `after`
        loads. Any number of processes may add columns at a time. See docs/caching.md.

        Args:
            data: values of the new columns for each row, in order: a dict of arrays, a DataRef, a list of
                dicts, or whatever `submit` takes. Or a function of the old columns, as `DataRef.map_batches`
                takes it, which returns the new ones.
            id: the dataset.
            version: the name of the new version; by default the next free number.
            after: a published version of the dataset, whose rows are dicts; by default the newest one.
            columns: the columns that the function gets; by default all.
            batch_size: the most rows that the function gets in a call; by default 1,024, or as many as have
                16 MiB.
            replace: True replaces an old column by a new one of the same name, such as a corrected label.
            num_workers: as in `submit`.
            progress: as in `submit`.
            codecs: as in `submit`, for new columns.
            executor: as in `submit`, if `data` can be read in any process, as a function can.
            record: as in `submit`.
            message: as in `submit`.

        Raises:
            SchemaError: `data` has more or fewer rows than `after`; or a column exists already, and `replace`
                is False; or rows are not dicts; or the function returns another number of rows.
            KeyError: `columns` names a column that does not exist.
            NotFoundError: `after` is not published, or was removed or overwritten meanwhile; or, without it,
                rows were appended or deleted meanwhile.
            ExistsError, BusyError, LostError, OSError, RemoteError, TypeError, ValueError: as in `append`.

        After any error nothing is published.

        Example:
            >>> old = storage.submit({"image": np.zeros((3, 8, 8)), "label": np.arange(3)}, "scored", "1")
            >>> new = storage.add_columns({"score": np.array([0.1, 0.9, 0.5])}, "scored")
            >>> new.schema.tree.keys, float(new[1]["score"])
            (('image', 'label', 'score'), 0.9)
            >>> def brightness(c):
            ...     return {"mean": c["image"].mean((1, 2))}
            >>> storage.add_columns(brightness, "scored", columns=["image"])[2]["mean"].item()
            0.0
        """
        growth = _grown.Growth(self._store, self.timeout, id, after)
        lineage = _lineage.lineage_of(data, record, message)
        options = self._options(
            None, None, progress, None, None, codecs=codecs, num_workers=num_workers, lineage=lineage
        )
        many = self._builders(executor, False)
        most = None if batch_size is None else as_int("batch_size", batch_size, low=1)
        given = _grown.Given(columns, most)
        added = partial(_grown.added, given=given, replacing=replace, many=many)
        with growth.named(version) as to:
            if many is None:
                return added(data, growth, to, options)
        return added(data, growth, to, options)  # who publishes holds the lock

    def drop_columns(
        self,
        names: Sequence[str],
        id: str,
        version: str | None = None,
        *,
        after: str | None = None,
        record: bool = True,
        message: str | None = None,
    ) -> DataRef:
        """Publishes a version with the rows of `after` without some columns; reads and writes no data.

        The bytes stay in the files, which both versions share. To delete the bytes, `convert` the new version
        and remove the others. A state that was saved with `after` loads.

        Args:
            names: the columns to leave out; keys of the rows.
            id: the dataset.
            version: the name of the new version; by default the next free number.
            after: a published version of the dataset; by default the newest one.
            record: as in `submit`.
            message: as in `submit`.

        Raises:
            KeyError: there is no such column; the message says which there are.
            ValueError: no column would be left, or none is named.
            SchemaError: the rows are not dicts.
            NotFoundError, ExistsError, BusyError, LostError, OSError, RemoteError: as in `append`.

        Example:
            >>> old = storage.submit({"image": np.zeros((3, 8, 8)), "label": np.arange(3)}, "labels", "1")
            >>> storage.drop_columns(["image"], "labels")[2]
            {'label': np.int64(2)}
        """
        growth = _grown.Growth(self._store, self.timeout, id, after)
        lineage = _lineage.lineage_of(None, record, message)
        with growth.named(version) as to:
            return _grown.dropped(names, growth, to, lineage)

    def delete_rows(
        self,
        id: str,
        version: str,
        *,
        rows: Numbers | None = None,
        where: Where | None = None,
        to: str,
        record: bool = True,
        message: str | None = None,
    ) -> DataRef:
        """Publishes a version without some rows; it shares the files of the old one.

        The fingerprint is the same as if only the other rows were submitted. The bytes of the deleted rows
        stay in the files; to delete them, remove the old version and `convert` the new one.

        Args:
            id: the dataset.
            version: the version; it stays as it is.
            rows: (D,) numbers of the rows to delete, in any order, each once.
            where: in place of `rows`, one or several columns and a condition, as `DataRef.where` takes them.
                The rows for which the condition is true are deleted.
            to: the name of the new version.
            record: as in `submit`.
            message: as in `submit`.

        Raises:
            ValueError: no row is named, or one is named twice; or neither or both of `rows` and `where` are
                given.
            IndexError: there is no such row.
            NotFoundError, ExistsError, BusyError, CorruptError, RemoteError: as in `append`.

        Example:
            >>> old = storage.submit({"x": np.arange(5)}, "reduced", "1")
            >>> new = storage.delete_rows("reduced", "1", where=("x", lambda x: x % 2 == 1), to="2")
            >>> [int(row["x"]) for row in new]
            [0, 2, 4]
        """
        growth = _grown.Growth(self._store, self.timeout, id, version)
        lineage = _lineage.lineage_of(None, record, message)
        with growth.named(to):
            return _grown.reduced(growth, to, rows, where, lineage)

    def copy(
        self, id: str, version: str, to: Storage, *, overwrite: bool = False, progress: bool | None = None
    ) -> DataRef:
        """Copies a version to another storage: the same files, each checked before it is sent.

        The next call continues an interrupted copy: files that have arrived are not sent again.

        Args:
            id: the dataset.
            version: the version.
            to: another directory or store.
            overwrite: replace another version of that name in `to`. The same version is never sent twice.
            progress: show a progress bar; by default on a terminal.

        Returns:
            The version in `to`.

        Raises:
            NotFoundError: the version is not published here, or was removed meanwhile. If it is overwritten
                meanwhile, the new one is copied.
            ExistsError: `to` has another version of that name, and `overwrite` is False.
            BusyError: other processes still build it after `timeout` seconds.
            LostError: other processes took the work over, because this one showed no sign of life; nothing
                was published.
            CorruptError: a file is damaged here. Nothing is published in `to`.
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
        with to._lock(id, version):
            return transfer.copied(self._store, to._store, manifest, overwrite, progress)

    def clean(
        self,
        grace: float = 86400.0,
        *,
        keep_last: int | None = None,
        keep_tagged: bool = True,
        id: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, int]:
        """Removes what interrupted builds have left, and replaced files; with `keep_last` also versions.

        Args:
            grace: seconds. Files and versions that are younger stay, because they may belong to a running
                build, or to readers that have not downloaded them yet. In a store its own clock counts.
            keep_last: how many of the newest versions of each dataset to keep; None keeps all. Versions with
                a tag stay, too, and so does the version that one of these was made from, so that the two can
                be compared. All others are removed as by `remove`, except one that is being built.
            keep_tagged: False removes versions with a tag, too.
            id: only this dataset; None for all.
            dry_run: remove nothing.

        Returns:
            The names of what was removed, or would be, and the bytes of each, without files that a version
            shares with versions that stay.

        Raises:
            RemoteError: the store cannot be reached or written.
            ValueError, TypeError: an argument is out of range, or no version at all would be kept.

        Example:
            >>> for number in range(4):
            ...     ref = storage.submit([number], "counted", str(number))
            >>> entry = storage.tag("counted", "prod", "0")
            >>> [*storage.clean(0, keep_last=1, id="counted", dry_run=True)]
            ['counted/1', 'counted/2']
            >>> storage.versions("counted")
            ['0', '1', '2', '3']
        """
        if not isinstance(grace, (int, float)) or not grace >= 0:
            raise ValueError(f"grace must be at least 0 seconds, found {grace!r}; it cleans all versions")
        if not isinstance(keep_tagged, bool):
            raise TypeError(f"keep_tagged must be True or False, found {keep_tagged!r:.80}")
        if keep_last is None and not keep_tagged:
            raise ValueError("keep_tagged=False is about versions; say with keep_last how many of these stay")
        last = None if keep_last is None else as_int("keep_last", keep_last, low=0)
        return spare.cleaned(self._store, grace, last, keep_tagged, id, dry_run)

    def tag(self, id: str, tag: str, version: str | None, *, message: str | None = None) -> TagEntry:
        """Sets a tag to a version, or takes it away; returns the new entry of its history.

        If several processes set a tag at once, all entries are in its history, and the last one counts.

        Args:
            id: the dataset.
            tag: any non-empty text, such as "prod".
            version: a published version; None takes the tag away, and its history stays.
            message: the reason, up to 4,096 characters.

        Raises:
            NotFoundError: the version is not published, or there is no tag to take away; the message says
                which there are.
            BusyError: other processes still build that version after a minute.
            ValueError, TypeError: the tag is not a name, or the message not a text.
            RemoteError: the store cannot be reached or written.

        Example:
            >>> ref = storage.submit([1, 2], "photos", "1.0")
            >>> storage.tag("photos", "prod", "1.0", message="reviewed").number
            1
            >>> storage.fetch("photos", tag="prod").fingerprint == ref.fingerprint
            True
            >>> storage.tag("photos", "prod", None).version, storage.tags("photos")
            (None, {})
        """
        if version is None:
            return history.untagged(self._store, id, tag, message)
        return history.tagged(self._store, id, tag, version, message, self.timeout)

    @overload
    def tags(self, id: str) -> dict[str, str]: ...
    @overload
    def tags(self, id: str, tag: str) -> builtins.list[TagEntry]: ...
    def tags(self, id: str, tag: str | None = None) -> dict[str, str] | builtins.list[TagEntry]:
        """The version of each tag of a dataset, even if that was removed since; or the history of one tag.

        Args:
            id: the dataset.
            tag: return the history of this tag, the oldest entry first: which version, who, when and why.

        Raises:
            NotFoundError: there never was such a tag.
            CorruptError: an entry of a tag is damaged or missing; the message names its file.
        """
        return history.tags_of(self._store, id) if tag is None else history.tag_history(self._store, id, tag)

    def log(self, id: str, limit: int | None = None) -> VersionLog:
        """The versions of a dataset, the newest first; `print` shows a table.

        Args:
            id: the dataset.
            limit: the most versions to return.

        Raises:
            NotFoundError: the dataset has no version.
            RemoteError: the store cannot be reached.

        Example:
            >>> ref = storage.submit([1, 2, 3], "history", "1.0", message="the first one")
            >>> [(entry.version, entry.rows, entry.message) for entry in storage.log("history")]
            [('1.0', 3, 'the first one')]
        """
        return history.log_of(self._store, id, limit)

    def list(self) -> list[tuple[str, str]]:
        """All published pairs (id, version), sorted, 1.9 before 1.10."""
        return self._store.published()

    def versions(self, id: str) -> builtins.list[str]:
        """The published versions of a dataset, sorted, 1.9 before 1.10; empty if there are none."""
        return self._store.versions(id)

    def remove(self, id: str, version: str, *, force: bool = False) -> None:
        """Deletes a version. Readers that have it open go on reading.

        In a store these readers keep only the files that they have downloaded. Files that other versions
        share stay. Of more than 128 versions, one whose own files have less than 64 KiB leaves them to
        `clean`, because it would take all manifests to see which of them are shared.

        Args:
            id: the dataset.
            version: the version.
            force: remove a version with a tag, too; the tag then names nothing.

        Raises:
            NotFoundError: the version is not published.
            YogaError: the version has tags; the message says which.
            BusyError: other processes still build it after `timeout` seconds.
            LostError: other processes took the work over, because this one showed no sign of life; nothing
                was removed.
            RemoteError: the store cannot be reached or written.
        """
        spare.removed(self._store, id, version, self.timeout, force)

    def check(self, id: str, version: str) -> None:
        """Reads a whole version and compares it with its manifest, both ways.

        Raises:
            NotFoundError: the version is not published, or was removed meanwhile. If it is overwritten
                meanwhile, the new one is checked.
            CorruptError: a file is missing, cut, damaged or not in the manifest; the message names all.
            RemoteError: the store cannot be reached; files in the cache are not checked.
        """
        transfer.check(self._store, id, version)

    def _lock(self, id: str, version: str) -> AbstractContextManager[None]:
        """Holds the writer's lock of a version."""
        return self._store.lock(id, version, self.timeout)

    def _target(self, id: str, version: str, overwrite: bool) -> _build.Target:
        """Where a version is to be published; with `overwrite` in place of the one that is there now.

        Call it before anything is built, since another process may publish during a long build.
        """
        replaces = self._store.seen(id, version) if overwrite else None
        return _build.Target(self._store, id, version, replaces)

    def _builders(self, executor: object | None, together: bool) -> _many.Many | None:
        """Who builds; None for this process."""
        if executor is not None and together:
            raise ValueError("executor= and together=True are two ways to build by many; pass one of them")
        if executor is None and not together:
            return None
        return _many.Many(executor, self._lease_seconds, self.timeout)

    def _options(
        self,
        schema: Schema | None,
        max_rows: int | None,
        progress: bool | None,
        format: str | None,
        compression: str | None,
        info: Info | None = None,
        codecs: Mapping[str, Encoder | None] | None = None,
        stats: bool = True,
        num_workers: int = 0,
        lineage: Callable[[float], Json] | None = None,
    ) -> _build.BuildOptions:
        if format is None or format == self.format:
            format, compression = self.format, compression or self.compression
        format_named(format, compression)
        encode = None
        if codecs:
            encode = partial(_encoding.recoded, dict(codecs))
            if schema is not None:
                schema = _encoding.encoded_schema(schema, _encoding.check_codecs(codecs))
        said, asked = said_and_asked(info)
        return _build.BuildOptions(
            format,
            compression,
            schema,
            max_rows,
            progress,
            block_bytes=min(_build.BuildOptions.block_bytes, self.file_bytes),
            file_bytes=self.file_bytes,
            info=said,
            asked=asked,
            encode=encode,
            stats=stats,
            num_workers=num_workers,
            lineage=lineage,
        )


def store_of(storage: Storage) -> Store:
    """The versions behind a storage, with its options, for rooms above."""
    return storage._store
