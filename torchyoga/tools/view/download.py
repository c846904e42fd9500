"""Rows of a dataset -> a file of CSV, JSON or Parquet, made while it is sent."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from datetime import time as clock
from typing import Any

import numpy as np

from ...errors import SchemaError
from ...reading.dataref import DataRef
from ...reading.in_epoch import in_epoch
from ...rows.block import exact_rows
from ...rows.collector import block_of
from ...rows.types import Ints
from ..cells.flat import flat
from .answer import Answer, Refused
from .shelf import OpenRef
from .table import Wanted

__all__ = ["download"]

_ROWS, _BYTES = 2**12, 2**23  # at once, at most
_NO_NUMBERS = {math.inf: "Infinity", -math.inf: "-Infinity"}
_ODD_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def download(opened: OpenRef, values: Mapping[str, str]) -> Answer:
    """The rows that an address asks for, as a file.

    Memory is bounded by some thousands of rows, or 8 MB of them. The first are made before the answer begins,
    so that most of what can be wrong is a page that says so.

    Raises:
        Refused: there is no such format, or the rows do not fit it.
    """
    kind = values.get("format", "")
    makers: dict[str, tuple[str, Callable[[OpenRef, DataRef, Iterator[Ints]], Iterator[bytes]]]] = {
        "csv": ("text/csv; charset=utf-8", _csv),
        "json": ("application/json", _json),
        "parquet": ("application/vnd.apache.parquet", _parquet),
    }
    if kind not in makers:
        raise Refused(400, f"rows are downloaded as {', '.join(makers)}; found {kind[:40]!r}")
    wanted = Wanted.of(values)
    try:
        ref, condition = wanted.ref(opened), wanted.filter(opened)
        looked = (
            _all(ref) if condition is None else (some for _, some in condition.found(ref, held=opened.held))
        )
        type, make = makers[kind]
        parts = make(opened, ref, _gathered(ref, looked))
        first = next(parts, b"")
    except (ValueError, SchemaError) as error:
        raise Refused(400, str(error)) from error
    except ImportError as error:
        raise Refused(400, f"{error}; pip install 'torchyoga[arrow]'") from error
    name = _ODD_IN_NAMES.sub("_", "-".join(filter(None, [values.get("id"), values.get("version")])))
    return Answer(200, type, first, parts, f"{name[:80].strip('._') or 'rows'}.{kind}")


def _step(ref: DataRef) -> int:
    return max(1, min(_ROWS, _BYTES // max(1, ref.row_bytes)))


def _all(ref: DataRef) -> Iterator[Ints]:
    step = _step(ref)
    for start in range(0, len(ref), step):
        yield np.arange(start, min(start + step, len(ref)), dtype=np.int64)


def _gathered(ref: DataRef, looked: Iterator[Ints]) -> Iterator[Ints]:
    """The same rows, as many at once as fit in memory."""
    step, held = _step(ref), np.zeros(0, np.int64)
    for some in looked:
        held = np.concatenate([held, some])
        while len(held) >= step:
            yield held[:step]
            held = held[step:]
    if len(held):
        yield held


def _taken(opened: OpenRef, ref: DataRef, rows: Ints) -> Sequence[object]:
    with opened.held:
        return exact_rows(in_epoch(ref, 0, 0).take(rows))


def _parquet(opened: OpenRef, ref: DataRef, chunks: Iterator[Ints]) -> Iterator[bytes]:
    from ...tables.written import parquet_of

    schema = ref.schema
    if schema is None:
        raise SchemaError("it is not known what these rows look like, which Parquet needs; download JSON")

    def blocks() -> Iterator[Any]:
        for rows in chunks:
            with opened.held:  # and not while the block is sent
                block = block_of(in_epoch(ref, 0, 0).take(rows), schema)
            yield block

    yield from parquet_of(schema, blocks())


def _json(opened: OpenRef, ref: DataRef, chunks: Iterator[Ints]) -> Iterator[bytes]:
    """A list of rows, one a line."""
    lead = "[\n"
    for rows in chunks:
        texts = [json.dumps(_plain(row), allow_nan=False) for row in _taken(opened, ref, rows)]
        yield (lead + ",\n".join(texts)).encode()
        lead = ",\n"
    yield b"\n]\n" if lead == ",\n" else b"[]\n"


def _csv(opened: OpenRef, ref: DataRef, chunks: Iterator[Ints]) -> Iterator[bytes]:
    """A line of names, and one for each row; what is not a single value is JSON."""
    names = opened.shown_names
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(names)
    for rows in chunks:
        for row in _taken(opened, ref, rows):
            writer.writerow(_cells(dict(flat(row)), names))
        yield out.getvalue().encode("utf-8", "backslashreplace")
        out.seek(0)
        out.truncate()
    yield out.getvalue().encode("utf-8", "backslashreplace")


def _cells(row: dict[str, object], names: Sequence[str]) -> list[str]:
    """The texts of a row, by the names of the first.

    Raises:
        ValueError: it has other values, which have no place.
    """
    texts = []
    for name in names:
        if name in row:
            texts.append(_text(row.pop(name)))
            continue
        inside = {other: row.pop(other) for other in [*row] if other.startswith(f"{name}/")}
        texts.append(
            _text({other.removeprefix(f"{name}/"): value for other, value in inside.items()} or None)
        )
    if row:
        raise ValueError(
            f"a row has the value {next(iter(row))!r:.200}, which the first has not; download JSON"
        )
    return texts


def _text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, allow_nan=False)


def _plain(value: Any) -> Any:
    """A value as JSON has it.

    Arrays and tensors are lists, bytes are base64, dates ISO 8601, decimals their text; NaN and infinities
    are the texts "NaN", "Infinity" and "-Infinity", as commands write them.
    """
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _NO_NUMBERS.get(value, "NaN")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, (date, clock)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "mM":
        return value.astype(str).tolist()
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one) for one in value]
    return str(value)
