"""`yoga info`: what a version is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ...process.messages import bytes_text, count_of, short
from .output import MOST_LINES, Asked, Table, picked
from .places import id_argument, placed, storage_command, version_argument, versions_in

if TYPE_CHECKING:
    from ...versions.lineage import Lineage
    from ...versions.manifest import Manifest


@storage_command("info", id_argument(), version_argument())
def command(id: str, version: str | None, asked: Asked) -> None:
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

    store = versions_in(asked.storage)
    manifest = store.manifest(*placed(store, id, version))
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
        "bytes": manifest.nbytes,
        **picked(manifest, "created fingerprint"),
        "columns": _plain(manifest),
        "files": [
            {"name": file.name, "format": file.format, "rows": file.rows, "bytes": file.nbytes, "of": file.of}
            for file in manifest.each_file
        ],
        "parents": [parent.version for parent in manifest.parents[-1:]],
        "message": lineage.message,
        "lineage": picked(lineage, "function commit dirty packages user host seconds"),
        "info": manifest.info,
    }
    lines = [f"{title:9}{short(text, 160)}" for title, text in _facts(manifest, lineage, tags) if text]
    rows = [(short(column.name), column.type, column.shape) for column in columns[:MOST_LINES]]
    left_out = count_of(len(columns) - len(rows), "more column")
    more = [f"and {left_out}; --json prints all"] if len(rows) < len(columns) else []
    table = Table(("column", "type", "shape"), rows)
    shown: list[str | Table] = ["\n".join(lines)]
    asked.write(plain, [*shown, "", table, *more] if rows else shown)


def _facts(manifest: Manifest, lineage: Lineage, tags: list[str]) -> list[tuple[str, str]]:
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


def _plain(manifest: Manifest) -> list[dict[str, object]]:
    """Each column for programs: as people read it, and how its values are stored."""
    if manifest.schema is None:
        return []
    stored = {column.name: column for column in manifest.schema.columns}
    return [
        {"name": one.name, **picked(stored[one.column], "kind dtype shape"), "type": one.type}
        for one in manifest.schema.shown
    ]
