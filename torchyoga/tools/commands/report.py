"""`yoga report`: a page that shows a dataset."""

from __future__ import annotations

import click

from ...process.messages import bytes_text
from .output import Asked
from .places import id_argument, shown, storage_command, version_argument


@storage_command("report", id_argument(), version_argument())
@click.option("--output", "-o", default="report.html", show_default=True, help="The file to write.")
@click.option("--title", help="Of the page; by default id and version.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Of the rows that are drawn.")
def command(id: str, version: str | None, output: str, title: str | None, seed: int, asked: Asked) -> None:
    """Write one page that shows what is in a version: columns, random rows, files, how it was made.

    ID may be a path or URL of files of another library. The page works offline, and runs nothing.

    \b
    Examples:
      yoga report images
      yoga report images 1.1 -o images.html
      yoga report images@prod --json
      yoga report s3://bucket/shards
    """
    from ..report.page import report

    ref, name, named = shown(asked.storage, id, version)
    path = report(ref, output, title=title or (name if "path" in named else None), seed=seed)
    size = path.stat().st_size
    of = {"of": named["path"]} if "path" in named else named
    asked.write({**of, "path": str(path), "bytes": size}, f"{path}: {name}, {bytes_text(size)}")
