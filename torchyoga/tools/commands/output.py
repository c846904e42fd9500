"""The result of a command -> JSON, text or tables on the standard output.

What comes from data is shown, never obeyed.
Control characters, escape sequences, marks that turn the direction of text and line ends in ids, labels and
messages are written as escapes, and nothing in them is read as markup. In JSON, numbers that JSON does not
have are the texts "NaN", "Infinity" and "-Infinity", which `float` reads.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from ...process.texts import bytes_text, count_of, escaped, in_columns

if TYPE_CHECKING:
    from ...reading.dataref import DataRef
    from ...storage import Storage

__all__ = [
    "Asked",
    "MOST_LINES",
    "Table",
    "bytes_text",
    "cell",
    "first",
    "jsonable",
    "picked",
    "terminal_width",
    "value_text",
]

F = TypeVar("F")
MOST_SHOWN = 60  # characters of a cell
MOST_LINES = 200  # of a table of columns or files
_MOST_VALUES = 1000  # of an array, in JSON
_MOST_BYTES = 1000
_MOST_ITEMS = 8  # of a list, in a cell
_MOST_DIGITS = 10  # of a float
_LEAST_WIDTH, _GAP = 12, 2  # to which a column may be cut on a terminal, and between two
_MOST_LEFT_OUT = 5  # columns that are named


class Table(NamedTuple):
    """A table of texts; they may hold anything.

    Attributes:
        columns: the titles.
        rows: a text for each column.
        right: titles of right-aligned columns, such as numbers.
        whole: titles of other columns that are shown whole or not at all, as those of numbers are.
        last: titles of columns that are left out first where a terminal is too narrow; then those at the end.
        left_out: how many columns are not in it, and are named as left out, too.
        advice: how to see those.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[str] = ()
    whole: Collection[str] = ()
    last: Sequence[str] = ()
    left_out: int = 0
    advice: str = "a wider terminal or --json shows them"


def cell(value: object, most: int = MOST_SHOWN) -> str:
    """A value in short, on one line, as text that shows nothing else than itself.

    Example:
        >>> cell("one" + chr(27) + "[31m two"), cell("x" * 100, most=10)
        ('one\\\\x1b[31m two', 'xxxxxxx...')
    """
    text = escaped(str(value)[: most + 1])
    return text if len(text) <= most else text[: max(0, most - 3)] + "..."


def first(rows: Sequence[F], what: str, most: int = MOST_LINES) -> tuple[Sequence[F], list[str]]:
    """The first rows of a table, and a line that says how many more there are."""
    more = len(rows) - most
    return rows[:most], [f"and {count_of(more, f'more {what}')}; --json prints all"] if more > 0 else []


def value_text(value: object) -> str:
    """A value of a row in short, for a cell; text that might be taken for something else stands in quotes.

    Example:
        >>> value_text(np.zeros((8, 8), np.uint8)), value_text(np.arange(3)), value_text(b"abc")
        ('uint8 8x8, 0 to 0', '[0, 1, 2]', '3 bytes')
        >>> value_text(None), value_text("None"), value_text(""), value_text("cat"), value_text(1 / 3)
        ('None', '"None"', '""', 'cat', '0.333333')
        >>> value_text(np.datetime64(1, "ns"))
        '1970-01-01T00:00:00.000000001'
    """
    if isinstance(value, (bytes, bytearray)):
        return count_of(len(value), "byte")
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, str):
        return f'"{value}"' if value == "None" or value != value.strip() or not value else cell(value)
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        return cell(_array_text(value))
    if isinstance(value, (list, tuple)):
        return cell(
            f"{list(value[:_MOST_ITEMS])}" + (f" of {len(value)}" if len(value) > _MOST_ITEMS else "")
        )
    return cell(value)


def _float_text(value: float) -> str:
    """A float as Python writes it, or six digits of it where that is long."""
    text = str(float(value))
    return text if len(text) <= _MOST_DIGITS else f"{value:.6g}"


def _array_text(value: Any) -> str:
    shape = tuple(value.shape)
    if not shape:
        is_time = str(value.dtype)[:8] in ("datetime", "timedelt")  # whose nanoseconds are a bare integer
        return str(value) if is_time else value_text(value.tolist())
    if len(shape) == 1 and shape[0] <= _MOST_ITEMS:
        return str(value.tolist())
    kind = f"{str(value.dtype).removeprefix('torch.')} {'x'.join(map(str, shape))}"
    if not all(shape) or str(value.dtype).removeprefix("torch.")[:3] not in ("int", "uin", "flo"):
        return kind
    return f"{kind}, {value.min().item():.4g} to {value.max().item():.4g}"


def jsonable(value: object) -> object:
    """Any value of a row as data that JSON has.

    Arrays and tensors become their dtype, shape and first 1,000 values; bytes their number and the first
    1,000 in base64; NaN and infinities "NaN", "Infinity" and "-Infinity"; dates and decimals their text.

    Example:
        >>> jsonable({"x": float("nan"), "y": (1, b"ab")})
        {'x': 'NaN', 'y': [1, {'bytes': 2, 'base64': 'YWI='}]}
    """
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": len(value), "base64": base64.b64encode(value[:_MOST_BYTES]).decode()}
    if isinstance(value, Mapping):
        return {str(key): jsonable(one) for key, one in value.items()}
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        if not value.shape:
            return jsonable(value.tolist())
        values = value.reshape(-1)[:_MOST_VALUES].tolist()  # type: ignore[attr-defined]
        return {
            "dtype": str(getattr(value, "dtype", "")).removeprefix("torch."),
            "shape": [int(extent) for extent in value.shape],
            "values": [jsonable(one) for one in values],
        }
    if isinstance(value, (Sequence, set, frozenset)):
        return [jsonable(one) for one in value]
    return str(value)


