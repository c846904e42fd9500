"""A request -> a page of HTML, or the file of an image or sound."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from markupsafe import Markup

from ...errors import CorruptError, NotFoundError, RemoteError
from ...process.messages import bytes_text, count_of, escaped
from ...process.messages import number as number_text
from ...reading.version_ref import VersionRef
from ...storage import Storage
from ..cells.flat import Values
from ..cells.picture import marks_of, url_of
from ..cells.text import named_class, shown
from ..report.facts import Bar, Cell, ColumnCard, cell_of
from ..report.page import REPORT, style, templates
from . import shelf
from .answer import HTML, TEXT, Answer, Refused, link, name_in, number_in, parameters
from .filter import Filter

_HERE = "torchyoga.tools.view"
_MOST_IDS, _MOST_VERSIONS, _MOST_LOG = 1000, 20, 200
_LOG_TITLES = ("version", "made from", "rows", "new rows", "size", "made", "by", "tags", "code", "message")
_SECONDS_OF_START = 1.5  # for what is known of the newest versions
_MOST_VALUES, _MOST_TEXT, _LEAST_TEXT = 500, 1_000_000, 120  # of a row in full, on a page
_MOST_OF_VALUE, _MOST_OF_FILE = 4000, 2_000_000
# The sheet of the report, and what these pages need besides.
STYLE = Markup(f"{style()}\n{style('view.css', _HERE)}")
_CELL = 120  # characters
_MOST_ROWS, _MOST_CELLS = 50, 2000
_SECONDS_OF_PICTURES = 4.0  # for all images of a page
_MOST_LINKED = 24  # columns whose bars are links


class Pages:
    """The pages about a storage or a dataset."""

    def __init__(self, of: shelf.Shelf) -> None:
        self._shelf = of
        self._pages = {"": self._start, "versions": self._versions}
        self._of_dataset = {"rows": self._rows, "row": self._row, "file": self._file}

    def answer(self, page: str, query: str) -> Answer:
        """The page of this name, or one that says why there is none."""
        values: Mapping[str, str] = {}
        try:
            values = parameters(query)
            if page == "" and self._shelf.storage is None:
                page = "rows"
            if page in self._pages:
                return self._pages[page](values)
            if page not in self._of_dataset:
                raise Refused(404, "there is no such page; go back to the start")
            kept, place = self._opened(values)
            with kept.lock:
                return self._of_dataset[page](kept, place, values)
        except Refused as error:
            return self._problem(error.status, str(error), values)
        except NotFoundError as error:
            return self._problem(404, str(error), values)
        except CorruptError as error:
            return self._problem(500, f"It is damaged: {error}", values)
        except RemoteError as error:
            return self._problem(502, str(error), values)
        except Exception as error:  # of any kind: a dataset may be a user's own, and others are still shown
            return self._problem(500, f"{type(error).__name__}: {error}", values)

    def _problem(self, status: int, text: str, values: Mapping[str, str]) -> Answer:
        titles = {400: "That cannot be shown", 404: "Not here"}
        return self._page(
            "problem.html.jinja",
            status,
            title=titles.get(status, "It cannot be read"),
            text=shown(text, 2000),
            trail=self._trail(values),
        )

    def _trail(self, values: Mapping[str, str]) -> list[tuple[str, str]]:
        """Links to the dataset and the version of an address, with their names; none without a storage."""
        id, version = values.get("id"), values.get("version")
        if id is None or self._shelf.storage is None:
            return []
        trail = [(link("versions", id=id), escaped(id))]
        if version is not None:
            trail.append((link("rows", id=id, version=version), escaped(version)))
        return trail

    def _page(self, template: str, /, status: int = 200, **values: Any) -> Answer:
        page = templates(_HERE, REPORT).get_template(template)
        text = page.render(css=STYLE, place=shown(self._shelf.name, 200), **values)
        # Halves of characters, which JSON may hold, cannot be written.
        return Answer(status, HTML, text.encode("utf-8", "backslashreplace"))

    def _start(self, values: Mapping[str, str]) -> Answer:
        storage, found = self._shelf.storage, dict[str, list[str]]()
        assert storage is not None, "else there is one dataset"
        for id, version in storage.list():
            found.setdefault(id, []).append(version)
        until, datasets = time.monotonic() + _SECONDS_OF_START, list[dict[str, Any]]()
        for id, versions in islice(found.items(), _MOST_IDS):
            recent = versions[-_MOST_VERSIONS:]
            links = [(escaped(name), link("rows", id=id, version=name)) for name in recent]
            others = len(versions) - len(recent)
            newest = _newest(storage, id) if time.monotonic() < until else {}
            one = {"id": escaped(id), "link": link("versions", id=id), "versions": links}
            datasets.append({**one, "others": others, "newest": newest})
        return self._page("start.html.jinja", datasets=datasets, total=len(found))

    def _versions(self, values: Mapping[str, str]) -> Answer:
        if self._shelf.storage is None:
            raise Refused(404, "there is one dataset; go back to the start")
        id = name_in(values, "id")
        log = self._shelf.storage.log(id, _MOST_LOG)
        titles, cells = log.table(_LOG_TITLES)
        links = [link("rows", id=id, version=one.version) for one in log]
        return self._page(
            "versions.html.jinja",
            id=escaped(id),
            titles=titles,
            cells=cells,
            links=links,
            left_out=log.left_out,
        )

    def _rows(self, kept: shelf.OpenRef, place: Mapping[str, str], values: Mapping[str, str]) -> Answer:
        """The page of rows: a table, or a grid of their images.

        Args:
            kept: the dataset.
            place: its parameters in addresses.
            values: the parameters of the address.

        Raises:
            Refused: there is no such row or column, or rows cannot be sorted so.
        """
        total, names = len(kept.ref), kept.shown_names
        where, sort = values.get("where", "").strip(), values.get("sort", "")
        is_descending = bool(sort) and values.get("order") == "descending"
        start = number_in(values, "start", 0)
        if start and start >= total:
            raise Refused(404, f"there is no row {start:,}: there are {total:,}")
        is_grid = values.get("layout") == "grid"
        most = max(1, min(_MOST_ROWS, _MOST_CELLS // max(1, min(len(names), shelf.MOST_COLUMNS))))
        seed = number_in(values, "draw", 0) if "draw" in values else None
        ordered = kept.sorted(sort, is_descending) if sort else None
        hits, problem, condition = shelf.Hits((), start, start), "", None
        try:
            condition = Filter.of(where, kept.ref.schema, kept.ref.info) if where and total else None
        except ValueError as error:
            problem = str(error)
        else:
            ref = ordered or kept.ref
            cut = kept.only(ref, names[: shelf.MOST_COLUMNS])
            hits = shelf.rows_from(ref, cut, start, most, condition, seed)
        numbers = np.array([at for at, _ in hits.rows], np.int64)
        numbers = numbers if ordered is None else ordered.rows_at(numbers)
        numbered = [(number, row) for number, (_, row) in zip(numbers.tolist(), hits.rows, strict=True)]
        here = {
            **place,
            "where": where or None,
            "sort": sort or None,
            "order": "descending" if is_descending else None,
            "layout": "grid" if is_grid else None,
        }
        notes: list[str] = []
        if len(names) > shelf.MOST_COLUMNS:
            notes.append(
                f"The first {shelf.MOST_COLUMNS} of {len(names):,} columns; "
                "view(ref.columns([...])) shows others."
            )
        if condition is not None and kept.is_remote:
            notes.append("Files are downloaded as their rows are looked at.")
        is_drawn = seed is not None and condition is None
        is_numbered = condition is None and not is_drawn and not problem
        going_on = not problem and not is_drawn and hits.stop < total
        last = (total - 1) // most * most if total else 0
        return self._page(
            "rows.html.jinja",
            **self._about(kept, values),
            **_table(kept, numbered, place, here, notes),
            is_grid=is_grid,
            names=[escaped(name) for name in names[: shelf.MOST_COLUMNS]],
            where=escaped(where),
            sort=escaped(sort),
            is_descending=is_descending,
            problem=problem,
            notes=notes,
            looked=hits.stop - hits.start if condition is not None else None,
            hits=hits,
            total=total,
            is_drawn=is_drawn,
            before=link("rows", **here, start=max(0, start - most)) if is_numbered and start else None,
            begin=link("rows", **here) if start else None,
            after=link("rows", **here, start=hits.stop) if going_on else None,
            last=link("rows", **here, start=last) if is_numbered and going_on else None,
            random=link("rows", **here, draw=secrets.randbelow(10**9)) if total > most else None,
            everything=link("rows", **{**here, "where": None}) if where else None,
            unsorted=link("rows", **{**here, "sort": None, "order": None}) if sort else None,
            layout=link("rows", **{**here, "layout": None if is_grid else "grid", "start": start or None}),
            hidden={name: value for name, value in here.items() if value is not None and name != "where"},
        )

    def _row(self, kept: shelf.OpenRef, place: Mapping[str, str], values: Mapping[str, str]) -> Answer:
        at = self._row_number(kept, values)
        found = shelf.row_of(kept.only(kept.ref, kept.shown_names[:_MOST_VALUES]), at)[:_MOST_VALUES]
        most = max(_LEAST_TEXT, min(_MOST_OF_VALUE, _MOST_TEXT // max(1, len(found))))
        until, marks = time.monotonic() + _SECONDS_OF_PICTURES, marks_of(found, kept.classes)
        shown_values = []
        for name, value in found:
            file = link("file", **place, row=at, name=name)
            media = shelf.media_of(value, name) if time.monotonic() < until else None
            is_marked = marks is not None and media is not None and media.is_image
            shown_values.append(
                {
                    "column": escaped(name),
                    "excerpt": shelf.excerpt_of(value, most),
                    "named": named_class(kept.classes.get(name, ()), value),
                    "media": media,
                    "file": file,
                    "picture": f"{file}&side={shelf.LARGEST_SIDE}" if is_marked else file,
                }
            )
        return self._page(
            "row.html.jinja",
            **self._about(kept, values),
            row=at,
            total=len(kept.ref),
            values=shown_values,
            count=len(kept.names),
            before=link("row", **place, row=at - 1) if at else None,
            after=link("row", **place, row=at + 1) if at + 1 < len(kept.ref) else None,
            rows=link("rows", **place, start=at or None),
        )

    def _file(self, kept: shelf.OpenRef, place: Mapping[str, str], values: Mapping[str, str]) -> Answer:
        """An image, with the marks of its row on it if a side is asked for; sound; or a value as text."""
        at, name = self._row_number(kept, values), name_in(values, "name")
        side = min(shelf.LARGEST_SIDE, max(1, number_in(values, "side", 0))) if values.get("side") else None
        row = list(reversed(shelf.row_of(kept.ref, at)))  # of names that come twice, the first one counts
        if name not in dict(row):
            raise Refused(404, f"row {at:,} has no value {escaped(name)!r:.200}")
        value = dict(row)[name]
        media = shelf.media_of(value, name, side, marks_of(row, kept.classes) if side else None)
        if media is not None:
            return Answer(200, media.type, media.data)
        if side:
            raise Refused(404, f"{escaped(name)!r:.200} of row {at:,} is not an image")
        found = shelf.excerpt_of(value, _MOST_OF_FILE)
        cut = [f"... {found.shown:,} of {found.total:,} {found.unit}"] if found.shown < found.total else []
        text = "\n".join([*found.lines, *cut])
        return Answer(200, TEXT, text.encode("utf-8", "backslashreplace"))

    def _opened(self, values: Mapping[str, str]) -> tuple[shelf.OpenRef, dict[str, str]]:
        if self._shelf.storage is None:
            return self._shelf.opened(None, None), {}
        id, version = name_in(values, "id"), name_in(values, "version")
        return self._shelf.opened(id, version), {"id": id, "version": version}

    def _row_number(self, kept: shelf.OpenRef, values: Mapping[str, str]) -> int:
        at = number_in(values, "row")
        if at >= len(kept.ref):
            raise Refused(404, f"there is no row {at:,}: there are {len(kept.ref):,}")
        return at

    def _about(self, kept: shelf.OpenRef, values: Mapping[str, str]) -> dict[str, Any]:
        """The title of a dataset, what is known of it, and what leads to it."""
        ref, columns = kept.whole, len(kept.names)
        facts = [count_of(len(ref), "row"), *([count_of(columns, "column")] if columns else [])]
        if isinstance(ref, VersionRef):
            facts.append(bytes_text(ref.manifest.nbytes))
        trail = self._trail(values)
        title = " ".join(name for _, name in trail) or shown(self._shelf.name, 200)
        home = trail[-1][0] if trail else link("")
        return {"title": title, "facts": facts, "trail": trail[:1], "home": home}


def _newest(storage: Storage, id: str) -> dict[str, str]:
    """The entry of the newest version of an id in the log, by title."""
    titles, (cells, *_) = storage.log(id, 1).table(_LOG_TITLES)
    return dict(zip(titles, cells, strict=True))


# -- the table


def _table(
    opened: shelf.OpenRef,
    rows: Sequence[tuple[int, Values]],
    place: Mapping[str, str],
    here: Mapping[str, object],
    notes: list[str],
) -> dict[str, Any]:
    """The cells of rows, and the heads of their columns."""
    names = opened.shown_names[: shelf.MOST_COLUMNS]
    until, missing, is_late = time.monotonic() + _SECONDS_OF_PICTURES, "", False
    shown_rows: list[dict[str, Any]] = []
    every: list[Cell] = []
    columns: dict[str, str] = {} if rows else {escaped(name): name for name in names}
    for number, values in rows:
        marks = marks_of(values, opened.classes)
        by_name = {}
        for name, value in values[: shelf.MOST_COLUMNS]:
            cell = cell_of(name, value, opened.classes, _CELL)
            if kind := shelf.sound_type(value):
                cell.text, cell.sound = f"play {kind}", link("file", **place, row=number, name=name)
            is_late = is_late or time.monotonic() >= until
            try:
                if not is_late:
                    cell.picture = url_of(value, name, marks)
            except ImportError as error:
                missing = str(error)
            columns[cell.column], by_name[cell.column] = name, cell
        every += by_name.values()
        shown_rows.append({"number": number, "link": link("row", **place, row=number), "by_name": by_name})
    if missing:
        notes.append(f"Images are not shown: {missing}.")
    if is_late:
        notes.append("Some images have no thumbnail, as they take long; open their row.")
    cards, source = opened.cards
    if source:
        notes.append(source)
    right = {cell.column for cell in every if cell.is_number}
    right -= {cell.column for cell in every if not cell.is_number and cell.text != "None"}
    for cell in every:
        cell.is_number = cell.column in right
    unknown, has_links = ColumnCard(""), len(columns) <= _MOST_LINKED
    heads = [
        _head(opened, name, cards.get(shown_name, unknown), here, shown_name in right, has_links)
        for shown_name, name in list(columns.items())[: shelf.MOST_COLUMNS]
    ]
    return {
        "heads": heads,
        "rows": shown_rows,
        "columns": [head["name"] for head in heads],
        "has_pictures": any(cell.picture for cell in every),
    }


def _head(
    opened: shelf.OpenRef,
    name: str,
    card: ColumnCard,
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
        "facts": card.facts(is_number),
        "order": order,
        "link": link("rows", **{**here, **after}) if name in opened.sortable else None,
        "is_number": is_number,
        "bars": _bars(opened, name, card, here) if has_links else [],
        "counts": [
            (text, part, link("rows", **{**here, "where": f"{_named(name)} = {_literal(value)}"}))
            for text, part, value in card.counts
        ],
    }


def _bars(
    opened: shelf.OpenRef, name: str, card: ColumnCard, here: Mapping[str, object]
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


def _named(name: str) -> str:
    """A column as a filter has it."""
    return name if re.fullmatch(r"\w+", name) else f'"{name}"'


def _literal(value: object) -> str:
    if isinstance(value, str) and not re.fullmatch(r"\w+", value):
        return '"' + value.replace('"', '""') + '"'
    return str(value)
