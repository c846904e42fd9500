"""The names of the commands -> the one that was asked for, its errors as a line, and its exit code.

The commands of a section are in one file, loaded when one of them runs; the help of the group needs none.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
import json
import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click

from ... import __version__
from ...errors import CorruptError, YogaError
from ...process.messages import escaped
from .places import DEFAULT, storage_options

_SECTIONS = {  # by file: each command, and what it does
    "Look": {
        "ls": "list datasets and their versions",
        "info": "show what a version is: rows, columns, files, how it was made",
        "head": "show the first rows of a version",
        "log": "show the versions of a dataset, the newest first",
        "diff": "show which rows and columns differ between two versions",
        "report": "write a page that shows a dataset",
        "view": "page through rows in a browser",
    },
    "Make": {
        "append": "add the rows of files to a version, as a new version",
        "convert": "write a version into new files, or in another format",
    },
    "Keep": {
        "tag": "show, set or take away names of versions",
        "copy": "copy a version to another directory or store",
        "rm": "delete a version",
        "gc": "say what could be deleted, and delete it with --yes",
    },
    "Check": {
        "check": "read versions and say what is damaged",
        "doctor": "find what slows down or spoils training",
    },
}
COMMANDS = {name: text for section in _SECTIONS.values() for name, text in section.items()}
_DAMAGED, _WRONG, _INTERRUPTED, _UNREAD = 1, 2, 130, 141
_MOST_LINES, _MOST_TEXT = 2, 2000  # of an error
_FLAG = re.compile(r"\b([a-z_]+)=True\b")


class _Refused(click.ClickException):
    """The end of a command that cannot be done as asked, or that has found damage."""

    def __init__(self, error: Exception, text: str) -> None:
        super().__init__(text)
        self.kind = type(error).__name__
        self.code = _DAMAGED if isinstance(error, CorruptError) else _WRONG


class _Group(click.Group):
    """Loads a command when it is asked for, and ends with one or two lines and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for title, section in _SECTIONS.items():
            if cmd_name in section:
                module = importlib.import_module(f"{__package__}.{title.lower()}")
                found: click.Command = getattr(module, cmd_name.replace("-", "_"))
                return found
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in _SECTIONS.items():  # whose files are not loaded for it
            with formatter.section(title):
                formatter.write_dl([*section.items()], col_max=16)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        near = difflib.get_close_matches(name, COMMANDS, 1)
        more = f"; did you mean {near[0]}?" if near else ""
        raise click.UsageError(f"there is no command {name!r:.80}{more}", ctx)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            raise click.exceptions.Exit(_UNREAD) from None
        except Exception as error:
            if ctx.params["debug"]:
                raise
            raise _Refused(error, _text(error, ctx)) from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        args = [*(sys.argv[1:] if args is None else args)]
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.ClickException as error:
            text, code, kind = error.format_message(), error.exit_code, "UsageError"
            if isinstance(error, _Refused):
                code, kind = error.code, error.kind
            elif isinstance(error, click.UsageError):
                text += f"\nTry '{error.ctx.command_path if error.ctx is not None else 'yoga'} --help'"
            _say(f"error: {text}")
            if "--json" in itertools.takewhile(lambda arg: arg != "--", args):
                with suppress(OSError):
                    print(json.dumps({"error": text, "kind": kind, "exit_code": code}, indent=2))
        except click.Abort:
            code = _INTERRUPTED
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:  # Python would try once more when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(code if isinstance(code, int) else 0)


def _text(error: Exception, ctx: click.Context) -> str:
    """The message of an error, in a line or two; its kind if that is not plain from it."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, KeyError) and type(error).__module__ == "builtins" and error.args:
        text = str(error.args[0])
    if isinstance(error, OSError) and error.filename is not None and type(error).__module__ == "builtins":
        text = f"{os.fsdecode(error.filename)}: {error.strerror or type(error).__name__}"
    if not isinstance(error, (YogaError, OSError, ValueError, LookupError, ImportError, RuntimeError)):
        text = f"{type(error).__name__}: {text}"
    lines = text.splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"{len(lines) - _MOST_LINES + 1} more lines with yoga --debug"]
    shown = _FLAG.sub(lambda flag: _option(flag, ctx), "\n".join(lines))
    return shown if len(shown) <= _MOST_TEXT else f"{shown[: _MOST_TEXT - 3]}..."


def _option(flag: re.Match[str], ctx: click.Context) -> str:
    """An argument of a function in Python as the option of the command, if that has it."""
    command = _Group.get_command(ctx.command, ctx, ctx.invoked_subcommand or "")  # type: ignore[arg-type]
    option = f"--{flag[1].replace('_', '-')}"
    return option if command and any(option in one.opts for one in command.params) else flag[0]


def _say(text: str) -> None:
    with suppress(OSError):  # its reader has ended
        print("\n".join(map(escaped, text.split("\n"))), file=sys.stderr, flush=True)


@click.group(
    cls=_Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Each command says more: yoga ls --help. Exit codes: 0; 1 if something is damaged or differs; 2 "
    "if it cannot be done as asked; 130 after Ctrl-C.",
)
@storage_options(default=DEFAULT)
@click.option("--debug", is_flag=True, help="Show a traceback of an error.")
@click.version_option(__version__, message="torchyoga %(version)s")
@click.pass_context
def command(ctx: click.Context, storage: str, as_json: bool, debug: bool) -> None:
    """Cached datasets: what there is, what is in it, whether it is whole."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> NoReturn:
    """The entry point of `torchyoga` and `yoga`."""
    warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
    for stream in (sys.stdout, sys.stderr):  # a terminal without UTF-8 gets escapes
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    name = os.path.basename(sys.argv[0] if sys.argv else "")
    command.main(prog_name="python -m torchyoga" if name == "__main__.py" else name.removesuffix(".exe"))
    raise AssertionError("it ends the process")
