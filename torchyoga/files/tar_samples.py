"""Members of a tar archive -> samples: those in sequence whose names differ only in their extension."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from ..errors import CorruptError
from .tar_members import Member

T = TypeVar("T")
KEY = "__key__"
# What is wrong with samples whose key came before in their shard.
APART = (
    "have a key that came before in their shard, so each is a row with some of the members only; write the "
    "members of a sample one after the other, as by tar --sort=name"
)


class TarSample(NamedTuple, Generic[T]):
    """A sample: what its members hold by their extension; or why it cannot be a row."""

    key: str
    parts: dict[str, T]
    problem: str = ""


def samples(members: Iterable[tuple[Member, T]], is_image: Callable[[T], bool]) -> Iterator[TarSample[T]]:
    """The samples of an archive, in order.

    A name is divided at the first dot behind its folder: `train/0017.seg.png` is the member `seg.png` of the
    sample `train/0017`. Members without an extension, or named `__like_this__.json`, belong to none.

    Args:
        members: of the archive, with what is to be had of each.
        is_image: of one without an extension, which is given as a sample that cannot be a row if it is one.

    Raises:
        CorruptError: the archive is cut or damaged; the sample that it has begun is not given.
    """
    current: TarSample[T] | None = None
    try:
        for member, value in members:
            key, extension = divided(member.name)
            if not extension:
                problem = member.problem
                if not problem and "." not in member.name.rpartition("/")[2] and is_image(value):
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
            current.parts[extension] = value
    except CorruptError as error:
        begun = "" if current is None else f"; its last sample there, {current.key!r:.100}, may lack members"
        raise CorruptError(f"{error}{begun}") from error
    if current is not None:
        yield current


def divided(name: str) -> tuple[str, str]:
    """The key and the extension of a member; no extension if it belongs to no sample."""
    folder, slash, own = name.rpartition("/")
    stem, _, extension = own.partition(".")
    if not stem or (stem.startswith("__") and stem.endswith("__")):
        return name, ""
    return folder + slash + stem, extension.lower()
