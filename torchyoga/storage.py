"""Storage: submit, fetch, cacheable; joining the rooms."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec

from torch.utils.data import IterableDataset

from .adapters import dataflow, sequence
from .adapters.arrays import from_arrays, is_arrays
from .adapters.python import IteratorSource
from .adapters.ref import RefSource
from .adapters.torch import IterableSource, MapSource, is_map_style
from .build import BlockSource, BuildOptions, RowSource, build
from .dataref import DataRef, VersionRef
from .errors import CorruptError, ExistsError, NotFoundError
from .formats import format_named
from .manifest import Manifest
from .reader import Reader
from .schema import Schema
from .store import Store

__all__ = ["Storage"]

P = ParamSpec("P")


class Storage:
    """A directory of cached datasets, each under an id and a version.

    Any number of threads, processes and machines that see the directory may use it at once.

    Args:
        url: a directory; `~` is the home directory. It is made when something is first submitted.
        format: the file format of new datasets, `lmdb` or `hdf5`; the same rows at the same speed.
        compression: of new HDF5 datasets: `gzip`, `lzf` or, with the package hdf5plugin, `blosc` or `zstd`.

    Example:
        >>> storage = Storage(tmp_path / "storage")
        >>> ref = storage.submit([{"x": 1}, {"x": 2}], "numbers", "1.0")
        >>> len(ref), storage.fetch("numbers", "1.0")[1]
        (2, {'x': 2})
    """

    def __init__(
        self, url: str | os.PathLike[str], format: str = "lmdb", compression: str | None = None
    ) -> None:
        text = os.fspath(url)
        if "://" in text:
            raise ValueError(f"{text!r}: this version keeps datasets in local directories only; pass a path")
        format_named(format, compression)
        self.format = format
        self.compression = compression
        self._store = Store(Path(text).expanduser().absolute())

    @property
    def path(self) -> Path:
        """The directory."""
        return self._store.root

    def __repr__(self) -> str:
        compression = f", compression={self.compression!r}" if self.compression else ""
        return f"Storage({str(self.path)!r}, format={self.format!r}{compression})"

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

        Raises:
            ExistsError: that version is published and `overwrite` is False.
            SchemaError: a row does not fit; names row, column, expected and found.
            TypeError: `data` is nothing that rows can be read from.
            OSError: the disk is full or cannot be written.

        Whatever is raised, nothing is published and an older version stays. An interrupted build of a
        map-style dataset is continued by the next call; arrays and DataRefs, which go in fast, start over.
        """
        if not overwrite:
            self._refuse_existing(id, version)
        options = self._options(schema, max_rows, progress, format, compression)
        with self._store.lock(id, version):
            if not overwrite:
                self._refuse_existing(id, version)
            manifest = build(_source(data, num_workers, schema), self._store, id, version, options)
            return self._ref(manifest, verify=True)

    def fetch(self, id: str, version: str, verify: bool = True) -> DataRef:
        """A published version as a DataRef.

        Args:
            id: which dataset.
            version: which version of it.
            verify: check every block against its checksum when it is first read; False for storage that
                checks itself.

        Raises:
            NotFoundError: it is not published, or not yet; says which versions are.
            CorruptError: its manifest is damaged or its files are missing or cut.
        """
        for _ in range(3):
            manifest = self._store.manifest(id, version)
            # Overwritten or removed while it was being opened? The next look tells which.
            with contextlib.suppress(NotFoundError):
                return self._ref(manifest, verify)
        return self._ref(self._store.manifest(id, version), verify)

    def cacheable(
        self,
        id: str,
        version: str,
        *,
        num_workers: int = 0,
        schema: Schema | None = None,
        max_rows: int | None = None,
        progress: bool | None = None,
        format: str | None = None,
        compression: str | None = None,
    ) -> Callable[[Callable[P, Any]], Callable[P, DataRef]]:
        """Decorates a function that makes a dataset: it runs once, ever; every later call, in any process,
        reads.

        Called by many threads, processes or machines at once, one builds and the others wait for it. The
        arguments are those of `submit`; the function may return whatever `submit` takes, or be a generator
        function.

        Example:
            >>> @storage.cacheable("squares", "1.0")
            ... def squares():
            ...     return [n * n for n in range(10)]
            >>> squares()[3]
            9
        """

        options = self._options(schema, max_rows, progress, format, compression)

        def decorate(function: Callable[P, Any]) -> Callable[P, DataRef]:
            @functools.wraps(function)
            def cached(*args: P.args, **kwargs: P.kwargs) -> DataRef:
                with contextlib.suppress(NotFoundError):
                    return self.fetch(id, version)
                with self._store.lock(id, version):
                    with contextlib.suppress(NotFoundError):
                        return self.fetch(id, version)
                    source = _source(function(*args, **kwargs), num_workers, schema)
                    return self._ref(build(source, self._store, id, version, options), verify=True)

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
        with self._store.lock(id, target):
            if to is not None:
                self._refuse_existing(id, to)
            whole = self.fetch(id, version)
            return self._ref(build(_source(whole, 0), self._store, id, target, options), verify=True)

    def list(self) -> list[tuple[str, str]]:
        """All published (id, version), sorted."""
        return self._store.published()

    def versions(self, id: str) -> list[str]:  # type: ignore[valid-type]  # `list` above is the method
        """The published versions of an id, sorted; empty if there are none."""
        return self._store.versions(id)

    def remove(self, id: str, version: str) -> None:
        """Deletes a version. Who has opened it keeps what it opened.

        Raises:
            NotFoundError: it is not published.
        """
        self._store.remove(id, version)

    def check(self, id: str, version: str) -> None:
        """Reads a whole version and compares it with its manifest, both ways.

        Raises:
            NotFoundError: it is not published.
            CorruptError: names everything that is missing, cut, damaged or not in the manifest.
        """
        manifest = self._store.manifest(id, version)
        problems = self._store.check_files(manifest)
        if manifest.schema is not None:
            directory = str(self._store.directory(id, version))
            problems += Reader(directory, manifest.schema, manifest.files).verify_all()
        if problems:
            raise CorruptError(
                f"{id!r} {version!r} is damaged: {'; '.join(problems)}. Remove it and build it again"
            )

    def _options(
        self,
        schema: Schema | None,
        max_rows: int | None,
        progress: bool | None,
        format: str | None,
        compression: str | None,
    ) -> BuildOptions:
        if format is None or format == self.format:
            format, compression = self.format, compression or self.compression
        format_named(format, compression)
        return BuildOptions(format, compression, schema, max_rows, progress)

    def _refuse_existing(self, id: str, version: str) -> None:
        if self._store.find(id, version) is not None:
            raise ExistsError(
                f"{id!r} {version!r} is published already in {self.path}; "
                "fetch it, choose another version, or pass overwrite=True"
            )

    def _ref(self, manifest: Manifest, verify: bool) -> DataRef:
        ref = VersionRef(str(self._store.directory(manifest.id, manifest.version)), manifest, verify)
        if len(ref):
            ref.open()
        return ref


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


def _source(data: Any, num_workers: int, schema: Schema | None = None) -> RowSource | BlockSource:
    data = _through_door(from_arrays(data) if is_arrays(data) else data, num_workers)
    if isinstance(data, (RowSource, BlockSource)):
        return data
    if isinstance(data, DataRef) and data.schema is not None and schema in (None, data.schema):
        return RefSource(data, data.schema)
    if isinstance(data, IterableDataset):
        return IterableSource(data, num_workers)
    if isinstance(data, (str, bytes, bytearray, dict, set, frozenset)):
        raise TypeError(
            f"a {type(data).__name__} is no dataset; pass a list, a dict of arrays, a Dataset or an iterable"
        )
    if is_map_style(data):
        return MapSource(data, num_workers)
    if isinstance(data, Iterable):
        return IteratorSource(data)
    if callable(data):
        return _source(data(), num_workers, schema)
    raise TypeError(
        f"no rows can be read from a {type(data).__name__}; pass a Dataset, an array or an iterable"
    )
