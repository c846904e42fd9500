"""The headers of a tar archive -> its members, and the samples that they make. Nothing is extracted.

What a header says is compared with its checksum and with the size of the file before anything relies on it.
Formats: ustar, old tar, GNU and PAX, with long names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..errors import CorruptError

_BLOCK = 512
_EMPTY = bytes(_BLOCK)
_MOST_PADDING = 2**20  # after the end; tar itself fills up to 10 KiB
_PIECE = 2**16  # bytes of it that are looked at at once
_OCTAL = re.compile(rb"[0-7]*\Z")
_FILES, _FOLDER, _LONG_NAME, _LONG_LINK, _PAX, _GLOBAL = b"0\x007", b"5", b"L", b"K", (b"x", b"X"), b"g"
# Headers ahead of the next member, or of all, and the bytes that they may have.
_AHEAD = dict.fromkeys((_LONG_NAME, _LONG_LINK), 2**16) | dict.fromkeys((*_PAX, _GLOBAL), 2**20)
_PROBLEMS = {b"1": "is a link", b"2": "is a link", b"S": "is a sparse file"} | dict.fromkeys(
    (b"3", b"4", b"6"), "is a device or a FIFO"
)
KEY = "__key__"
# The fault of samples whose key came before in their shard.
APART = (
    "have a key that came before in their shard, so each is a row with some of the members only; write the "
    "members of a sample one after the other, as by tar --sort=name"
)
Read = Callable[[int, int], bytes]


class Member(NamedTuple):
    """A member of an archive: `nbytes` bytes of the archive from `offset` on; or why it cannot be one."""

    name: str
    offset: int
    nbytes: int
    problem: str = ""


def members(read: Read, size: int) -> Iterator[Member]:
    """The members of an archive, in order, without its folders; each is given before the next is looked at.

    Args:
        read: returns bytes at a place: so many, unless the archive ends there; called for places that rise.
        size: bytes of the archive.

    Raises:
        CorruptError: the archive is cut, damaged, or not a tar archive; all members before are given first.
    """
    at, name, extended = 0, "", dict[bytes, bytes]()
    while True:
        block = read(at, _BLOCK)
        if len(block) < _BLOCK:
            raise CorruptError(f"it is cut: it ends at byte {at + len(block)}, without the mark of its end")
        if block == _EMPTY:
            if name or extended:
                raise CorruptError(f"it ends at byte {at} within a header")
            _check_end(read, at, size)
            return
        kind, short_name, nbytes = _header(block, at)
        body = at + _BLOCK
        if kind in _AHEAD:
            text = _body(read, body, nbytes, _AHEAD[kind])
            if kind == _LONG_NAME:
                name = _text(text)
            elif kind in _PAX:
                extended = _records(text, body)
            elif kind == _GLOBAL:
                _refuse_global(_records(text, body), body)
            at = _behind(body, nbytes)
            continue
        if b"path" in extended:
            name = extended[b"path"].decode("utf-8", "surrogateescape")
        if b"size" in extended:
            nbytes = _decimal(extended[b"size"], body)
        name = name or short_name
        if kind == b"S" and block[482]:  # more headers come before the bytes
            raise CorruptError(f"its member {name!r:.200} is a sparse file of many pieces")
        has_body = kind not in b"123456"
        if has_body and nbytes > size - body:
            raise CorruptError(
                f"it is cut, or its member {name!r:.200} is: that should have {nbytes} bytes from byte "
                f"{body} on, but the file has {size}"
            )
        if not has_body and kind != _FOLDER and nbytes:
            raise CorruptError(f"its member {name!r:.200} is a link or a device of {nbytes} bytes")
        is_folder = kind == _FOLDER or (kind in _FILES and name.endswith("/"))
        if not is_folder:
            yield Member(name, body, nbytes, _problem(kind, name, extended))
        at = _behind(body, nbytes) if has_body else body
        name, extended = "", {}


def _behind(body: int, nbytes: int) -> int:
    return body + -(-nbytes // _BLOCK) * _BLOCK


def _problem(kind: bytes, name: str, extended: dict[bytes, bytes]) -> str:
    if kind not in _FILES:
        return _PROBLEMS.get(kind, f"is of an unknown kind, {kind!r}")
    if any(key.startswith(b"GNU.sparse.") for key in extended):
        return "is a sparse file"
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        return "has a name that leads out of the archive"
    return ""


def _header(block: bytes, at: int) -> tuple[bytes, str, int]:
    """What a header says: the kind of the member, its name and how many bytes follow."""
    total = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    try:
        noted = _number(block[148:156], at)
    except CorruptError:
        noted = -1
    # Some old programs summed signed bytes.
    if noted != total and noted != total - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        where = "it is not a tar archive" if at == 0 else f"it is damaged at byte {at}"
        raise CorruptError(f"{where}: a header there does not fit its checksum")
    name = _text(block[:100])
    if block[257:263] == b"ustar\0":
        prefix = _text(block[345:500])
        name = f"{prefix}/{name}" if prefix else name
    return block[156:157], name, _number(block[124:136], at)


def _number(field: bytes, at: int) -> int:
    if field[0] == 0x80:  # of GNU, for large numbers
        found = int.from_bytes(field[1:], "big")
    else:
        digits = field.split(b"\0", 1)[0].strip(b" ")
        if not _OCTAL.match(digits):
            raise CorruptError(f"it is damaged at byte {at}: {field!r} is not a number")
        found = int(digits or b"0", 8)
    if found >= 2**62:
        raise CorruptError(f"it is damaged at byte {at}: nothing has {found} bytes")
    return found


def _decimal(digits: bytes, at: int) -> int:
    if not digits.isdigit() or len(digits) > 18:
        raise CorruptError(f"it is damaged at byte {at}: {digits[:20]!r} is not a size")
    return int(digits)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _body(read: Read, at: int, nbytes: int, most: int) -> bytes:
    if nbytes > most:
        raise CorruptError(f"it is damaged at byte {at}: a header of {nbytes} bytes")
    found = read(at, nbytes)
    if len(found) < nbytes:
        raise CorruptError(f"it is cut: it ends at byte {at + len(found)}, within a header")
    return found


def _records(text: bytes, at: int) -> dict[bytes, bytes]:
    """The records of a PAX header, each `length key=value` and a line's end."""
    found: dict[bytes, bytes] = {}
    start = 0
    while start < len(text):
        if text[start] == 0 and not text[start:].strip(b"\0"):
            break  # padding of some writers
        space = text.find(b" ", start, start + 20)
        digits = text[start:space] if space > 0 else b""
        stop = start + int(digits) if digits.isdigit() else 0
        record = text[space + 1 : stop]
        key, equals, value = record.partition(b"=")
        if not space < stop <= len(text) or not equals or not value.endswith(b"\n"):
            raise CorruptError(f"it is damaged at byte {at + start}: not a record of a PAX header")
        found[key] = value[:-1]
        start = stop
    return found


