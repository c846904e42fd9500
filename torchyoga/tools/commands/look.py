"""`yoga ls`, `info`, `head`, `log`, `diff`, `report`, `view`: what there is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ...process.messages import bytes_text, count_of, short
from ...versions.names import natural
from ..cells.flat import flat, flat_names
from . import places
from .output import MOST_LINES, Asked, Table, picked, value_text

if TYPE_CHECKING:
    from ...reading.dataref import DataRef
    from ...rows.types import Ints
    from ...storage import Storage
    from ...versions.lineage import Lineage
    from ...versions.manifest import Manifest

_MOST_COLUMNS = 12  # that `head` shows
_COUNT = click.IntRange(1, 10_000)
_COUNT.name = "number of rows; a version is named by ID@VERSION, or by --version"  # the end of an error


@places.storage_command("ls")
@click.argument("place", required=False)
@click.option("--long", "-l", is_flag=True, help="Read each manifest: rows, bytes, tags, damage.")
def ls(place: str | None, long: bool, asked: Asked) -> None:
    """List datasets and their versions.

    PLACE is a directory or URL; by default that of --storage.

    \b
    Examples:
      yoga ls
      yoga ls --long storage
    """
    from ...stores.history import log_of

    store = places.versions_in(place or asked.storage)
    versions: dict[str, list[str]] = {}
    for id, version in store.published():
        versions.setdefault(id, []).append(version)
    versions = {id: sorted(versions[id], key=natural) for id in sorted(versions, key=natural)}
    empty = f"{store.name} holds no datasets"
    if not long:
        datasets = [{"id": id, "versions": found} for id, found in versions.items()]
        table = Table(("id", "versions"), [(id, " ".join(found)) for id, found in versions.items()])
        asked.write({"storage": store.name, "datasets": datasets}, table if datasets else empty)
        return
    entries = [(id, entry) for id in versions for entry in log_of(store, id)]
    names = "version rows bytes created tags problem"
    plain = [{"id": id, **picked(entry, names), "created": entry.created or None} for id, entry in entries]
    rows = [
        (
            id,
            entry.version,
            "" if entry.rows is None else f"{entry.rows:,}",
            "" if entry.nbytes is None else bytes_text(entry.nbytes),
            " ".join(entry.tags),
            "" if entry.problem is None else f"damaged: {entry.problem}",
        )
        for id, entry in entries
    ]
    titles = ("id", "version", "rows", "bytes", "tags", "problem")
    end = None if any(entry.problem for _, entry in entries) else -1
    shown = Table(titles[:end], [row[:end] for row in rows], right=("rows", "bytes"))
    asked.write({"storage": store.name, "versions": plain}, shown if rows else empty)


@places.storage_command("info", places.id_argument(), places.version_argument())
def info(id: str, version: str | None, asked: Asked) -> None:
    """Show what a version is: rows, columns, files, how it was made.

    ID may name a tag, as in images@prod. Without VERSION it is the newest one. Only its manifest is read.

    \b
    Examples:
      yoga info images
      yoga info images@prod
      yoga info images 1.0 --json
    """
    from ...stores.history import moves_of
    from ...versions.lineage import Lineage

    store = places.versions_in(asked.storage)
    manifest = store.manifest(*places.placed(store, id, version))
    lineage = Lineage.of(manifest.lineage)
    named = (manifest.version, manifest.fingerprint)
    moves = moves_of(store, manifest.id, [])
    tags = [tag for tag, move in moves.items() if (move.version, move.fingerprint) == named]
    columns = () if manifest.schema is None else manifest.schema.shown
    plain = {
        "storage": store.name,
        **picked(manifest, "id version"),
        "tags": tags,
        "rows": manifest.num_rows,
        **picked(manifest, "bytes created fingerprint"),
        "columns": _columns_of(manifest),
        "files": [picked(file, "name format rows bytes of") for file in manifest.each_file],
        "parents": [parent.version for parent in manifest.parents[-1:]],
        "message": lineage.message,
        "lineage": picked(lineage, "function commit dirty packages user host seconds"),
        "info": manifest.info,
    }
    lines = [f"{title:9}{short(text, 160)}" for title, text in _facts_of(manifest, lineage, tags) if text]
    rows = [(short(column.name), column.type, column.shape) for column in columns[:MOST_LINES]]
    left_out = count_of(len(columns) - len(rows), "more column")
    more = [f"and {left_out}; --json prints all"] if len(rows) < len(columns) else []
    text, table = "\n".join(lines), Table(("column", "type", "shape"), rows)
    asked.write(plain, [text, "", table, *more] if rows else text)


def _facts_of(manifest: Manifest, lineage: Lineage, tags: list[str]) -> list[tuple[str, str]]:
    formats = ", ".join(sorted({file.format for file in manifest.each_file}))
    num_files = len(manifest.each_file)
    files = f"{count_of(num_files, f'{formats} file'.strip())}, {bytes_text(manifest.nbytes)}"
    shared = sum(file.of is not None for file in manifest.each_file)
    dirty = " with changes" if lineage.dirty else ""
    return [
        ("id", manifest.id),
        ("version", manifest.version),
        ("tags", ", ".join(tags)),
        ("rows", f"{manifest.num_rows:,}"),
        ("files", files + (f"; {shared:,} shared with other versions" if shared else "")),
        ("created", f"{manifest.created}{f' by {lineage.user}' if lineage.user else ''}"),
        ("message", lineage.message or ""),
        ("from", manifest.parents[-1].version if manifest.parents else ""),
        ("made by", lineage.function or ""),
        ("commit", f"{lineage.commit}{dirty}" if lineage.commit else ""),
        ("info", json.dumps(manifest.info, ensure_ascii=False) if manifest.info else ""),
        ("rows are", manifest.fingerprint),
    ]


def _columns_of(manifest: Manifest) -> list[dict[str, object]]:
    """Each column for programs: as people read it, and how its values are stored."""
    if manifest.schema is None:
        return []
    stored = {column.name: column for column in manifest.schema.columns}
    return [
        {"name": one.name, **picked(stored[one.column], "kind dtype shape"), "type": one.type}
        for one in manifest.schema.shown
    ]


@places.storage_command("head", places.id_argument())
@click.argument("count", default=10, type=_COUNT)
@click.option("--version", "version", help="Which version; by default the newest.")
@places.columns_option
@click.option("--where", help="Only rows that meet a condition, as in 'label = 3 and score > 0.5'.")
@click.option("--start", default=0, type=click.IntRange(0), help="The first row to show, or to look at.")
@click.option("--decoded", is_flag=True, help="Decode images and other encoded values.")
def head(
    id: str,
    count: int,
    version: str | None,
    columns: tuple[str, ...],
    where: str | None,
    start: int,
    decoded: bool,
    asked: Asked,
) -> None:
    """Show the first COUNT rows of a version, by default 10.

    ID may name a tag or a version, as in images@prod or images@1.0; or it is a path or URL of files of
    another library. A condition is a filter as in yoga view.

    \b
    Examples:
      yoga head images
      yoga head images 5 --columns label,text
      yoga head images 5 --where "label = 2"
      yoga head images@1.0 2 --start 3 --json
      yoga head s3://bucket/shards
      yoga head mds://folder 3
    """
    ref, title, named = places.shown(asked.storage, id, version)
    total = len(ref)
    names = places.column_names(columns, ref.schema)
    known = [] if ref.schema is None else list(flat_names(ref.schema.tree))
    if names is None and not asked.as_json and len(known) > _MOST_COLUMNS:
        names = known[:_MOST_COLUMNS]  # nothing is read of the others
    left_out = len(known) - len(names or known) if not columns else 0
    chosen = ref if names is None else ref.columns(names)
    chosen = chosen.decoded() if decoded else chosen
    numbers: Sequence[int] = range(start, min(start + count, total))
    looked = None if where is None else start
    if where is not None and total:
        from ..view.filter import Filter

        found, looked = Filter.of(where, ref.schema, ref.info).first(ref, start, count)
        numbers = found.tolist()
    taken = chosen[list(numbers)] if len(numbers) else []
    rows = [(number, dict(flat(row))) for number, row in zip(numbers, taken, strict=True)]
    plain = {
        **named,
        "total": total,
        **({} if looked is None else {"where": where, "looked_until": looked}),
        "rows": [{"row": number, "values": row} for number, row in rows],
    }
    if looked is not None and start < total:
        part = "" if not start and looked == total else f" in rows {start:,} to {looked - 1:,}"
        what = f"{count_of(len(rows), 'row')} found{part} of {total:,}"
    elif rows:
        span = f"row {start:,}" if len(rows) == 1 else f"rows {start:,} to {numbers[-1]:,}"
        what = f"{span} of {total:,}"
    else:
        what = f"{title} has {count_of(total, 'row')}"
    more = [f"and {count_of(left_out, 'more column')}; --columns names some"] if rows and left_out else []
    asked.write(plain, [*([_rows_table(rows)] if rows else []), *more, what])


def _rows_table(rows: Sequence[tuple[int, Mapping[str, object]]]) -> Table:
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    lines = [
        (f"{number:,}", *(value_text(row[name]) if name in row else "" for name in names))
        for number, row in rows
    ]
    return Table(("row", *map(short, names)), lines, ("row",))


@places.storage_command("log", places.id_argument())
@click.option("--limit", "-n", type=click.IntRange(1), help="Only so many of the newest ones.")
def log(id: str, limit: int | None, asked: Asked) -> None:
    """Show the versions of a dataset, the newest first.

    \b
    Examples:
      yoga log images
      yoga log images -n 1 --json
    """
    from ...stores.history import RIGHT, log_of

    store = places.versions_in(asked.storage)
    places.known_versions(store, id)
    found = log_of(store, id, limit)
    titles, rows = found.table()
    names = "version parents rows added bytes created fingerprint tags who code message problem"
    plain = [
        picked(entry, names) | {"parents": entry.parents[-1:], "created": entry.created or None}
        for entry in found
    ]
    more = [f"and {count_of(found.left_out, 'older version')}"] if found.left_out else []
    table = Table(titles, rows, RIGHT)
    asked.write({"id": found.id, "versions": plain, "left_out": found.left_out}, [table, *more])


@places.storage_command(
    "diff", places.id_argument(), places.version_argument("old"), places.version_argument("new")
)
@click.option("--key", "-k", help="Columns that say which rows belong together, as in id or camera,time.")
@click.option("--most", default=10, show_default=True, type=click.IntRange(0, 10**6), help="Numbers to list.")
@click.pass_context
def diff(
    ctx: click.Context, id: str, old: str | None, new: str | None, key: str | None, most: int, asked: Asked
) -> None:
    """Show which rows and columns differ between two versions.

    Without NEW it is the newest version; @prod is the version of a tag. OLD may stand behind the id, as in
    images@1.0. Without --key, rows are compared as wholes. The exit code is 1 if the versions differ.

    \b
    Examples:
      yoga diff images 1.0 1.1 --key id
      yoga diff images@1.0 images@1.1
      yoga diff images @prod --json
    """
    from ... import diff as compared

    store = places.versions_in(asked.storage)
    if "@" in id and not store.versions(id):  # the old version is named there
        if new is not None:
            raise click.UsageError(f"{id} names a version already, so only one more can be compared with it")
        first, new = places.placed(store, id), old
    elif old is None:
        raise click.UsageError(f"name the version to compare with, as in {id} 1.0, or {id}@1.0")
    else:
        first = places.placed(store, id, old)
    place = places.opened(asked.storage)
    before = places.fetched(place, *first)
    is_whole = new is not None and "@" in new[1:] and new not in store.versions(first.id)
    after = places.fetched(place, str(new)) if is_whole else places.fetched(place, first.id, new)
    found = compared(before, after, None if key is None else key.split(","))
    kinds = {name: getattr(found, name) for name in ("added", "removed", "changed")}
    lines = [str(found).replace("pass key=", "pass --key")]
    listed = {name: _listed(rows[:most]) for name, rows in kinds.items() if len(rows[:most])}
    lines += [f"{name}: {text}{', ...' if len(kinds[name]) > most else ''}" for name, text in listed.items()]
    plain = {
        "id": before.manifest.id,
        "old": before.manifest.version,
        "new": after.manifest.version,
        "same": found.same,
        "rows": {"old": found.lengths[0], "new": found.lengths[1]},
        "rows_compared": found.are_rows_compared,
        "unchanged": found.unchanged,
        **{name: {"count": len(rows), "rows": rows[:most].tolist()} for name, rows in kinds.items()},
        "columns": picked(found.schema, "added removed changed"),
    }
    asked.write(plain, lines)
    ctx.exit(0 if found.same else 1)


def _listed(rows: Ints) -> str:
    """The numbers of rows; of those that changed, (N, 2), the old one and the new one."""
    pairs = rows.reshape(len(rows), -1)[:, [0, -1]].tolist()
    return "rows " + ", ".join(f"{old} -> {new}" if old != new else f"{old}" for old, new in pairs)


@places.storage_command("report", places.id_argument(), places.version_argument())
@click.option("--output", "-o", default="report.html", show_default=True, help="The file to write.")
@click.option("--title", help="Of the page; by default id and version.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Of the rows that are drawn.")
def report(id: str, version: str | None, output: str, title: str | None, seed: int, asked: Asked) -> None:
    """Write one page that shows what is in a version: columns and random rows.

    ID may be a path or URL of files of another library. The page works offline, and runs nothing.

    \b
    Examples:
      yoga report images
      yoga report images 1.1 -o images.html
      yoga report images@prod --json
      yoga report s3://bucket/shards
    """
    from ... import report as written

    ref, name, named = places.shown(asked.storage, id, version)
    path = written(ref, output, title=title or (name if "path" in named else None), seed=seed)
    size = path.stat().st_size
    of = {"of": named["path"]} if "path" in named else named
    asked.write({**of, "path": str(path), "bytes": size}, f"{path}: {name}, {bytes_text(size)}")


@places.storage_command("view", places.id_argument(required=False), places.version_argument())
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="To listen on; by default any.")
def view(id: str | None, version: str | None, port: int, asked: Asked) -> None:
    """Page through rows in a browser: filter and sort them, open images, sound and texts.

    Without ID it begins with a list of the datasets; ID may be a path or URL of files of another library.
    Prints an address, which only works on this machine and holds a token; Ctrl-C ends it, with exit code 130.

    \b
    Examples:
      yoga view
      yoga view images
      yoga view images@prod --json
      yoga view images 1.1 --port 8000 --storage storage
      yoga view s3://bucket/shards
    """
    from ... import view as begun

    what: Storage | DataRef
    what = places.opened(asked.storage) if id is None else places.shown(asked.storage, id, version).ref
    with begun(what, port=port) as server:
        asked.write({"url": server.url}, f"{server.url}\nCtrl-C ends it")
        server.wait()
