"""Names on the command line -> a storage, an id and a version of it, and how they are completed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from ...errors import NotFoundError
from ...versions.lineage import escaped

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ...reading.dataref import DataRef
    from ...reading.version_ref import VersionRef
    from ...storage import Storage

__all__ = [
    "Place",
    "fetched",
    "id_argument",
    "opened",
    "placed",
    "storage_option",
    "version_argument",
]

F = TypeVar("F", bound=Callable[..., object])
_VARIABLE, _DEFAULT = "TORCHYOGA_STORAGE", "storage"
_SIGN = "@"  # before a tag

storage_option = click.option(
    "--storage",
    "-s",
    envvar=_VARIABLE,
    default=_DEFAULT,
    show_default=True,
    show_envvar=True,
    help="The directory or URL that holds the datasets.",
)


class Place(NamedTuple):
    """A version that is published, or a tag that names one."""

    id: str
    version: str


def opened(url: str, create: bool = False, **options: object) -> Storage:
    """The storage of a directory or URL.

    Args:
        url: a directory or URL.
        create: a directory that is not there is made when it is written to.
        options: of `Storage`.

    Raises:
        NotFoundError: there is no such directory.
        ValueError, ImportError: as `Storage`.
    """
    from ...stores.objects import is_url

    if not create and not is_url(url) and not Path(url).expanduser().is_dir():
        what = "a file" if Path(url).expanduser().exists() else "not there"
        raise NotFoundError(
            f"the storage {url!r} is {what}; name its directory or URL with --storage, or in {_VARIABLE}"
        )
    from ...storage import Storage

    return Storage(url, **options)  # type: ignore[arg-type]


def placed(storage: Storage, id: str, version: str | None) -> Place:
    """The id and version that names mean: `id version`, `id@tag`, `id @tag`, or the newest version of an id.

    Where there is no such tag, `id@version` is that version.

    Raises:
        NotFoundError: there is no such id, version or tag; names what there is.
    """
    tag = None
    if version is None and _SIGN in id and not storage.versions(id):
        id, _, tag = id.rpartition(_SIGN)
    elif version is not None and version.startswith(_SIGN) and version not in storage.versions(id):
        version, tag = None, version[1:]
    if tag is not None and tag not in storage.tags(id) and tag in storage.versions(id):
        return Place(id, tag)
    if version is not None:
        return Place(id, version)
    ref = storage.fetch(id, latest=True) if tag is None else storage.fetch(id, tag=tag)
    return Place(id, _version_of(ref).manifest.version)


def fetched(storage: Storage, id: str, version: str | None) -> VersionRef:
    """The version that names mean, as `placed` describes it; only its manifest is read."""
    place = placed(storage, id, version)
    return _version_of(storage.fetch(place.id, place.version))


def _version_of(ref: DataRef) -> VersionRef:
    from ...reading.version_ref import VersionRef

    assert isinstance(ref, VersionRef), "a storage gives its versions"
    return ref


def id_argument(name: str = "id", required: bool = True) -> Callable[[F], F]:
    """An argument that is an id, or `id@tag`."""
    return click.argument(name, required=required, shell_complete=_ids)


def version_argument(name: str = "version", required: bool = False) -> Callable[[F], F]:
    """An argument that is a version of the id before it, or `@tag`; by default None, for the newest."""
    return click.argument(name, required=required, shell_complete=_versions)


def _ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    def found(storage: Storage) -> Sequence[str]:
        id, sign, _ = incomplete.rpartition(_SIGN)
        if sign and storage.versions(id):
            return [f"{id}{_SIGN}{tag}" for tag in storage.tags(id)]
        return sorted({id for id, _ in storage.list()})

    return _completed(ctx, incomplete, found)


def _versions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    def found(storage: Storage) -> Sequence[str]:
        id = ctx.params.get("id")
        if not isinstance(id, str):
            return []
        tags = [f"{_SIGN}{tag}" for tag in storage.tags(id)] if incomplete.startswith(_SIGN) else []
        return [*storage.versions(id), *tags]

    return _completed(ctx, incomplete, found)


def _completed(
    ctx: click.Context, incomplete: str, found: Callable[[Storage], Sequence[str]]
) -> list[CompletionItem]:
    """Names that begin so; those that a shell would not show as they are, are left out."""
    from click.shell_completion import CompletionItem

    with suppress(Exception):  # there is nothing to complete
        url = ctx.params.get("storage") or os.environ.get(_VARIABLE) or _DEFAULT
        names = found(opened(str(url)))
        return [
            CompletionItem(name) for name in names if name.startswith(incomplete) and escaped(name) == name
        ]
    return []
