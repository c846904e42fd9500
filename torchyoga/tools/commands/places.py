"""Names on the command line -> a storage, an id and a version of it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from ...errors import NotFoundError
from ...versions.names import natural
from .output import Asked

if TYPE_CHECKING:
    from ...reading.dataref import DataRef
    from ...reading.version_ref import VersionRef
    from ...rows.schema import Schema
    from ...storage import Storage
    from ...stores.contract import Store

F = TypeVar("F", bound=Callable[..., object])
_VARIABLE, DEFAULT = "TORCHYOGA_STORAGE", "storage"
_SIGN = "@"  # before a tag
_MOST_NAMED = 8  # in a message


def storage_options(default: str | None = None) -> Callable[[F], F]:
    """The options `--storage` and `--json`, which may stand before a command or behind it.

    Args:
        default: of `--storage` before a command; behind it the default is what stands before.
    """

    def added(command: F) -> F:
        json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
        return click.option(
            "--storage",
            "-s",
            envvar=default and _VARIABLE,
            default=default,
            help=f"The directory or URL that holds the datasets.  [env var: {_VARIABLE}; default: {DEFAULT}]",
        )(json_option(command))

    return added


def storage_command(
    name: str, *arguments: Callable[[click.Command], click.Command]
) -> Callable[[Callable[..., object]], click.Command]:
    """Makes a function a command that looks into a storage.

    Args:
        name: of the command.
        arguments: come first; the function's own parameters follow, then `--storage` and `--json`, which it
            gets as `asked`.
    """

    def made(function: Callable[..., object]) -> click.Command:
        @wraps(function)
        def called(storage: str | None, as_json: bool, **given: object) -> object:
            before = click.get_current_context().find_root().params
            return function(**given, asked=Asked(storage or before["storage"], as_json or before["as_json"]))

        command = click.command(name)(called)
        own, command.params = command.params, []
        for add in arguments:
            add(command)
        command.params += own
        return storage_options()(command)

    return made


class VersionName(NamedTuple):
    """A version that is published, or a tag that names one."""

    id: str
    version: str


def versions_in(url: str, create: bool = False) -> Store:
    """The versions of a directory or URL, for commands that read only manifests: torch is not loaded.

    Raises:
        NotFoundError: there is no such directory, and it is not to be made.
        ValueError, ImportError: as `Storage`.
    """
    from ...stores.address import is_url
    from ...stores.opened import opened as store_opened

    path = Path(url).expanduser()
    if not create and not is_url(url) and not path.is_dir():
        what = "is a file" if path.exists() else "is not there"
        raise NotFoundError(
            f"the storage {url!r} {what}; name its directory or URL with --storage, or in {_VARIABLE}"
        )
    return store_opened(url)


def opened(url: str, create: bool = False) -> Storage:
    """The storage of a directory or URL.

    Args:
        url: a directory or URL.
        create: a directory that is not there is made when it is written to.

    Raises:
        NotFoundError: there is no such directory.
        ValueError, ImportError: as `Storage`.
    """
    versions_in(url, create)
    from ...storage import Storage

    return Storage(url)


def placed(storage: Storage | Store, id: str, version: str | None = None) -> VersionName:
    """The id and version that names mean: `id version`, `id@tag`, `id @tag`, or the newest version of an id.

    Where there is no such tag, `id@version` is that version. The id may stand before a version twice.

    Raises:
        NotFoundError: there is no such id, version or tag; names what there is.
    """
    from ...stores.contract import Store
    from ...stores.history import newest, tagged_manifest, tags_of

    store = storage if isinstance(storage, Store) else versions_in(storage.url, create=True)
    known, tag = store.versions(id), None
    if version is None and _SIGN in id and not known:
        id, _, tag = id.rpartition(_SIGN)
        known = known_versions(store, id)
    elif version is not None and version.startswith((_SIGN, f"{id}{_SIGN}")) and version not in known:
        tag = version.removeprefix(id if known else "").removeprefix(_SIGN)
    if not known:
        known_versions(store, id)
    if tag is not None:
        tags = list(tags_of(store, id))
        if tag in tags:
            return VersionName(id, tagged_manifest(store, id, tag).version)
        if tag in known:
            return VersionName(id, tag)
        raise NotFoundError(
            f"{id!r} has neither a version nor a tag {tag!r} in {store.name}: its versions are "
            f"{_near(tag, known)}; {f'its tags are {_near(tag, tags)}' if tags else 'it has no tags'}"
        )
    if version is None:
        return VersionName(id, newest(store, id).version)
    if version not in known:
        raise NotFoundError(
            f"{id!r} has no version {version!r} in {store.name}: its versions are {_near(version, known)}"
        )
    return VersionName(id, version)


def known_versions(store: Store, id: str) -> list[str]:
    """The published versions of an id.

    Raises:
        NotFoundError: it has none; names the ids most like it.
    """
    if found := store.versions(id):
        return found
    ids = sorted({one for one, _ in store.published()})
    what = f"the storage holds {_near(id, ids)}" if ids else "the storage holds no datasets"
    if os.path.isdir(id):
        what += f"; to look into the directory {id!r}, name it with --storage"
    elif "/" in id and not _is_path(id):
        what += f"; and there is no file or folder {id!r}"
    raise NotFoundError(f"there is no dataset {id!r} in {store.name}: {what}")


def _near(name: str, names: Sequence[str]) -> str:
    """Names, the most similar first."""
    close = difflib.get_close_matches(name, names, _MOST_NAMED, 0.5)
    shown = [*close, *(one for one in names if one not in close)][:_MOST_NAMED]
    more = len(names) - len(shown)
    return ", ".join(map(repr, shown)) + (f" and {more:,} more" if more else "")


def column_names(given: Sequence[str], schema: Schema | None) -> list[str] | None:
    """The names of columns that `--columns` lists, each once; None if it was not given.

    A name with a comma in it is taken as it is, if there is such a column.
    """
    known = set() if schema is None else {name for one in schema.shown for name in (one.name, one.column)}
    names = [name for text in given for name in ([text] if text in known else text.split(","))]
    return list(dict.fromkeys(names)) or None


def fetched(storage: Storage, id: str, version: str | None = None) -> VersionRef:
    """The version that names mean, as `placed` describes it; only its manifest is read."""
    from ...reading.version_ref import VersionRef

    ref = storage.fetch(*placed(storage, id, version))
    assert isinstance(ref, VersionRef), "a storage gives its versions"
    return ref


class Shown(NamedTuple):
    """A version of a storage, or a dataset of another library under a path or URL.

    Attributes:
        ref: its rows.
        title: its id and version, or the path or URL.
        plain: the same for JSON: `id` and `version`, or `path`.
    """

    ref: DataRef
    title: str
    plain: dict[str, str]


def shown(url: str, name: str, version: str | None = None) -> Shown:
    """The rows under a name: of a version in a storage, or of another library, where they lie.

    Args:
        url: of the storage, which need not be there for a path or URL.
        name: an id, which may have a tag; a path or URL, where the storage has no such id.
        version: of the id.

    Raises:
        NotFoundError: there is no such storage, id or version, or nothing under a path.
        ValueError: the format of what lies there is not recognised.
    """
    if is_place(url, name):
        from ..other_formats import read_at

        if version is not None:
            raise click.UsageError(f"{name} is a path or URL, which has no version {version!r}; leave it out")
        return Shown(read_at(name), name, {"path": name})
    ref = fetched(opened(url), name, version)
    id, of = ref.manifest.id, ref.manifest.version
    return Shown(ref, f"{id} {of}", {"id": id, "version": of})


def is_place(url: str, name: str) -> bool:
    """True for the name of a path or URL, False for an id of a storage: ids that there are come first.

    Raises:
        click.UsageError: it is a path with a version.
    """
    from ...stores.address import is_url

    if "://" in name:
        return True
    id, sign, tag = name.rpartition(_SIGN)
    is_tagged = bool(sign and id) and not _is_path(name) and _is_path(id)
    if not (name.startswith(("/", "./", "../", "~")) or _is_path(name) or is_tagged):
        return "/" in name and not (is_url(url) or os.path.isdir(os.path.expanduser(url)))
    with suppress(NotFoundError):  # a storage that is not there has no ids
        store = versions_in(url)
        if store.versions(name) or (sign and id and store.versions(id)):
            return False
    if is_tagged:
        raise click.UsageError(f"{id} is a path, which has no version {tag!r}; leave it out")
    return True


def _is_path(text: str) -> bool:
    """True if there is something under a path: a file, a folder, what a wildcard finds, Megatron's files."""
    path = os.path.expanduser(text)
    return os.path.exists(path) or os.path.exists(f"{path}.idx") or (has_magic(path) and bool(glob(path)))


