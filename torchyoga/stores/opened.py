"""The directory or URL of a storage -> its versions.

A directory is opened without what a URL needs, so that commands on manifests start quickly.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from ..files.root import Root
from ..process.numbers import as_int
from .address import directory_of, is_url
from .contract import Store
from .local import LocalStore


def opened(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    lease_seconds: float = 60.0,
    shared: bool = False,
) -> Store:
    """The versions of a storage, with the arguments that `Storage` describes.

    Raises:
        TypeError: `url` is no text and no path.
        ValueError: an argument is out of range, or for a storage of the other kind; or `url` is a file.
        ImportError: the package for this kind of URL is not installed; names it.
    """
    text = os.fspath(url) if isinstance(url, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise TypeError(
            f'a storage is a directory or a URL, found {url!r:.80}; write Storage("~/datasets"), or '
            'Storage("s3://bucket/prefix")'
        )
    if not isinstance(url, str) and re.match(r"[A-Za-z0-9]{2,}:/[^/]", text):
        raise ValueError(f"{text!r} looks like a URL that was turned into a Path; pass the URL as a str")
    if is_url(text):
        from .cache import cache_of
        from .objects import Objects
        from .remote import RemoteStore

        limit = None if cache_bytes is None else as_int("cache_bytes", cache_bytes, low=0)
        cache = replace(cache_of(cache_dir, limit), shared=shared)
        return RemoteStore(Objects(text, storage_options), cache, lease_seconds)
    for name, value in (("storage_options", storage_options), ("cache_dir", cache_dir)):
        if value:
            raise ValueError(f"{name} is for a store behind a URL, but {text!r} is a directory")
    directory = directory_of(text)
    if os.path.isfile(directory):
        raise ValueError(
            f'{text!r} is a file, and a storage is a directory of datasets; write Storage("~/datasets"), and '
            "read the file by what suits it, such as yoga.from_parquet, from_hdf5 or from_jsonl"
        )
    return LocalStore(Root(directory, shared=shared))
