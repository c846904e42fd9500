"""`yoga append` and `yoga add-columns`: rows or columns of files, or of a function, added to a version."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any

import click

from ...errors import NotFoundError, SchemaError
from .output import Asked
from .places import fetched, id_argument, message_option, opened, storage_command

if TYPE_CHECKING:
    from ...reading.dataref import DataRef
    from ...rows.schema import Schema

_NAMED_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_FEW = 8


@storage_command("append", id_argument())
@click.argument("new")
@click.argument("source", nargs=-1, required=True)
@click.option("--after", help="The version that the new one begins with; by default the newest.")
@message_option
def command(
    id: str, new: str, source: tuple[str, ...], after: str | None, message: str | None, asked: Asked
) -> None:
    """Add rows to a version of ID, and publish them as the version NEW.

    SOURCE is one or more files of one kind: NumPy (.npy, or COLUMN=FILE.npy for each column), or the path or
    URL of files of any other library that yoga head reads, such as JSON lines (one row a line), Parquet and
    HDF5 (all datasets at the root). Or it is module:function of your own, which is
    imported from the current folder and run, and returns rows.

    \b
    Examples:
      yoga append images 1.2 more.parquet more2.parquet
      yoga append images 1.2 rows.jsonl --after 1.0 --message "rows of May"
      yoga append images 1.2 label=labels.npy text=texts.npy
      yoga append images 1.2 mydata:more
    """
    place = opened(asked.storage)
    ref = fetched(place, id, after)
    old = ref.manifest
    rows = rows_of(source, old.schema)
    if isinstance(rows, Sized) and not len(rows):
        raise SchemaError(f"{', '.join(source)} has no rows, so there is nothing to append")
    found = place.append(rows, old.id, new, after=after, message=message)
    asked.write_published(place, found)


@storage_command("add-columns", id_argument())
@click.argument("new")
@click.argument("source", nargs=-1, required=True)
@click.option("--after", help="The version that gets the columns; by default the newest.")
@click.option("--replace", is_flag=True, help="A new column takes the place of one that has its name.")
@message_option
def add_columns(
    id: str,
    new: str,
    source: tuple[str, ...],
    after: str | None,
    replace: bool,
    message: str | None,
    asked: Asked,
) -> None:
    """Add columns to a version of ID, and publish it as the version NEW; only the columns are written.

    SOURCE has a value for each row, in order: files as those of yoga append. Arrays of NumPy are named:
    COLUMN=FILE.npy.

    \b
    Examples:
      yoga add-columns images 1.2 score=scores.npy
      yoga add-columns images 1.3 embeddings.parquet --after 1.2 --message "of model 7"
      yoga add-columns images 1.4 label=labels.npy --replace
    """
    place = opened(asked.storage)
    old = fetched(place, id, after).manifest
    rows = rows_of(source, None, named=True)
    found = place.add_columns(rows, old.id, new, after=old.version, replace=replace, message=message)
    asked.write_published(place, found)


def imported(name: str) -> Any:
    """The object that `module:function` names, from the current folder or from where Python finds the module.

    Raises:
        ValueError: the name is not of that form.
        NotFoundError: there is no such module, or it has no such function; says which there are.
    """
    if not _NAMED_FUNCTION.fullmatch(name):
        raise ValueError(f"{name!r:.200} is not of the form module:function, such as mydata:images")
    module, _, path = name.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise NotFoundError(
            f"there is no module {error.name!r} in {os.getcwd()} or among the installed ones; run it in the "
            "folder of the module"
        ) from None
    for part in path.split("."):
        if not hasattr(found, part):
            names = (
                [one for one in vars(found) if not one.startswith("_")] if hasattr(found, "__dict__") else []
            )
            near = difflib.get_close_matches(part, names, 3) or sorted(names)[:_FEW]
            raise NotFoundError(f"{module!r} has no {part!r}; it has {', '.join(near) or 'nothing'}")
        found = getattr(found, part)
    return found


def rows_of(sources: Sequence[str], schema: Schema | None, named: bool = False) -> object:
    """The rows of files of one kind, one file after the other, or what a function of the user's gives.

    Args:
        sources: paths, `COLUMN=FILE.npy` or one `module:function`.
        schema: what rows of the version look like; rows of JSON are turned into such.
        named: rows must be dicts, so arrays have names.

    Raises:
        ValueError: the files are of several kinds, or their format is not told.
        NotFoundError: there is no such file or function.
    """
    if len(sources) == 1 and not os.path.exists(sources[0]) and _NAMED_FUNCTION.fullmatch(sources[0]):
        return imported(sources[0])
    kinds = {_kind(source) for source in sources}
    if len(kinds) > 1:
        raise ValueError(f"append takes files of one kind at a time, found {' and '.join(sorted(kinds))}")
    kind = kinds.pop()
    if kind == "npy":
        return _arrays(sources, named)
    if kind == "jsonl":
        from ...tables.foreign.json_lines import from_jsonl

        return from_jsonl([source.removeprefix("jsonl://") for source in sources], schema)
    from ..other_formats import read_at

    return _joined([read_at(source) for source in sources])


def _kind(source: str) -> str:
    if "://" not in source and source.lower().endswith(".npy"):  # COLUMN=FILE.npy is no path
        return "npy"
    from ..other_formats import format_at

    try:
        return format_at(source)
    except ValueError as error:
        raise ValueError(f"{error}; or pass module:function of your own") from None


def _joined(refs: Sequence[DataRef]) -> DataRef:
    from ...views.chosen import concat

    return refs[0] if len(refs) == 1 else concat(refs)


def _arrays(sources: Sequence[str], must_be_named: bool) -> object:
    """Rows of .npy files: one after the other, or side by side where they are named."""
    from ...adapters.arrays import from_arrays

    named = [source.partition("=") for source in sources if "=" in source and not os.path.exists(source)]
    if must_be_named and len(named) < len(sources):
        raise ValueError(f"name the columns of .npy files, as in score={sources[0]}")
    if named and len(named) < len(sources):
        raise ValueError("name all columns, as in image=images.npy label=labels.npy, or none")
    names = [name for name, _, _ in named]
    if len(set(names)) < len(names):
        raise ValueError(f"each column may come once, found {', '.join(names)}")
    for path in [path for _, _, path in named] or sources:
        if not os.path.isfile(path):
            raise NotFoundError(f"there is no file {path!r}")
    return (
        from_arrays({name: path for name, _, path in named})
        if named
        else _joined([*map(from_arrays, sources)])
    )
