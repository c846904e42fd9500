"""`yoga check` and `yoga doctor`: what is damaged, slow or wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...errors import CorruptError
from ...process.messages import short
from . import places
from .output import Asked, Table, jsonable

if TYPE_CHECKING:
    from ...stores.contract import Store


@places.storage_command("check", places.id_argument(required=False), places.version_argument())
@click.option("--all", "every", is_flag=True, help="All versions of ID; without ID everything is checked.")
@click.option("--manifests", is_flag=True, help="Only read the manifests, not the rows.")
@click.pass_context
def check(
    ctx: click.Context, id: str | None, version: str | None, every: bool, manifests: bool, asked: Asked
) -> None:
    """Read versions, compare every byte with the checksums, and say what is damaged.

    Without VERSION it is the newest one, without ID all that the storage holds. The exit code is 1 if
    something is damaged.

    \b
    Examples:
      yoga check images 1.1
      yoga check images --all
      yoga check --manifests --json
    """
    store = places.versions_in(asked.storage)
    versions = _places(store, id, version, every)
    look: Callable[[str, str], object] = store.manifest if manifests else places.opened(asked.storage).check
    found = [(*place, _problem_of(place, look)) for place in versions]
    rows = [(short(id), short(name), "ok" if problem is None else "damaged") for id, name, problem in found]
    problems = [f"{id} {name}: {problem}" for id, name, problem in found if problem is not None]
    plain = [
        {"id": id, "version": name, "ok": problem is None, "problem": problem} for id, name, problem in found
    ]
    table = Table(("id", "version", "state"), rows)
    shown: list[str | Table] = [table, *(["", *problems] if problems else [])]
    empty = f"{store.name} holds no datasets"
    asked.write({"storage": store.name, "read": not manifests, "checked": plain}, shown if rows else empty)
    ctx.exit(1 if problems else 0)


def _places(store: Store, id: str | None, version: str | None, every: bool) -> list[places.VersionName]:
    if id is None:
        return [places.VersionName(*one) for one in store.published()]
    if not every:
        return [places.placed(store, id, version)]
    if version is not None:
        raise click.UsageError("--all is of all versions; leave it or the version out")
    return [places.VersionName(id, one) for one in places.known_versions(store, id)]


def _problem_of(place: places.VersionName, look: Callable[[str, str], object]) -> str | None:
    try:
        look(*place)
    except CorruptError as error:
        return str(error)
    return None


@places.storage_command("doctor")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--seconds",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="For the examination.",
)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, writable=True), help="Write the JSON there, too."
)
@click.pass_context
def doctor(
    ctx: click.Context, program: tuple[str, ...], seconds: float, output: str | None, asked: Asked
) -> None:
    """Find what slows down or spoils training, and say what to change.

    PROGRAM runs as usual, with its input, signals and exit code, and the loaders that it iterates are
    examined when it ends; it must import torchyoga. What is found comes after what PROGRAM prints; --output
    writes it to a file as well.

    \b
    Examples:
      yoga doctor -- python train.py --epochs 1
      yoga doctor --output found.json -- python train.py
    """
    if not program:
        raise click.UsageError(f"name what to examine, such as {ctx.command_path} -- python train.py", ctx)
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise click.UsageError(f"--output {output}: there is no directory {Path(output).parent}", ctx)
    if program[0].endswith(".py") and not os.access(program[0], os.X_OK):
        raise click.UsageError(f"write {ctx.command_path} -- python {' '.join(program)}", ctx)
    from ..doctor.program import ran

    try:
        code, diagnosis = ran(program, seconds)
    except OSError as error:
        raise click.UsageError(f"{program[0]} cannot be run: {error.strerror or error}", ctx) from None
    plain = {**diagnosis.to_dict(), "exit_code": code}
    if output is not None:
        Path(output).write_text(json.dumps(jsonable(plain), indent=2), encoding="utf-8")
    asked.write(plain, diagnosis.text(shutil.get_terminal_size().columns))
    ctx.exit(code)
