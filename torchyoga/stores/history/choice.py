"""A version, by its name, by a tag or as the newest one -> a DataRef over it."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import NotFoundError
from ...reading.version_ref import VersionRef
from ..contract import Versions
from ..refs import Opening, fetched
from .graph import newest
from .tags import gone, named_by

__all__ = ["Choice", "chosen"]

_LOOKS = 4  # at versions that are removed or overwritten meanwhile


@dataclass(frozen=True)
class Choice:
    """Which version of an id: exactly one of `version`, `tag` (at a moment, `at`) and `latest`.

    Raises:
        TypeError: not exactly one of them is given.
    """

    id: str
    version: str | None = None
    tag: str | None = None
    at: object = None
    latest: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.latest, bool):
            raise TypeError(f"latest must be True or False, found {self.latest!r:.80}")
        given = {"version": self.version is not None, "tag": self.tag is not None, "latest": self.latest}
        if sum(given.values()) != 1:
            names = [f"{name}=" for name, is_given in given.items() if is_given]
            raise TypeError(
                f"fetch takes exactly one of version=, tag= and latest=True, found "
                f"{' and '.join(names) if names else 'none of them'}"
            )
        if self.at is not None and self.tag is None:
            raise TypeError("at= asks what a tag named then; pass tag=, too")


def chosen(store: Versions, choice: Choice, how: Opening) -> VersionRef:
    """The version that was chosen, as `Storage.fetch` describes it."""
    if choice.tag is not None:
        return _tagged(store, choice, how)
    if not choice.latest:
        assert choice.version is not None, "exactly one of them is given"
        return fetched(store, choice.id, choice.version, how)
    for left in reversed(range(_LOOKS)):
        node = newest(store, choice.id)
        try:
            ref = fetched(store, choice.id, node.version, how)
        except NotFoundError:
            if not left:
                raise
            continue
        if ref.manifest.fingerprint == node.fingerprint or not left:
            return ref
    raise AssertionError("the last look returns or raises")


def _tagged(store: Versions, choice: Choice, how: Opening) -> VersionRef:
    assert choice.tag is not None, "exactly one of them is given"
    entry = named_by(store, choice.id, choice.tag, choice.at)
    version = str(entry.version)
    # Before any file is downloaded.
    manifest = store.find(choice.id, version)
    if manifest is None:
        raise gone(entry, "removed")
    if manifest.fingerprint != entry.fingerprint:
        raise gone(entry, "overwritten by other rows")
    try:
        ref = fetched(store, choice.id, version, how)
    except NotFoundError:
        raise gone(entry, "removed") from None
    if ref.manifest.fingerprint != entry.fingerprint:
        raise gone(entry, "overwritten by other rows")
    return ref