def picked(value: object, names: str) -> dict[str, Any]:
    """Attributes of a value by name, for JSON."""
    return {name: getattr(value, name) for name in names.split()}


Shown: TypeAlias = "str | Table | Sequence[str | Table]"


class Asked(NamedTuple):
    """The storage that a command looks into, and whether what it finds is printed as JSON."""

    storage: str
    as_json: bool

    def write(self, plain: object, shown: Shown) -> None:
        """Prints the result of a command.

        Args:
            plain: all of it, for programs; see `jsonable`.
            shown: for people: texts and tables, one after the other. Tables are drawn by rich on a terminal,
                as wide as it is, and in plain columns elsewhere. Line ends in texts are kept, other control
                characters are written as escapes.

        Raises:
            BrokenPipeError: nobody reads it any more.
        """
        if self.as_json:
            _print(json.dumps(jsonable(plain), indent=2, allow_nan=False))
            return
        for one in [shown] if isinstance(shown, (str, Table)) else shown:
            if isinstance(one, str):
                _print("\n".join(map(escaped, one.split("\n"))))
            elif sys.stdout is not None and sys.stdout.isatty():
                _draw(one)
            else:
                _print(_plain(one))
                _print_left_out(one, ())

    def write_published(self, storage: Storage, ref: DataRef) -> None:
        """Prints id, version, rows and bytes of a version of a storage."""
        from ...reading.version_ref import VersionRef

        assert isinstance(ref, VersionRef), "a storage gives its versions"
        manifest = ref.manifest
        counts = {"rows": manifest.num_rows, "bytes": manifest.nbytes}
        plain = {"storage": storage.url, **picked(manifest, "id version"), **counts}
        plain |= picked(manifest, "fingerprint")
        where = f"{manifest.id} {manifest.version} in {storage.url}"
        self.write(plain, f"{where}: {count_of(manifest.num_rows, 'row')}, {bytes_text(manifest.nbytes)}")


def _print(text: str) -> None:
    if sys.stdout is None:
        return
    print(text, flush=True)


def _plain(table: Table) -> str:
    """A table in columns, each as wide as it must be."""
    rows = [[escaped(text) for text in row] for row in [table.columns, *table.rows]]
    right = [number for number, title in enumerate(table.columns) if title in table.right]
    return "\n".join(in_columns(rows, right))


def _draw(table: Table) -> None:
    """A table on a terminal, no wider than that."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    width = terminal_width()
    rows = [[escaped(text) for text in row] for row in [table.columns, *table.rows]]
    wide = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    kept, left_out = _kept(table, wide, width)
    sizes = _fitted([wide[number] for number in kept], width, [_is_whole(table, number) for number in kept])
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
    for line, row in enumerate(rows):
        cells = [Text(row[number], "bold" if line == 0 else "") for number in kept]
        for place, (cut, size, number) in enumerate(zip(cells, sizes, kept, strict=True)):
            cut.truncate(size, overflow="ellipsis")
            is_right = table.columns[number] in table.right
            if is_right or place < len(kept) - 1:
                cut.align("right" if is_right else "left", size)
        console.print(Text(" " * _GAP).join(cells), no_wrap=True, overflow="ignore", crop=False)
    _print_left_out(table, left_out)
    sys.stdout.flush()


def _print_left_out(table: Table, titles: Sequence[str]) -> None:
    """Prints how many columns are not shown, and the titles of a few."""
    count = len(titles) + table.left_out
    if count:
        named = f" ({', '.join(map(cell, titles))})" if count == len(titles) <= _MOST_LEFT_OUT else ""
        _print(f"and {count_of(count, 'more column')}{named}; {table.advice}")


def _is_whole(table: Table, number: int) -> bool:
    return table.columns[number] in table.right or table.columns[number] in table.whole


def _kept(table: Table, wide: Sequence[int], width: int) -> tuple[list[int], list[str]]:
    """The numbers of the columns for which there is room, and the titles of the others."""
    least = [
        size if _is_whole(table, number) else min(size, _LEAST_WIDTH) for number, size in enumerate(wide)
    ]
    kept = dict.fromkeys(range(len(wide)))
    going = [table.columns.index(title) for title in reversed(table.last) if title in table.columns]
    going = [*(number for number in kept if number not in going), *going]
    room = width + _GAP - sum(least) - _GAP * len(least)
    while room < 0 and len(kept) > 1:
        del kept[number := going.pop()]
        room += least[number] + _GAP
    return [*kept], [title for number, title in enumerate(table.columns) if number not in kept]


def _fitted(wide: Sequence[int], width: int, whole: Sequence[bool]) -> list[int]:
    """Widths of columns that together fill no more than `width`: the widest give way, but not the whole."""
    left = width - _GAP * (len(wide) - 1) - sum(itertools.compress(wide, whole))
    cut = sorted(size for size, is_whole in zip(wide, whole, strict=True) if not is_whole)
    most = max(cut, default=0)
    for number, size in enumerate(cut):
        most = left // (len(cut) - number)
        if size > most:
            break
        left -= size
        most = size
    sizes = zip(wide, whole, strict=True)
    return [max(1, min(size, width if is_whole else most)) for size, is_whole in sizes]


def terminal_width() -> int:
    """Columns of the terminal."""
    if os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