columns_option = click.option(
    "--columns", "-c", multiple=True, help="Only these columns, as in -c image,label or -c image -c label."
)
message_option = click.option("--message", "-m", help="What you want to say about it; log shows it.")


def id_argument(required: bool = True) -> Callable[[F], F]:
    """An argument that is an id, or `id@tag`."""
    return click.argument("id", required=required, shell_complete=_ids)


def version_argument(name: str = "version", required: bool = False) -> Callable[[F], F]:
    """An argument that is a version of the id before it, or `@tag`; by default None, for the newest."""
    return click.argument(name, required=required, shell_complete=_versions)


def _ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return _offered(ctx, incomplete, lambda store: [id for id, _ in store.published()])


def _versions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return _offered(ctx, incomplete, lambda store: store.versions(str(ctx.params.get("id"))))


def _offered(ctx: click.Context, incomplete: str, names: Callable[[Store], Sequence[str]]) -> list[str]:
    """Names that a shell completes, but those that it would not show as they are."""
    with suppress(Exception):  # there is nothing to complete
        before = ctx.find_root().params.get("storage") or os.environ.get(_VARIABLE) or DEFAULT
        store = versions_in(str(ctx.params.get("storage") or before))
        found = sorted(dict.fromkeys(names(store)), key=natural)
        return [name for name in found if name.startswith(incomplete) and name.isprintable()]
    return []
