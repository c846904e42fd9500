"""The result of a command -> JSON, text or tables on the standard output.

What comes from data is shown, never obeyed.
Control characters, escape sequences, marks that turn the direction of text and line ends in ids, labels and
messages are written as escapes, and nothing in them is read as markup. In JSON, numbers that JSON does not
have are the texts "NaN", "Infinity" and "-Infinity", which `float` reads.
"""

from __future__ import annotations

import base64
import json
import math
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...process.messages import bytes_text, count_of, escaped, in_columns, short

if TYPE_CHECKING:
    from ...reading.dataref import DataRef
    from ...storage import Storage

MOST_SHOWN = 60  # characters of a cell
MOST_LINES = 200  # of a table of columns or files
_LEAST_WIDTH, _MOST_VALUES = 40, 1000  # characters of a table, and values of an array in JSON
_MOST_BYTES = 1000


class Table(NamedTuple):
    """A table of texts; they may hold anything.

    Attributes:
        columns: the titles.
        rows: a text for each column.
        right: titles of right-aligned columns, such as numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[str] = ()


def value_text(value: object) -> str:
    """A value of a row in short, for a cell; text that might be taken for something else stands in quotes.

    Example:
        >>> value_text(np.zeros((8, 8), np.uint8)), value_text(np.arange(3)), value_text(b"abc")
        ('uint8 (8, 8): 0 0 0 0 0 0 …', 'int64 (3,): 0 1 2', '3 bytes: 61 62 63')
        >>> value_text(None), value_text("None"), value_text(""), value_text("cat"), value_text(1 / 3)
        ('None', '"None"', '""', 'cat', '0.333333')
    """
    if isinstance(value, str):
        text = short(value)
        return f'"{text}"' if value == "None" or value != value.strip() or not value else text
    from ..cells.text import shown  # which loads NumPy

    return shown(value, MOST_SHOWN)


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
    """Attributes of a value by name, for JSON; its `nbytes` are called `bytes`."""
    return {name: getattr(value, "nbytes" if name == "bytes" else name) for name in names.split()}


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
                and in plain columns elsewhere. Line ends in texts are kept, other control characters are
                written as escapes.

        Raises:
            BrokenPipeError: the program that reads it has ended.
        """
        if self.as_json:
            print(json.dumps(jsonable(plain), indent=2, allow_nan=False), flush=True)
            return
        for one in [shown] if isinstance(shown, (str, Table)) else shown:
            if isinstance(one, str):
                print("\n".join(map(escaped, one.split("\n"))), flush=True)
            elif sys.stdout is not None and sys.stdout.isatty():
                _draw(one)
            else:
                rows = [list(map(escaped, row)) for row in [one.columns, *one.rows]]
                right = [number for number, title in enumerate(one.columns) if title in one.right]
                print("\n".join(in_columns(rows, right)), flush=True)

    def write_published(self, storage: Storage, ref: DataRef) -> None:
        """Prints id, version, rows and bytes of a version of a storage."""
        from ...reading.version_ref import VersionRef

        assert isinstance(ref, VersionRef), "a storage gives its versions"
        manifest = ref.manifest
        plain = {"storage": storage.url, **picked(manifest, "id version"), "rows": manifest.num_rows}
        plain |= picked(manifest, "bytes fingerprint")
        where = f"{manifest.id} {manifest.version} in {storage.url}"
        self.write(plain, f"{where}: {count_of(manifest.num_rows, 'row')}, {bytes_text(manifest.nbytes)}")


def _draw(table: Table) -> None:
    """A table on a terminal, in which long texts go on in the next line."""
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in table.columns:
        is_right = title in table.right
        drawn.add_column(
            Text(escaped(title)), justify="right" if is_right else "left", no_wrap=is_right, overflow="fold"
        )
    for row in table.rows:
        drawn.add_row(*(Text(escaped(text)) for text in row))
    # A narrower terminal breaks the lines by itself; here columns would vanish.
    Console(file=sys.stdout, width=max(_LEAST_WIDTH, shutil.get_terminal_size().columns)).print(drawn)
    sys.stdout.flush()
