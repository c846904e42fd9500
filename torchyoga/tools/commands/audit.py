"""`yoga audit`: whether rows are still made as they were."""

from __future__ import annotations

import click

from .append import imported
from .output import Asked
from .places import id_argument, opened, placed, storage_command, version_argument

__all__ = ["command"]


@storage_command("audit", id_argument(), version_argument(required=True))
@click.argument("source", metavar="MODULE:FUNCTION")
@click.option("--rows", default=300, show_default=True, type=click.IntRange(0), help="How many are drawn.")
@click.option("--tolerance", type=click.FloatRange(0), help="By how much floats may differ; by default not.")
@click.option("--seed", type=int, help="Draw the same rows each time.")
def command(
    id: str, version: str, source: str, rows: int, tolerance: float | None, seed: int | None, asked: Asked
) -> None:
    """Make random rows of a version again, and compare them with the stored ones.

    MODULE:FUNCTION of your own is imported from the current folder and run; it returns what the version was
    made of. The exit code is 1 if a row differs.

    \b
    Examples:
      yoga audit images 1.0 mydata:images --rows 300
    """
    from ...errors import AuditError

    place = opened(asked.storage)
    found = placed(place, id, version)
    plain: dict[str, object] = {"id": found.id, "version": found.version}
    try:
        audit = place.audit(*found, imported(source), rows, tolerance, seed)
    except AuditError as error:
        if not asked.as_json:
            raise
        asked.write(
            {**plain, "ok": False, "compared": None, "total": None, "share": None, "problem": str(error)},
            "",
        )
        raise click.exceptions.Exit(1) from None
    plain |= {"ok": True, "compared": audit.rows, "total": audit.total, "share": audit.share, "problem": None}
    asked.write(plain, str(audit))
