"""yogadl's storages, over `torchyoga.Storage`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, ParamSpec

from ...process.messages import warn_user
from ...storage import Storage as _Storage
from ..yogadl import DataRef, Storage, Submittable
from .dataref import CachedDataRef

P = ParamSpec("P")


class _OverStorage(Storage):
    """The base of yogadl's storages, over one of ours."""

    def __init__(self, storage: _Storage) -> None:
        self.storage = storage

    def submit(self, data: Submittable, dataset_id: str, dataset_version: str) -> None:
        """Keeps a dataset; an existing one is replaced, and its readers go on reading what they opened."""
        self.storage.submit(_ours(data), dataset_id, dataset_version, overwrite=True)

    def fetch(self, dataset_id: str, dataset_version: str) -> CachedDataRef:
        """A dataset that was kept."""
        return CachedDataRef(self.storage.fetch(dataset_id, dataset_version))

    def cacheable(
        self, dataset_id: str, dataset_version: str
    ) -> Callable[[Callable[P, object]], Callable[P, CachedDataRef]]:
        """Decorates a function that makes a dataset: it runs once, for all callers; later calls read."""

        def decorate(function: Callable[P, object]) -> Callable[P, CachedDataRef]:
            # As in yogadl, whatever the arguments are.
            @self.storage.cacheable(
                _literal(dataset_id), _literal(dataset_version), ignore=["args", "kwargs"], stale="ignore"
            )
            def cached(*args: P.args, **kwargs: P.kwargs) -> object:
                return _ours(function(*args, **kwargs))

            @functools.wraps(function)
            def fetched(*args: P.args, **kwargs: P.kwargs) -> CachedDataRef:
                return CachedDataRef(cached(*args, **kwargs))

            return fetched

        return decorate


def _literal(text: str) -> str:
    """A template that stands for just this text."""
    return text.replace("{", "{{").replace("}", "}}")


def _ours(data: object) -> object:
    """The data as torchyoga takes them; yogadl's DataRefs become their rows."""
    if isinstance(data, CachedDataRef):
        return data.ref
    return data.stream() if isinstance(data, DataRef) else data


class LFSConfigurations:
    """A directory."""

    cache_format = "LMDB"

    def __init__(self, storage_dir_path: str | os.PathLike[str]) -> None:
        self.storage_dir_path = Path(storage_dir_path)


class LFSStorage(_OverStorage):
    """Datasets in a directory, on any file system.

    Args:
        configurations: says which.
        tensorflow_config: ignored; datasets are read eagerly.
    """

    def __init__(self, configurations: LFSConfigurations, tensorflow_config: object = None) -> None:
        super().__init__(_Storage(configurations.storage_dir_path))


@dataclass(eq=False, repr=False)
class BaseCloudConfigurations:
    """A folder of a bucket.

    Args:
        bucket: its name.
        bucket_directory_path: the folder within it.
        url: of yogadl's lock server; ignored, like the other arguments that have to do with it.
        local_cache_dir: files of the bucket are kept below it, in `yogadl_local_cache`.
        skip_verify: ignored.
        coordinator_cert_file: ignored.
        coordinator_cert_name: ignored.
    """

    bucket: str
    bucket_directory_path: str | os.PathLike[str]
    url: str | None = None
    local_cache_dir: str | os.PathLike[str] = "/tmp/"
    skip_verify: bool = False
    coordinator_cert_file: str | None = None
    coordinator_cert_name: str | None = None
    scheme: ClassVar[str]
    cache_format: ClassVar[str] = "LMDB"

    def __post_init__(self) -> None:
        self.bucket_directory_path = Path(self.bucket_directory_path)
        self.local_cache_dir = Path(self.local_cache_dir)
        of_server = ("url", "skip_verify", "coordinator_cert_file", "coordinator_cert_name")
        ignored = [name for name in of_server if getattr(self, name)]
        if ignored:
            warn_user(
                f"{type(self).__name__}: {', '.join(ignored)} ignored, for there is no lock server: a "
                "published version never changes, so readers need no lock, and builders coordinate through "
                "the storage"
            )

    @property
    def storage_url(self) -> str:
        """The URL for `torchyoga.Storage`."""
        return f"{self.scheme}://{self.bucket}/{Path(self.bucket_directory_path).as_posix().strip('/')}"

    @property
    def _options(self) -> dict[str, str]:
        return {}

    def storage(self) -> _Storage:
        """The storage itself."""
        return _Storage(
            self.storage_url,
            storage_options=self._options or None,
            cache_dir=Path(self.local_cache_dir) / "yogadl_local_cache",
        )


class S3Configurations(BaseCloudConfigurations):
    """A folder of an S3 bucket, with yogadl's arguments.

    Args:
        bucket: its name.
        bucket_directory_path: the folder within it.
        url: of yogadl's lock server; ignored, like the other arguments that have to do with it.
        access_key: credentials.
        secret_key: credentials.
        endpoint_url: of a store that is not Amazon's.
        local_cache_dir: files of the bucket are kept below it, in `yogadl_local_cache`.
        skip_verify: ignored.
        coordinator_cert_file: ignored.
        coordinator_cert_name: ignored.
    """

    scheme = "s3"

    def __init__(
        self,
        bucket: str,
        bucket_directory_path: str | os.PathLike[str],
        url: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        endpoint_url: str | None = None,
        local_cache_dir: str | os.PathLike[str] = "/tmp/",
        skip_verify: bool = False,
        coordinator_cert_file: str | None = None,
        coordinator_cert_name: str | None = None,
    ) -> None:
        super().__init__(
            bucket,
            bucket_directory_path,
            url,
            local_cache_dir,
            skip_verify,
            coordinator_cert_file,
            coordinator_cert_name,
        )
        self.access_key = access_key
        self.secret_key = secret_key
        self.endpoint_url = endpoint_url

    @property
    def _options(self) -> dict[str, str]:
        found = {"key": self.access_key, "secret": self.secret_key, "endpoint_url": self.endpoint_url}
        return {name: value for name, value in found.items() if value is not None}


class GCSConfigurations(BaseCloudConfigurations):
    """A folder of a bucket of Google Cloud Storage, with yogadl's arguments."""

    scheme = "gs"


class BaseCloudStorage(_OverStorage):
    """Datasets in a bucket.

    Args:
        configurations: says which.
        tensorflow_config: ignored; datasets are read eagerly.
    """

    def __init__(self, configurations: BaseCloudConfigurations, tensorflow_config: object = None) -> None:
        super().__init__(configurations.storage())


class S3Storage(BaseCloudStorage):
    """Datasets in an S3 bucket; needs the package s3fs."""


class GCSStorage(BaseCloudStorage):
    """Datasets in a bucket of Google Cloud Storage; needs the package gcsfs."""
