"""`yoga doctor`: what slows down or spoils training, on this machine, in a storage, in a program."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .output import Asked, jsonable
from .places import is_path, opened, shown, storage_command

__all__ = ["command"]


@storage_command("doctor")
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
@click.option("--env", is_flag=True, help="Only what a report of a bug needs: versions and file systems.")
@click.pass_context
def command(
    ctx: click.Context, program: tuple[str, ...], seconds: float, output: str | None, env: bool, asked: Asked
) -> None:
    """Find what slows down or spoils training, and say what to change.

    Without PROGRAM it looks at the machine, and at what killed builders have left in the storage. In place of
    it may stand a path or URL of files of another library: then their rows are examined, too. With it,
    PROGRAM runs as usual, with its input, signals and exit code, and the loaders that it iterates are
    examined when it ends; it must import torchyoga. What is found comes after what PROGRAM prints; --output
    writes it to a file as well. Without PROGRAM the exit code is 1 if something is wrong, which is always
    proved. Versions and file systems are printed, too, for reports of bugs.

    \b
    Examples:
      yoga doctor
      yoga doctor --env
      yoga doctor --storage storage --json
      yoga doctor -- python train.py --epochs 1
      yoga doctor --output found.json -- python train.py
    """
    if env and program:
        raise click.UsageError("--env runs no program; leave one of them out", ctx)
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise click.UsageError(f"--output {output}: there is no directory {Path(output).parent}", ctx)
    from ..doctor.diagnosis import Diagnosis

    if program and program[0].endswith(".py") and not os.access(program[0], os.X_OK):
        raise click.UsageError(f"write {ctx.command_path} -- python {' '.join(program)}", ctx)
    dataset = None
    if len(program) == 1 and _is_data(program[0]):
        from ...loading.loader import DataLoader

        # Rows of any length are no fault of the files: how they are collated is up to a program.
        dataset, program = DataLoader(shown(asked.storage, *program).ref, 64, collate_fn=list), ()
    is_named = ctx.get_parameter_source("storage") is not ParameterSource.DEFAULT
    store = opened(asked.storage) if is_named or (not program and os.path.isdir(asked.storage)) else None
    about: dict[str, Any] = {}
    if not program:
        from ..doctor.environment import environment, environment_text

        about = environment([asked.storage] if store is not None else [])
        if env:
            _write(about, output)
            asked.write(about, environment_text(about))
            return
    parts, code = [], 0
    if program:
        from ..doctor.program import ran

        try:
            code, found = ran(program, seconds)
        except OSError as error:
            raise click.UsageError(f"{program[0]} cannot be run: {error.strerror or error}", ctx) from None
        parts.append(found)
    if store is not None or not program:
        from ..doctor.examination import doctor

        parts.append(doctor(dataset, storage=store, seconds=seconds))
    diagnosis = Diagnosis.together(parts)
    if not program:
        code = int(any(one.severity == "wrong" for one in diagnosis.findings))
    plain = {**diagnosis.to_dict(), "environment": about, "exit_code": code}
    _write(plain, output)
    text = diagnosis.text(shutil.get_terminal_size().columns)
    asked.write(plain, f"{text}\n\nenvironment\n{environment_text(about)}" if about else text)
    ctx.exit(code)


def _is_data(text: str) -> bool:
    """True for a URL, and for a path that cannot be run."""
    return "://" in text or (is_path(text) and (os.path.isdir(text) or not os.access(text, os.X_OK)))


def _write(plain: dict[str, Any], output: str | None) -> None:
    if output is not None:
        Path(output).write_text(json.dumps(jsonable(plain), indent=2), encoding="utf-8")
