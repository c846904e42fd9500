"""A folder of image files -> rows: the files' bytes as they are, and a label for each class folder."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import NotFoundError, SchemaError
from ..reading.file_parts import FileParts, Names, Threads
from ..reading.files_ref import FilesRef, Held, content_of
from ..reading.left_out import LeftOut, check_share, refuse_many, told_of, warn_of
from ..rows.column import Column
from ..rows.meaning import PLAIN, Codec, Meaning
from ..rows.node import Node
from ..rows.schema import Schema
from ..rows.types import Json

__all__ = ["IMAGES", "image_folder"]

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm")
_HEAD = 16  # bytes that show the format
_FILES_AT_ONCE = 256
# The first bytes of each format: where they are, and what they are.
_MAGIC: tuple[tuple[str, int, tuple[bytes, ...]], ...] = (
    ("jpeg", 0, (b"\xff\xd8\xff",)),
    ("png", 0, (b"\x89PNG\r\n\x1a\n",)),
    ("webp", 8, (b"WEBP",)),
    ("tiff", 0, (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    ("bmp", 0, (b"BM",)),
    ("gif", 0, (b"GIF87a", b"GIF89a")),
    ("ppm", 0, (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")),
)
_NAMED = 20  # extensions in a message


def image_folder(
    path: str | os.PathLike[str],
    *,
    classes: bool | Sequence[str] | None = None,
    extensions: Sequence[str] = IMAGES,
    max_bad: float = 0.01,
    threads: int = 16,
) -> FilesRef:
    """The images of a folder as a DataRef: the bytes of each file as they are, nothing is decoded.

    Rows are `{"image": bytes, "label": int, "path": str}`, with the path below the folder. Read it as it is,
    or submit it to a storage: a build reads files by threads, and continues when it was interrupted. If all
    files are of one format, the schema says so, for decoders.

    Args:
        path: the folder. Files may lie at any depth in it.
        classes: True if each folder in it is a class: their names, sorted, are the labels 0, 1, ..., and
            `ref.classes` and `ref.class_to_idx` tell them. False for rows without labels, of all files of any
            depth. By default what is there decides. Or the names of the classes in order; other folders are
            left out then.
        extensions: of the files that are read, in small letters; all others are ignored.
        max_bad: the share of the files that may be bad: empty, unreadable, or images that do not begin as any
            image does. They are left out; a warning and `ref.left_out` name them.
        threads: read files.

    Files are looked at once, when the folder is opened, so row numbers never change; a file that has another
    size later is an error. Rows are in the order of their class, their folder and their name. Names that
    begin with a dot are ignored. Links are followed, but no folder is read twice within a class.

    Raises:
        NotFoundError: there is no such folder, class or image.
        SchemaError: images lie beside folders with images, so that it is unclear whether these are classes.
        CorruptError: too many files are bad; names the first ones. When read: a file has changed since.
        ValueError: `max_bad`, `threads` or an extension is not of the kind that it should be.

    Example:
        >>> for name in ("cat/a.png", "cat/more/b.png", "dog/c.png"):
        ...     (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        ...     _ = (tmp_path / "pets" / name).write_bytes(bytes.fromhex("89504e470d0a1a0a") + name.encode())
        >>> ref = image_folder(tmp_path / "pets")
        >>> len(ref), ref.classes, ref[1]["label"], ref[1]["path"]
        (3, ['cat', 'dog'], 0, 'cat/more/b.png')
    """
    root = os.path.abspath(Path(path).expanduser())
    wanted, share, pool = _extensions(extensions), check_share(max_bad), Threads(threads)
    if not os.path.isdir(root):
        raise NotFoundError(f"there is no folder {root}; pass the path of one with images")
    folders, files_beside = _top(root, wanted)
    names = _classes_of(classes, folders, files_beside, root)
    tops = [""] if names is None else names
    found = pool.map(lambda top: sorted(_files_below(root, top, wanted, names is not None), key=_order), tops)
    labels = np.repeat(np.arange(len(tops)), [len(some) for some in found])
    paths = [name for some in found for name in some]
    if not paths:
        raise NotFoundError(f"{root} has no files with {' '.join(sorted(wanted))}; {_other_files(root)}")
    looks = _looked_at(pool, root, paths)
    left_out = [LeftOut(name, look.problem) for name, look in zip(paths, looks, strict=True) if look.problem]
    refuse_many(left_out, len(paths), share, root, "files")
    warn_of(left_out, len(paths), root, "files")
    good = [number for number, look in enumerate(looks) if not look.problem]
    return _ref(
        root,
        Names(paths[number] for number in good),
        np.array([looks[number].nbytes for number in good], np.int64),
        labels[good],
        names,
        {looks[number].format for number in good},
        left_out,
        pool,
    )


def _ref(
    root: str,
    paths: Names,
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]],
    labels: np.ndarray[tuple[int], np.dtype[np.int64]],
    classes: Sequence[str] | None,
    formats: set[str],
    left_out: Sequence[LeftOut],
    threads: Threads,
) -> FilesRef:
    (codec,) = formats if len(formats) == 1 else ("",)
    meaning = Meaning(codec=Codec(codec)) if codec else PLAIN
    image = Column("image", "bytes", "|u1", None, 1, meaning)
    label = Column("label", "int", "<i8", (), 0, Meaning(words=tuple(classes or ())))
    path = Column("path", "str", "|u1", None, 1)
    columns = (image, path) if classes is None else (image, label, path)
    schema = Schema(Node("dict", tuple(c.name for c in columns), (Node("leaf"),) * len(columns)), columns)
    numbers = np.arange(len(paths))
    parts = FileParts(root, paths, sizes, numbers, np.zeros(len(paths), np.int64), sizes, threads)
    info: Json = told_of(left_out)
    if classes is not None:
        info |= {"classes": [*classes], "class_to_idx": {name: i for i, name in enumerate(classes)}}
    held = Held(
        name=f"image folder {root!r}",
        schema=schema,
        length=len(paths),
        columns=(parts, paths) if classes is None else (parts, labels, paths),
        content=content_of(schema, paths, sizes, labels),
        starts=None,
        info=info,
        left_out=tuple(left_out),
    )
    return FilesRef(held)


def _extensions(given: Sequence[str]) -> frozenset[str]:
    if (
        isinstance(given, str)
        or not given
        or not all(isinstance(ext, str) and ext[:1] == "." for ext in given)
    ):
        raise ValueError(f"extensions={given!r:.100} must be a list of endings such as ['.jpg', '.png']")
    return frozenset(ext.lower() for ext in given)


# -- folders


def _entries(path: str) -> list[os.DirEntry[str]]:
    """What is in a folder and is not hidden, by name."""
    with os.scandir(path) as found:
        return sorted((entry for entry in found if entry.name[0] != "."), key=lambda entry: entry.name)


def _is_wanted(name: str, extensions: frozenset[str]) -> bool:
    return os.path.splitext(name)[1].lower() in extensions


def _top(root: str, extensions: frozenset[str]) -> tuple[list[str], bool]:
    """The names of folders in the root, and whether there are images beside them."""
    entries = _entries(root)
    folders = [entry.name for entry in entries if entry.is_dir()]
    return folders, any(_is_wanted(entry.name, extensions) for entry in entries if not entry.is_dir())


def _classes_of(
    asked: bool | Sequence[str] | None, folders: Sequence[str], files_beside: bool, root: str
) -> list[str] | None:
    """The names of the classes, which are folders; None if there are none."""
    if isinstance(asked, str):
        raise ValueError(f"classes={asked!r} must be a list of names, True or False")
    if asked is None:
        if folders and files_beside:
            raise SchemaError(
                f"{root} has images beside folders. Pass classes=True if the folders are classes and those "
                "images are to be left out, or classes=False for all images, without labels"
            )
        asked = bool(folders)
    if asked is False:
        return None
    names = [*folders] if asked is True else [*asked]
    missing = [name for name in names if name not in folders]
    if missing or not names:
        raise NotFoundError(f"{root} has no folder {', '.join(map(repr, missing)) or 'for a class'}")
    if len(set(names)) != len(names):
        raise ValueError(f"classes={names!r:.200} names a class twice")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SchemaError(f"{root}: the name of the folder {name!r} is not UTF-8; rename it") from None
    return names


def _order(name: str) -> tuple[str, str]:
    folder, _, own = name.rpartition("/")
    return folder, own


def _files_below(root: str, top: str, extensions: frozenset[str], with_folders: bool) -> Iterator[str]:
    """Paths below the root, with slashes, of the files in one of its folders."""
    seen: set[tuple[int, int]] = set()
    folders = deque([top])
    while folders:
        folder = folders.popleft()  # those near the root first: links further down find them read
        about = os.stat(os.path.join(root, folder))
        # A link may lead back, or many to the same folder. Without numbers, as on some network mounts,
        # the length of a path ends it.
        if about.st_ino and (about.st_dev, about.st_ino) in seen:
            continue
        seen.add((about.st_dev, about.st_ino))
        for entry in _entries(os.path.join(root, folder)):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                folders.append(name)
            elif _is_wanted(entry.name, extensions):
                yield name


def _other_files(root: str) -> str:
    found: set[str] = set()
    for number, (_, _, files) in enumerate(os.walk(root)):
        found.update(os.path.splitext(name)[1].lower() for name in files if name[0] != ".")
        if number > 1000 or len(found) > _NAMED:
            break
    named = " ".join(sorted(ext for ext in found if ext)[:_NAMED])
    return f"it has {named}: name them in extensions=" if named else "it has no other files"


# -- files


class _Look(NamedTuple):
    """What the beginning of a file shows."""

    nbytes: int
    format: str
    problem: str


def _looked_at(threads: Threads, root: str, paths: Sequence[str]) -> list[_Look]:
    cuts = [*range(0, len(paths), _FILES_AT_ONCE), len(paths)]
    pieces = [paths[start:stop] for start, stop in pairwise(cuts)]
    found: Iterable[list[_Look]] = threads.map(lambda some: [_look(root, name) for name in some], pieces)
    return [look for some in found for look in some]


_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK"))


def _look(root: str, name: str) -> _Look:
    try:
        handle = os.open(os.path.join(root, name), _FLAGS)  # a FIFO without a wait
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                return _Look(0, "", "is not a file")
            head = os.read(handle, _HEAD)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return _Look(0, "", "is a link to nothing")
    except OSError as error:
        return _Look(0, "", f"cannot be read: {error.strerror or error}")
    if not head:
        return _Look(0, "", "is empty")
    format = _format_of(head)
    if not format and os.path.splitext(name)[1].lower() in IMAGES:
        return _Look(0, "", f"does not begin as an image does, but with {head[:8].hex(' ')}")
    return _Look(about.st_size, format, "")


def _format_of(head: bytes) -> str:
    """The format of an image that begins so; empty for anything else."""
    for name, offset, starts in _MAGIC:
        if any(head[offset : offset + len(start)] == start for start in starts):
            return name
    return ""
