"""Patterns -> the names of shards: braces, wildcards, folders, and URLs that fsspec knows."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import NotFoundError

__all__ = ["is_remote", "shard_names"]

_ENDINGS = (".tar", ".tar.gz", ".tgz")
_BRACES = re.compile(r"\{(\d+\.\.\d+|[^{}]*,[^{}]*)\}")
_MOST = 10**6


def is_remote(name: str) -> bool:
    """True for a URL, False for a path of this machine."""
    return "://" in name


def shard_names(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: Mapping[str, object]
) -> list[str]:
    """The paths and URLs that patterns stand for: in their order, and those of a wildcard sorted.

    Args:
        urls: paths or URLs, with `{0000..0099}`, `{train,more}`, `*`, `?` and `[...]`; or folders.
        options: for fsspec's filesystems.

    Raises:
        NotFoundError: nothing is there under one of these names.
        ValueError: a pattern stands for too many names, or runs a command.

    Example:
        >>> [name for name in _with_braces("s3://b/{train,test}-{08..10}.tar")][:4]
        ['s3://b/train-08.tar', 's3://b/train-09.tar', 's3://b/train-10.tar', 's3://b/test-08.tar']
    """
    patterns = [urls] if isinstance(urls, (str, os.PathLike)) else [*urls]
    found: list[str] = []
    for pattern in [os.fspath(pattern) for pattern in patterns]:
        if pattern.startswith("pipe:"):
            raise ValueError(
                f"{pattern!r:.200} would run a command, which is not done here; pass files, or URLs "
                "that fsspec knows"
            )
        for name in [pattern] if os.path.exists(pattern) else _with_braces(pattern):
            found += _remote(name, options) if is_remote(name) else _local(name)
            if len(found) > _MOST:
                raise ValueError(f"{pattern!r:.200} stands for more than {_MOST} shards")
    if not found:
        raise NotFoundError("there are no shards; pass paths or URLs of tar files")
    return found


def _with_braces(pattern: str) -> Iterator[str]:
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    before, inside, after = pattern[: match.start()], match[1], pattern[match.end() :]
    if "," in inside:
        options: Iterator[str] = iter(inside.split(","))
    else:
        first, last = inside.split("..")
        if len(first) > 18 or len(last) > 18 or int(last) - int(first) > _MOST:
            raise ValueError(f"{pattern!r:.200} stands for more than {_MOST} shards")
        options = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    for option in options:
        yield from _with_braces(before + option + after)


def _local(name: str) -> list[str]:
    path = os.path.abspath(Path(name.removeprefix("file://")).expanduser())
    if os.path.isdir(path):
        inside = sorted(entry for entry in os.listdir(path) if entry.endswith(_ENDINGS) and entry[0] != ".")
        found = [os.path.join(path, entry) for entry in inside]
    else:
        found = [path] if os.path.exists(path) else sorted(glob.glob(path))
    if not found:
        raise NotFoundError(f"there is no shard {path}; pass the path of a tar file, a folder or a pattern")
    return found


def _remote(name: str, options: Mapping[str, object]) -> list[str]:
    if name.startswith("file://"):
        return _local(name)
    if glob.has_magic(name.partition("://")[2].partition("?")[0]) and not name.startswith("http"):
        import fsspec  # only where it is needed: it takes a while to load

        filesystem, path = fsspec.core.url_to_fs(name, **options)
        found = [str(filesystem.unstrip_protocol(path)) for path in sorted(filesystem.glob(path))]
        if not found:
            raise NotFoundError(f"there is no shard {name}; pass the URL of a tar file, or a pattern")
        return found
    return [name]
