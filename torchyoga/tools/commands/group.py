"""The names of the commands -> the one that was asked for, its errors as a line, and its exit code.

A command's file is loaded when it runs.
The help of the group and the completion of names read a table of names and one-line helps, so that neither
imports what a command needs; a command whose file is not installed is not shown.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import itertools
import json
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from ...errors import CorruptError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["COMMANDS", "command", "main"]

COMMANDS = {  # by name: what it does
    "add-columns": "add columns of files to a version, as a new version",
    "append": "add the rows of files to a version, as a new version",
    "check": "read versions and say what is damaged",
    "compact": "write a version into files of its own",
    "convert": "write a version in another file format",
    "copy": "copy a version, or all, to another directory or store",
    "delete-rows": "publish a version without some rows",
    "diff": "show which rows and columns differ between two versions",
    "doctor": "find what slows down or spoils training",
    "drop-columns": "publish a version without some columns",
    "gc": "say what could be deleted, and delete it with --yes",
    "head": "show the first rows of a version",
    "info": "show what a version is: rows, columns, files, how it was made",
    "log": "show the versions of a dataset, the newest first",
    "ls": "list datasets and their versions",
    "query": "answer a question in SQL about rows",
    "report": "write a page that shows a dataset",
    "rm": "delete a version",
    "stats": "show statistics of each column",
    "tag": "show, set or take away names of versions",
    "view": "page through rows in a browser",
}
_BESIDE = {
    "add-columns": "append",
    "compact": "convert",
    "drop-columns": "delete-rows",
    "rm": "gc",
}  # in the file of another command
_ALIKE = {  # what others call a command
    **dict.fromkeys(("cat", "peek", "print", "rows", "sample", "tail"), "head"),
    **dict.fromkeys(("clean", "prune", "vacuum"), "gc"),
    **dict.fromkeys(("columns", "describe", "schema", "show"), "info"),
    **dict.fromkeys(("cp", "clone", "download", "pull", "push", "sync", "upload"), "copy"),
    **dict.fromkeys(("datasets", "dir", "list"), "ls"),
    **dict.fromkeys(("del", "delete", "remove"), "rm"),
    **dict.fromkeys(("duckdb", "select", "sql", "where"), "query"),
    **dict.fromkeys(("fsck", "validate", "verify"), "check"),
    **dict.fromkeys(("history", "versions"), "log"),
    **dict.fromkeys(("serve", "browse", "open", "ui"), "view"),
    **dict.fromkeys(("statistics", "summary"), "stats"),
    **dict.fromkeys(("add", "extend"), "append"),
}
_DAMAGED, _WRONG, _INTERRUPTED, _UNREAD = 1, 2, 130, 141
_MOST_LINES, _MOST_TEXT = 2, 2000  # of an error
_FLAG = re.compile(r"(,? or pass| with) ([a-z_]+)=True")
_ADVICE = {
    "name one by version=, or by after= what is to grow;": "name one,",
    "name one by version= or after=": "name one",
    "pass replace=True to put": "pass --replace to put",
    "call compact first": "run yoga compact first",
    "longer (timeout=)": "longer",
    "with storage.tag": "with yoga tag",
    "pass either rows=, numbers of rows, or where=(columns, condition)": "pass either --rows or --where",
    "tag another version, take them away, or pass force=True": (
        "move them with yoga tag, or pass force=True"
    ),
}


class _Refused(click.ClickException):
    """The end of a command that cannot be done as asked, or has found damage.

    Args:
        text: says why.
        kind: the name of the error in Python.
        code: the exit code.
    """

    def __init__(self, text: str, kind: str, code: int) -> None:
        super().__init__(text)
        self.kind = kind
        self.code = code


class _Group(click.Group):
    """Loads a command when it is asked for, and ends with one or two lines and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(_module(name)) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            name = cmd_name.replace("-", "_") if cmd_name in _BESIDE else "command"
            found = getattr(importlib.import_module(_module(cmd_name)), name)
        except ModuleNotFoundError as error:
            if error.name != _module(cmd_name):
                raise
            return None
        assert isinstance(found, click.Command), f"{cmd_name} is a command"
        if not any("--debug" in parameter.opts for parameter in found.params):
            found.params.append(_debug_option())
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            names = self.list_commands(ctx)
            alike = difflib.get_close_matches(name, [*names, *_ALIKE], 3, 0.5)
            longer = [one for one in names if one.startswith(name)]
            near = longer or list(dict.fromkeys(_ALIKE.get(one, one) for one in alike))
            near = [_ALIKE[name]] if name in _ALIKE else near
            what = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
            raise click.UsageError(f"there is no command {name!r:.80}; {what}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name]) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            _give_up_output()
            raise click.exceptions.Exit(_UNREAD) from None
        except Exception as error:
            if ctx.meta.get(_DEBUG) or ctx.params.get("debug"):
                raise
            is_damage = isinstance(error, CorruptError)
            code = _DAMAGED if is_damage else _WRONG
            raise _Refused(_in_options(ctx, _text(error)), type(error).__name__, code) from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        args = [*(sys.argv[1:] if args is None else args)]
        as_json = "--json" in itertools.takewhile(lambda arg: arg != "--", args)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.ClickException as error:
            text, code, kind = error.format_message(), error.exit_code, "UsageError"
            if isinstance(error, click.UsageError):
                path = error.ctx.command_path if error.ctx is not None else "yoga"
                text += f"\nTry '{path} --help'"
            elif isinstance(error, _Refused):
                kind, code = error.kind, error.code
            _say(f"error: {text}")
            if as_json:
                _print_json({"error": text, "kind": kind, "exit_code": code})
            _flush()
        except click.Abort:
            code = _INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


_DEBUG = "torchyoga.debug"


def _debug_option() -> click.Option:
    def note(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        ctx.meta[_DEBUG] = ctx.meta.get(_DEBUG) or value

    return click.Option(
        ["--debug"], is_flag=True, expose_value=False, callback=note, help="Show a traceback of an error."
    )


def _module(name: str) -> str:
    return f"{__package__}.{_BESIDE.get(name, name).replace('-', '_')}"


def _text(error: Exception) -> str:
    """The message of an error, in a line or two; its kind if that is not plain from it."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, KeyError) and type(error).__module__ == "builtins" and error.args:
        text = str(error.args[0])
    if isinstance(error, OSError) and error.filename is not None and type(error).__module__ == "builtins":
        text = f"{os.fsdecode(error.filename)}: {error.strerror or type(error).__name__}"
    if not isinstance(error, (OSError, ValueError, LookupError, ImportError, RuntimeError)):
        text = f"{type(error).__name__}: {text}"
    lines = text.splitlines()
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"{len(lines) - _MOST_LINES + 1} more lines with --debug"]
    shown = "\n".join(lines)
    return shown if len(shown) <= _MOST_TEXT else f"{shown[: _MOST_TEXT - 3]}..."


def _in_options(ctx: click.Context, text: str) -> str:
    """Advice for callers in Python as advice for those of a command, whose options it names."""
    group, name = ctx.command, ctx.invoked_subcommand or ""
    asked = group.get_command(ctx, name) if isinstance(group, click.Group) else None
    options = {option for parameter in asked.params for option in parameter.opts} if asked else set()

    def option(match: re.Match[str]) -> str:
        name = f"--{match[2].replace('_', '-')}"
        return f"{match[1]} {name}" if name in options else ""

    for advice, here in _ADVICE.items():
        text = text.replace(advice, here)
    return _FLAG.sub(option, text)


def _say(text: str) -> None:
    from ...process.texts import escaped

    try:
        print("\n".join(map(escaped, text.split("\n"))), file=sys.stderr, flush=True)
    except OSError:  # nobody can be told
        _give_up_output()


def _print_json(plain: dict[str, object]) -> None:
    """Prints an object where the result of a command would stand."""
    try:
        if sys.stdout is not None:
            print(json.dumps(plain, indent=2), flush=True)
    except OSError:
        _give_up_output()


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _say(f"warning: {message}")


def _flush() -> None:
    """Writes what is left now, so that on a full disk Python does not try once more when it ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _give_up_output()


def _give_up_output() -> None:
    """Nothing more is written, also not what Python still holds when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (AttributeError, OSError, ValueError):  # none, or not a file
            continue
    os.close(nowhere)


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from ... import __version__

        click.echo(f"torchyoga {__version__}")
        ctx.exit()


@click.group(
    cls=_Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Each command says more: yoga ls --help. Exit codes: 0; 1 if something is damaged or differs; 2 "
    "if it cannot be done as asked; 130 after Ctrl-C.",
)
@click.option("--debug", is_flag=True, help="Show a traceback of an error.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
@click.pass_context
def command(ctx: click.Context, debug: bool) -> None:
    """Cached datasets: what there is, what is in it, whether it is whole."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> NoReturn:
    """The entry point of `torchyoga` and `yoga`."""

    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):  # a terminal without UTF-8 gets escapes
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    name = os.path.basename(sys.argv[0] if sys.argv else "")
    command.main(prog_name="python -m torchyoga" if name == "__main__.py" else name.removesuffix(".exe"))
    raise AssertionError("it ends the process")
