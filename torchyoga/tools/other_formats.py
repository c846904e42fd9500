"""A path or URL of a dataset of another library -> its format, by what lies there, and a DataRef."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from glob import glob, has_magic
from importlib import import_module
from itertools import islice
from typing import NamedTuple

from ..errors import CorruptError, NotFoundError
from ..files.root import open_regular, read_regular
from ..reading.dataref import DataRef
from ..stores.address import directory_of, is_url
from ..stores.objects import Objects

_INDEX = "index.json"
_HEAD = 264  # bytes of a file, among which what it begins with are
_MOST_INDEX = 2**30  # bytes
_MOST_NAMED, _MOST_LOOKED = 4, 1000  # files of a folder: in a message, and whose names are looked at
_PACKED = r"(\.(gz|zst|zstd|bz2|xz))?"
_SCHEMED = re.compile(r"([a-z0-9]+)://(.*)", re.DOTALL)


class _Format(NamedTuple):
    """How a format is recognised, and read.

    Attributes:
        said: what it is recognised by, for messages.
        reader: the function of torchyoga that reads it.
        names: a pattern of the ends of its files' names; "" if these do not say it.
        begins: the bytes that a file of it has, and their place.
        key: of the `index.json` that a folder of it has; `inside`: files, of which a folder of it has one.
        is_several: the reader takes a folder of such files, and wildcards.
    """

    said: str
    reader: str
    names: str = ""
    begins: tuple[bytes, int] | None = None
    key: str = ""
    inside: tuple[str, ...] = ()
    is_several: bool = False


_JSONL, _TAR = rf"\.(jsonl|ndjson){_PACKED}", rf"\.(tar{_PACKED}|tgz)"
_IMAGES, _ZARR = r"\.(jpe?g|png|webp|gif|bmp|tiff?)", ("zarr.json", ".zgroup", ".zarray")
_FORMATS = {
    "mds": _Format("index.json with shards", "from_mds", key="shards"),
    "litdata": _Format("index.json with chunks", "from_litdata", key="chunks"),
    "megatron": _Format(".idx", "from_megatron", r"\.idx"),
    "jsonl": _Format(".jsonl", "from_jsonl", _JSONL, is_several=True),
    "tfrecord": _Format(".tfrecord", "from_tfrecord", r"\.tfrec[^/]*", is_several=True),
    "parquet": _Format(".parquet", "from_parquet", r"\.parquet", (b"PAR1", 0), is_several=True),
    "arrow": _Format(".arrow", "from_arrow", r"\.(arrow|feather)", (b"ARROW1", 0)),
    "hdf5": _Format(".h5", "from_hdf5", r"\.(h5|hdf5)", (b"\x89HDF\r\n\x1a\n", 0)),
    "npy": _Format(".npy", "from_arrays", r"\.npy", (b"\x93NUMPY", 0)),
    "webdataset": _Format(".tar", "webdataset", _TAR, (b"ustar", 257), is_several=True),
    "zarr": _Format(".zarr", "from_zarr", r"\.zarr", inside=_ZARR),
    "images": _Format("images", "image_folder", _IMAGES, is_several=True),
}
_TOKENS = ("uint16", "uint32", "int32")  # which name files of tokens: nothing in them says their dtype
_ENDS = {name: re.compile(of.names + r"\Z", re.IGNORECASE) for name, of in _FORMATS.items() if of.names}


def read_at(place: str) -> DataRef:
    """The rows of a dataset that another library has written; what lies there says its format.

    Args:
        place: a path or URL, which may have wildcards in its last part. A format may be named before it, as
            in `mds://folder` or `litdata://s3://bucket/name`, and of a file of tokens their dtype, as in
            `uint16://train.bin`.

    Raises:
        NotFoundError: there is nothing.
        ValueError: its format is not recognised; names what was looked for.
        Exception: as the function that reads the format.

    Example:
        >>> np.save(tmp_path / "x.npy", np.arange(3))
        >>> read_at(str(tmp_path / "x.npy"))[2]
        np.int64(2)
    """
    name = format_at(place)
    reader = "from_tokens" if name in _TOKENS else _FORMATS[name].reader
    dtype = [name] if name in _TOKENS else []
    ref: DataRef = getattr(import_module("torchyoga"), reader)(_named(place)[1], *dtype)
    return ref


def format_at(place: str) -> str:
    """The name of the format of what lies at a place; errors as `read_at`."""
    name, place = _named(place)
    if name:
        return name
    known, names = (_known_of_url if is_url(place) else _known_of_path)(place)
    if len(known) == 1:
        return known[0]
    if known:
        problem = f"it may be {' or '.join(known)}"
    elif names is not None:
        named = ", ".join(names[:_MOST_NAMED]) or "nothing"
        problem = f"it has {named}{' and more' if len(names) > _MOST_NAMED else ''}"
    else:
        problem = "neither its name nor its first bytes say it"
    more = (
        f", or a file of tokens {_TOKENS[0]}://{place}" if names is None else ", or a storage with --storage"
    )
    raise ValueError(
        f"the format of {place!r} is not recognised: {problem}. Looked for "
        f"{', '.join(of.said for of in _FORMATS.values())}; name the format, as in "
        f"{(known or ['mds'])[0]}://{place}{more}"
    )


def _named(place: str) -> tuple[str, str]:
    """The format that is named before a place, or "", and the place."""
    match = _SCHEMED.fullmatch(place)
    return (match[1], match[2]) if match and match[1] in (*_FORMATS, *_TOKENS) else ("", place)


def _known_of_path(place: str) -> tuple[list[str], list[str] | None]:
    """The formats that a path may have; and of a folder, some of its files."""
    path = str(directory_of(place))
    if os.path.isdir(path):
        paths = (
            os.path.relpath(os.path.join(folder, name), path)
            for folder, _, names in os.walk(path)
            for name in names
        )
        return _known_of_folder(
            lambda: read_regular(os.path.join(path, _INDEX), _MOST_INDEX),
            lambda: sorted(one.replace(os.sep, "/") for one in islice(paths, _MOST_LOOKED)),
            place,
        )
    is_file, prefix = os.path.isfile(path), re.sub(r"\.(bin|idx)\Z", "", path)
    if os.path.isfile(f"{prefix}.idx") and (prefix != path or not is_file):  # others have an index, too
        return ["megatron"], None
    if is_file:
        with open(open_regular(path), "rb") as file:
            head = file.read(_HEAD)
        begun = [name for name, of in _FORMATS.items() if of.begins and head.startswith(*of.begins)]
        return begun or _by_names([os.path.basename(path)]), None
    found = glob(path) if has_magic(path) else []
    if not found:
        raise NotFoundError(f"there is nothing under {place!r}; see that the path is right")
    return _by_names(found, in_folder=True), None


def _known_of_url(place: str) -> tuple[list[str], list[str] | None]:
    """The formats that a URL may have; and some files below it, unless its name says that it is a file."""
    if known := _by_names([place.partition("://")[2].partition("?")[0].rpartition("/")[2]]):
        return known, None
    remote = Objects(place)
    known, names = _known_of_folder(
        lambda: remote.read(_INDEX, _MOST_INDEX), lambda: sorted(remote.find()), place
    )
    folder, _, last = place.rpartition("/")
    if not known and not names and last and "?" not in last:  # a prefix of Megatron's, which is no folder
        index = Objects(folder).find_one(f"{last.removesuffix('.bin')}.idx")
        known = [] if index is None else ["megatron"]
    return known, names


def _known_of_folder(
    read: Callable[[], bytes], find: Callable[[], list[str]], place: str
) -> tuple[list[str], list[str]]:
    """The formats of a folder by its index, else by its files; and the files, if they were looked for."""
    try:
        data = read()
    except FileNotFoundError:
        data = b"{}"
    try:
        index = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{_INDEX} of {place} is not JSON, or is damaged: {error}") from error
    known = [name for name, of in _FORMATS.items() if of.key and isinstance(index, dict) and of.key in index]
    names = [] if len(known) == 1 else find()
    known = known or [name for name, of in _FORMATS.items() if not set(of.inside).isdisjoint(names)]
    return known or _by_names(names, in_folder=True), names


def _by_names(paths: Sequence[str], in_folder: bool = False) -> list[str]:
    """The formats of files with such names."""
    return [
        name
        for name, end in _ENDS.items()
        if (_FORMATS[name].is_several or not in_folder) and any(map(end.search, paths))
    ]
