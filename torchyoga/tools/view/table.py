"""The parameters of an address -> a page of rows, as a table or as a grid of images."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...process.messages import escaped
from ...process.messages import number as number_text
from ...reading.dataref import DataRef
from ..cells.marks import marks_of
from ..cells.picture import thumbnail, url_of
from ..report.columns import Bar, ColumnCard
from ..report.sample import Cell, cell_of
from .answer import Refused, link, number_in
from .filter import Filter
from .rows import Hits, Values, drawn_rows, found_from, sound_type
from .shelf import MOST_COLUMNS, OpenRef

GRID_SIDE = 192  # pixels of an image in a grid
_MOST_IMAGES = 60  # in a grid
_CELL = 120  # characters
_MOST_ROWS, _MOST_CELLS = 50, 2000
_SECONDS_OF_PICTURES = 4.0
_MOST_NAMED = 200
_MOST_UNDER_IMAGES = 2  # values
_MOST_LAYOUTS = 8  # grids that a page leads to
_MOST_LINKED = 24  # columns whose bars are links


def rows_page(opened: OpenRef, place: Mapping[str, str], values: Mapping[str, str]) -> dict[str, Any]:
    """Values for the template of the page of rows.

    Args:
        opened: the dataset; `place`: its parameters in addresses.
        place: see `opened`.
        values: the parameters of the address.

    Raises:
        Refused: there is no such row or column, or rows cannot be sorted so.
    """
    total, names = len(opened.ref), opened.shown_names
    where, sort = values.get("where", "").strip(), values.get("sort", "")
    is_descending = bool(sort) and values.get("order") == "descending"
    start = number_in(values, "start", 0)
    if start and start >= total:
        raise Refused(404, f"there is no row {start:,}: there are {total:,}")
    grid = _grid(opened, values)
    in_table = max(1, min(_MOST_ROWS, _MOST_CELLS // max(1, min(len(names), MOST_COLUMNS))))
    most = _MOST_IMAGES if grid else in_table
    seed = number_in(values, "draw", 0) if "draw" in values else None
    hits, problem, condition, ordered = Hits((), start, start), "", None, None
    try:
        ordered = opened.sorted(sort, is_descending) if sort else None
        condition = Filter.of(where, opened.ref.schema, opened.ref.info) if where and total else None
        hits = _hits(opened, ordered or opened.ref, condition, start, most, grid, seed)
    except ValueError as error:
        problem = str(error)
    numbers = np.array([at for at, _ in hits.rows], np.int64)
    numbers = numbers if ordered is None else ordered.rows_at(numbers)
    numbered = [(number, row) for number, (_, row) in zip(numbers.tolist(), hits.rows, strict=True)]
    order = "descending" if is_descending else None
    wanted = {"where": where or None, "sort": sort or None, "order": order}
    here = {**place, **wanted, "image": grid["image"] if grid else None}
    notes: list[str] = []
    if not grid and len(names) > MOST_COLUMNS:
        notes.append(
            f"The first {MOST_COLUMNS} of {len(names):,} columns; view(ref.columns([...])) shows others."
        )
    if condition is not None and opened.is_remote:
        notes.append("Files are downloaded as their rows are looked at.")
    names_of_grid = [grid["image"], *grid["under"]] if grid else None
    body = _table(opened, numbered, place, here, notes, names_of_grid)
    is_drawn = seed is not None and condition is None
    is_numbered = condition is None and not is_drawn and not problem
    going_on = not problem and not is_drawn and hits.stop < total
    last = (total - 1) // most * most if total else 0
    return {
        **body,
        "grid": grid,
        "names": [escaped(name) for name in names[:_MOST_NAMED]],
        "where": escaped(where),
        "sort": escaped(sort),
        "is_descending": is_descending,
        "problem": problem,
        "notes": notes,
        "looked": hits.stop - hits.start if condition is not None else None,
        "hits": hits,
        "total": total,
        "is_drawn": is_drawn,
        "before": link("rows", **{**here, "start": max(0, start - most)}) if is_numbered and start else None,
        "begin": link("rows", **here) if start else None,
        "after": link("rows", **here, start=hits.stop) if going_on else None,
        "last": link("rows", **here, start=last) if is_numbered and going_on else None,
        "random": link("rows", **here, draw=secrets.randbelow(10**9)) if total > most else None,
        "everything": link("rows", **{**here, "where": None}) if where else None,
        "unsorted": link("rows", **{**here, "sort": None, "order": None}) if sort else None,
        "layouts": _layouts(opened, grid, {**here, "start": start or None}),
        "hidden": {name: value for name, value in here.items() if value is not None and name != "where"},
    }


def _hits(
    opened: OpenRef,
    ref: DataRef,
    condition: Filter | None,
    start: int,
    most: int,
    grid: Mapping[str, Any] | None,
    seed: int | None,
) -> Hits:
    """The rows of the page, numbered by their places in `ref`, which has the order that is asked for."""
    if not len(ref):
        return Hits((), 0, 0)
    schema = ref.schema
    if not grid:
        cut = opened.only(ref, opened.shown_names[:MOST_COLUMNS])
    elif schema is not None and schema.tree.kind == "dict":
        cut = opened.only(ref, [grid["image"], *grid["under"]])
    else:  # the values of a tuple are named by their places in it
        cut = ref
    if seed is not None and condition is None:
        return drawn_rows(cut, seed, most)
    if seed is not None:
        start = int(np.random.default_rng(seed).integers(len(ref)))
    return found_from(ref, start, most, condition, cut)


# -- the table


def _table(
    opened: OpenRef,
    rows: Sequence[tuple[int, Values]],
    place: Mapping[str, str],
    here: Mapping[str, object],
    notes: list[str],
    names_of_grid: Sequence[str] | None,
) -> dict[str, Any]:
    """The cells of rows, and the heads of their columns; a grid has no heads, and its images are files."""
    names = names_of_grid or opened.shown_names[:MOST_COLUMNS]
    until, missing, is_late = time.monotonic() + _SECONDS_OF_PICTURES, "", False
    shown_rows: list[dict[str, Any]] = []
    every: list[Cell] = []
    columns: dict[str, str] = {} if rows else {escaped(name): name for name in names}
    for number, values in rows:
        marks = marks_of(values, opened.classes)
        by_name = {}
        for name, value in values if names_of_grid else values[:MOST_COLUMNS]:
            cell = cell_of(name, value, opened.classes, _CELL)
            file = link("file", **place, row=number, name=name)
            if kind := sound_type(value):
                cell.text, cell.sound = f"play {kind}", file
            is_late = is_late or time.monotonic() >= until
            try:
                if names_of_grid:
                    cell.picture = f"{file}&side={GRID_SIDE}" if name == names[0] else None
                elif not is_late:
                    cell.picture = url_of(thumbnail(value, name, marks=marks))
            except ImportError as error:
                missing = str(error)
            columns[cell.column], by_name[cell.column] = name, cell
        every += by_name.values()
        shown_rows.append({"number": number, "link": link("row", **place, row=number), "by_name": by_name})
    if missing:
        notes.append(f"Images are not shown: {missing}.")
    if is_late:
        notes.append("Some images have no thumbnail, as they take long; open their row.")
    if names_of_grid:
        return {"heads": [], "rows": shown_rows, "columns": list(map(escaped, names))}
    cards, source = opened.cards
    if source:
        notes.append(source)
    right = {cell.column for cell in every if cell.is_number}
    right -= {cell.column for cell in every if not cell.is_number and cell.text != "None"}
    for cell in every:
        cell.is_number = cell.column in right
    heads = [
        _head(opened, name, cards.get(shown_name), here, shown_name in right, len(columns) <= _MOST_LINKED)
        for shown_name, name in list(columns.items())[:MOST_COLUMNS]
    ]
    return {"heads": heads, "rows": shown_rows, "columns": [head["name"] for head in heads]}


def _head(
    opened: OpenRef,
    name: str,
    card: ColumnCard | None,
    here: Mapping[str, object],
    is_number: bool,
    has_links: bool,
) -> dict[str, Any]:
    """The head of a column: what is known of it, and the link that sorts rows by it, or the other way."""
    order = here["order"] or "ascending" if name == here["sort"] else ""
    following = {"ascending": "descending", "descending": None, "": None}[str(order)]
    after = {"sort": None if order == "descending" else name, "order": following}
    return {
        "name": escaped(name),
        "card": card,
        "facts": "" if card is None else card.facts(is_number),
        "order": order,
        "link": link("rows", **{**here, **after}) if name in opened.sortable else None,
        "is_number": is_number,
        "bars": _bars(opened, name, card, here) if card is not None and has_links else [],
        "counts": [] if card is None else _counts(name, card, here),
    }


def _bars(
    opened: OpenRef, name: str, card: ColumnCard, here: Mapping[str, object]
) -> list[tuple[Bar, str, str]]:
    """The bars of a histogram of numbers: each with what it says, and a link to its rows."""
    column = opened.columns.get(name)
    if column is None or column.kind not in ("int", "float", "numpy") or column.shape != ():
        return []
    found = []
    bars = () if card.histogram is None else card.histogram.bars
    for bar in bars:
        below = "<=" if bar is bars[-1] else "<"
        where = f"{_named(name)} >= {bar.low!r} and {_named(name)} {below} {bar.top!r}"
        said = f"{number_text(bar.low)} to {number_text(bar.top)}: {bar.num_values:,}"
        found.append((bar, said, link("rows", **{**here, "where": where})))
    return found


def _counts(name: str, card: ColumnCard, here: Mapping[str, object]) -> list[dict[str, Any]]:
    """The values of a column of classes, texts or bools, each with a link to its rows."""
    return [
        {
            "name": text,
            "share": f"{part:.4g}",
            "percent": f"{part:.0%}",
            "link": link("rows", **{**here, "where": f"{_named(name)} = {_literal(value)}"}),
        }
        for text, part, value in card.counts
    ]


def _named(name: str) -> str:
    """A column as a filter has it."""
    return name if re.fullmatch(r"\w+", name) else f'"{name}"'


def _literal(value: object) -> str:
    text = str(value)
    return (
        text
        if not isinstance(value, str) or re.fullmatch(r"\w+", text)
        else '"' + text.replace('"', '""') + '"'
    )


# -- the grid


def _grid(opened: OpenRef, values: Mapping[str, str]) -> dict[str, Any] | None:
    """How images are laid out; None for a table.

    Raises:
        Refused: there is no such image.
    """
    image = values.get("image")
    if not image:
        return None
    if image not in opened.images:
        some = ", ".join(map(escaped, opened.images))[:400]
        raise Refused(
            404, f"{escaped(image)!r:.200} holds no images that can be shown; {some or 'no column'} does"
        )
    under = [name for name in opened.classes if name in opened.sortable]
    under += [name for name in opened.shown_names if name in opened.sortable and name not in under]
    under = under[:_MOST_UNDER_IMAGES]
    return {"side": GRID_SIDE, "image": image, "under": under}


def _layouts(
    opened: OpenRef, grid: Mapping[str, Any] | None, here: Mapping[str, object]
) -> list[tuple[str, str | None]]:
    """The ways to look at these rows: a link to each but the present one."""
    if not opened.images:
        return []
    shown_now = grid and grid["image"]
    ways = [
        ("table", None),
        *((f"images of {escaped(name)}", name) for name in opened.images[:_MOST_LAYOUTS]),
    ]
    return [
        (text, link("rows", **{**here, "image": name}) if name != shown_now else None) for text, name in ways
    ]