def _refuse_global(records: dict[bytes, bytes], at: int) -> None:
    """Raises CorruptError for names and sizes that all members would share."""
    for key in records:
        if key in (b"path", b"size") or key.startswith(b"GNU.sparse."):
            name = key.decode(errors="replace")
            raise CorruptError(f"it is damaged at byte {at}: a header for all members says {name!r}")


def _check_end(read: Read, at: int, size: int) -> None:
    """Raises CorruptError if anything but zeros follows the end."""
    if size > at + _MOST_PADDING:
        raise CorruptError(f"its end is at byte {at}, but {size - at} bytes follow, perhaps another archive")
    for start in range(at, size, _PIECE):
        found = read(start, _PIECE)
        if found.count(0) != len(found):
            raise CorruptError(f"its end is at byte {at}, but more follows it, perhaps another archive")


# -- samples: members in sequence whose names differ only in their extension


class TarSample(NamedTuple):
    """A sample: its members by their extension; or why it cannot be a row."""

    key: str
    parts: dict[str, Member]
    problem: str = ""


def samples(members: Iterable[Member], is_image: Callable[[Member], bool]) -> Iterator[TarSample]:
    """The samples of an archive, in order.

    A name is divided at the first dot behind its folder: `train/0017.seg.png` is the member `seg.png` of the
    sample `train/0017`. Members without an extension, or named `__like_this__.json`, belong to none.

    Args:
        members: of the archive.
        is_image: of one without an extension, which is given as a sample that cannot be a row if it is one.

    Raises:
        CorruptError: the archive is cut or damaged; the sample that it has begun is not given.
    """
    current: TarSample | None = None
    try:
        for member in members:
            key, extension = _divided(member.name)
            if not extension:
                problem = member.problem
                if not problem and "." not in member.name.rpartition("/")[2] and is_image(member):
                    problem = "begins as an image does, and has no extension, so no sample can hold it"
                if problem:
                    yield TarSample(member.name, {}, problem)
                continue
            if current is None or current.key != key:
                if current is not None:
                    yield current
                current = TarSample(key, {})
            problem = member.problem
            if not problem and (extension in current.parts or extension == KEY):
                problem = "is there twice" if extension != KEY else "has a name that means the key"
            if problem and not current.problem:
                current = current._replace(problem=f"has a member {extension!r:.80} that {problem}")
            current.parts[extension] = member
    except CorruptError as error:
        begun = "" if current is None else f"; its last sample there, {current.key!r:.100}, may lack members"
        raise CorruptError(f"{error}{begun}") from error
    if current is not None:
        yield current


def _divided(name: str) -> tuple[str, str]:
    """The key and the extension of a member; no extension if it belongs to no sample."""
    folder, slash, own = name.rpartition("/")
    stem, _, extension = own.partition(".")
    if not stem or (stem.startswith("__") and stem.endswith("__")):
        return name, ""
    return folder + slash + stem, extension.lower()
