"""`yoga diff`: which rows and columns differ between two versions."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .output import Asked, picked
from .places import fetched, id_argument, opened, placed, storage_command, version_argument, versions_in


@storage_command("diff", id_argument(), version_argument("old"), version_argument("new"))
@click.option("--key", "-k", help="Columns that say which rows belong together, as in id or camera,time.")
@click.option("--most", default=10, show_default=True, type=click.IntRange(0, 10**6), help="Numbers to list.")
@click.pass_context
def command(
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
    from ...caching.diff import diff

    store = versions_in(asked.storage)
    if "@" in id and not store.versions(id):  # the old version is named there
        if new is not None:
            raise click.UsageError(f"{id} names a version already, so only one more can be compared with it")
        first, new = placed(store, id), old
    elif old is None:
        raise click.UsageError(f"name the version to compare with, as in {id} 1.0, or {id}@1.0")
    else:
        first = placed(store, id, old)
    place = opened(asked.storage)
    before = fetched(place, *first)
    is_whole = new is not None and "@" in new[1:] and new not in store.versions(first.id)
    after = fetched(place, str(new)) if is_whole else fetched(place, first.id, new)
    found = diff(before, after, None if key is None else key.split(","))
    kinds: list[tuple[str, Sequence[object], int]] = [
        ("added", found.added[:most].tolist(), len(found.added)),
        ("removed", found.removed[:most].tolist(), len(found.removed)),
        ("changed", found.changed[:most].tolist(), len(found.changed)),
    ]
    lines = [str(found)]
    for name, numbers, count in kinds:
        if numbers:
            lines.append(f"{name}: {_listed(name, numbers)}{', ...' if count > len(numbers) else ''}")
    plain = {
        "id": before.manifest.id,
        "old": before.manifest.version,
        "new": after.manifest.version,
        "same": found.same,
        "rows": {"old": found.lengths[0], "new": found.lengths[1]},
        "rows_compared": found.are_rows_compared,
        "unchanged": found.unchanged,
        **{name: {"count": count, "rows": numbers} for name, numbers, count in kinds},
        "columns": picked(found.schema, "added removed changed"),
    }
    asked.write(plain, lines)
    ctx.exit(0 if found.same else 1)


def _listed(name: str, numbers: Sequence[object]) -> str:
    if name != "changed":
        return "rows " + ", ".join(map(str, numbers))
    pairs = [pair for pair in numbers if isinstance(pair, list)]
    return "rows " + ", ".join(f"{old} -> {new}" if old != new else f"{old}" for old, new in pairs)
