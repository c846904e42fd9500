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
from ..process.messages import warn_user
from ..reading.stored_ref import (
    FilesRef,
    LeftOut,
    Names,
    Threads,
    WholeFiles,
    check_share,
    content_of,
    info_of_left_out,
    refuse_many,
    warn_of,
)
from ..rows.column import PLAIN, Codec, Column, Meaning
from ..rows.image_formats import ENDINGS, HEAD, begins_as_image, format_of
from ..rows.node import Node
from ..rows.schema import Schema
from ..rows.types import Json

IMAGES = tuple(ending for endings in ENDINGS.values() for ending in endings)
_NOT_DECODED = (
    *(".heic", ".heif", ".hif", ".jxl", ".jxr", ".svg", ".svgz", ".psd", ".xcf", ".tga", ".ico", ".exr"),
    *(".qoi", ".dds", ".pcx", ".pfm", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"),
)
_FILES_AT_ONCE = 256
_LOOKED_AT = 2**17  # files of other endings, or as many as there are images: seconds
_NAMED = 20  # extensions in a message


def image_folder(
    path: str | os.PathLike[str],
    *,
    classes: bool | Sequence[str] | None = None,
    extensions: Sequence[str] | None = None,
    max_bad: float = 0.01,
    threads: int = 16,
) -> FilesRef:
    """The images of a folder as a DataRef: the bytes of each file as they are, nothing is decoded.

    Rows are `{"image": bytes, "label": int, "path": str}`, with the path below the folder. Read it as it is,
    or submit it to a storage: a build reads files by threads, and continues when it was interrupted. If all
    files are of one format, the schema says so, for decoders.

    Args:
        path: the folder. Files may lie at any depth in it.
        classes: True makes each folder in it a class: their names, sorted, have the labels 0, 1, ..., and are
            `ref.classes` and `ref.class_to_idx`. False gives rows without labels, of all files of any depth.
            A list names the classes in order; other folders are then left out. By default folders are classes
            if there are any, and a warning and `ref.left_out` name images beside them.
        extensions: the extensions of the files to read, in lower case, "" for files without one; all others
            are ignored. By default those of JPEG, PNG, WebP, TIFF, BMP, GIF, PPM, AVIF and JPEG 2000; then a
            warning and `ref.left_out` name other files that look like images, as `.heic` and `.svg` do, and
            files of unknown extension that begin as an image does.
        max_bad: the share of the files that may be bad: empty, unreadable, or without the first bytes of an
            image. They are left out; a warning and `ref.left_out` name them.
        threads: the number of threads that read files.

    Files are looked at once, when the folder is opened, so row numbers never change; a file that has another
    size later is an error. Rows are in the order of their class, their folder and their name. Names that
    begin with a dot are ignored. Links are followed, but no folder is read twice within a class.

    Raises:
        NotFoundError: there is no such folder, class or image.
        SchemaError: more images lie beside the folders than in them, so that it is unclear whether these are
            classes.
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
    folders, beside = _top(root)
    names = _classes_of(classes, folders, root)
    tops = [""] if names is None else names
    there = {"", *folders}  # a class may have no folder here
    below = pool.map(
        lambda top: sorted(_files_below(root, top), key=os.path.split) if top in there else [], tops
    )
    found = [[name for name in some if _ending(name) in wanted] for some in below]
    labels = np.repeat(np.arange(len(tops)), [len(some) for some in found])
    paths = [name for some in found for name in some]
    strays = [] if names is None else [name for name in beside if _ending(name) in wanted]
    if classes is None and len(strays) > len(paths):
        raise SchemaError(
            f"{root} has {len(strays)} images beside folders, and {len(paths)} in them. Pass classes=True if "
            "the folders are classes and those images are to be left out, or classes=False for all images, "
            "without labels"
        )
    if not paths:
        raise NotFoundError(f"{root} has no files with {' '.join(sorted(wanted))}; {_other_files(root)}")
    looks = _looked_at(pool, root, paths)
    left_out = [LeftOut(name, look.problem) for name, look in zip(paths, looks, strict=True) if look.problem]
    refuse_many(left_out, len(paths), share, root, "files")
    warn_of(left_out, len(paths), root, "files")
    left_beside = [LeftOut(name, "lies beside the folders of the classes") for name in strays]
    how = "are not read; move them into a folder, or pass classes=False for all images, without labels"
    warn_of(left_beside, len(paths) + len(strays), root, "files", how)
    left_out += left_beside
    if extensions is None:
        places = below if names is None else [*below, beside]
        rest = [name for some in places for name in some if _ending(name) not in wanted]
        others, not_seen = _other_images(pool, root, rest, max(_LOOKED_AT, len(paths)))
        how = "look like images and are not read; convert them, or pass extensions= for their bytes"
        warn_of(others, len(paths) + len(rest), root, "files", how)
        how = "may be images, which nobody looked for; pass extensions= with the endings to be read"
        warn_of(not_seen, len(paths) + len(rest), root, "files", how)
        left_out += [*others, *not_seen]
    good = [number for number, look in enumerate(looks) if not look.problem]
    kept = Names(paths[number] for number in good)
    sizes, labels = np.array([looks[number].nbytes for number in good], np.int64), labels[good]
    schema = _schema({looks[number].format for number in good}, names)
    files = WholeFiles(root, kept, sizes, pool)
    info: Json = info_of_left_out(left_out)
    if names is not None:
        info |= {"classes": [*names], "class_to_idx": {name: i for i, name in enumerate(names)}}
    return FilesRef(
        name=f"image folder {root!r}",
        schema=schema,
        length=len(kept),
        columns=(files, kept) if names is None else (files, labels, kept),
        content=content_of(schema, kept, sizes, labels),
        info=info,
        left_out=tuple(left_out),
    )


def _schema(formats: set[str], classes: Sequence[str] | None) -> Schema:
    """How rows look, given the formats of all files."""
    (codec,) = formats if len(formats) == 1 else ("",)
    meaning = Meaning(codec=Codec(codec)) if codec else PLAIN
    image = Column("image", "bytes", "|u1", None, 1, meaning)
    label = Column("label", "int", "<i8", (), 0, Meaning(words=tuple(classes or ())))
    path = Column("path", "str", "|u1", None, 1)
    columns = (image, path) if classes is None else (image, label, path)
    return Schema(Node("dict", tuple(c.name for c in columns), (Node("leaf"),) * len(columns)), columns)


def _extensions(given: Sequence[str] | None) -> frozenset[str]:
    if given is None:
        return frozenset(IMAGES)
    are_endings = bool(given) and all(isinstance(ext, str) and ext[:1] in (".", "") for ext in given)
    if isinstance(given, str) or not are_endings:
        raise ValueError(f"extensions={given!r:.100} must be a list of endings such as ['.jpg', '.png']")
    return frozenset(ext.lower() for ext in given)


# -- folders


def _entries(path: str) -> list[os.DirEntry[str]]:
    """The entries of a folder that are not hidden, by name."""
    with os.scandir(path) as found:
        return sorted((entry for entry in found if entry.name[0] != "."), key=lambda entry: entry.name)


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _top(root: str) -> tuple[list[str], list[str]]:
    """The names of the folders in the root, and of the files beside them."""
    found: tuple[list[str], list[str]] = [], []
    for entry in _entries(root):
        found[not entry.is_dir()].append(entry.name)
    return found


def _classes_of(asked: bool | Sequence[str] | None, folders: Sequence[str], root: str) -> list[str] | None:
    """The names of the classes, which are folders; None if there are none."""
    if isinstance(asked, str):
        raise ValueError(f"classes={asked!r} must be a list of names, True or False")
    if asked is None:
        asked = bool(folders)
    if asked is False:
        return None
    names = [*folders] if asked is True else [*asked]
    missing = ", ".join(repr(name) for name in names if name not in folders)
    if not set(names).intersection(folders):
        raise NotFoundError(f"{root} has no folder {missing or 'for a class'}")
    if missing:
        warn_user(f"{root} has no folder {missing:.400}, which classes= names: no image is of that class")
    if len(set(names)) != len(names):
        raise ValueError(f"classes={names!r:.200} names a class twice")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SchemaError(f"{root}: the name of the folder {name!r} is not UTF-8; rename it") from None
    return names


def _files_below(root: str, top: str) -> Iterator[str]:
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
            else:
                yield name


def _other_files(root: str) -> str:
    found: set[str] = set()
    for number, (_, _, files) in enumerate(os.walk(root)):
        found.update(_ending(name) for name in files if name[0] != ".")
        if number > 1000 or len(found) > _NAMED:
            break
    named = " ".join(sorted(ext for ext in found if ext)[:_NAMED])
    return f"it has {named}: name them in extensions=" if named else "it has no other files"


# -- files


class _FileLook(NamedTuple):
    """Facts that the beginning of a file shows."""

    nbytes: int
    format: str
    problem: str
    is_image: bool = False  # whatever its name is


def _looked_at(threads: Threads, root: str, paths: Sequence[str]) -> list[_FileLook]:
    cuts = [*range(0, len(paths), _FILES_AT_ONCE), len(paths)]
    pieces = [paths[start:stop] for start, stop in pairwise(cuts)]
    found: Iterable[list[_FileLook]] = threads.map(lambda some: [_look(root, name) for name in some], pieces)
    return [look for some in found for look in some]


def _other_images(
    threads: Threads, root: str, paths: Sequence[str], most: int
) -> tuple[list[LeftOut], list[LeftOut]]:
    """The files that look like images and are not read, and those that may, beyond the most to look at."""
    named, unknown = [], list[str]()
    for path in paths:
        ending = _ending(path)
        if ending in _NOT_DECODED:
            named.append(LeftOut(path, "is of a kind that is not decoded here"))
        else:
            unknown.append(path)
    looks = zip(unknown, _looked_at(threads, root, unknown[:most]), strict=False)
    begun = [path for path, look in looks if look.is_image]
    named += [LeftOut(path, "begins as an image does, and has another ending") for path in begun]
    return named, [LeftOut(path, f"comes after {most} files of other endings") for path in unknown[most:]]


_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK"))


def _look(root: str, name: str) -> _FileLook:
    try:
        handle = os.open(os.path.join(root, name), _FLAGS)  # a FIFO without a wait
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                return _FileLook(0, "", "is not a file")
            head = os.read(handle, HEAD)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return _FileLook(0, "", "is a link to nothing")
    except OSError as error:
        return _FileLook(0, "", f"cannot be read: {error.strerror or error}")
    if not head:
        return _FileLook(0, "", "is empty")
    format = format_of(head) or ""
    if not format and _ending(name) in IMAGES:
        return _FileLook(0, "", f"does not begin as an image does, but with {head[:8].hex(' ')}")
    return _FileLook(about.st_size, format, "", begins_as_image(head))
