"""A request -> a page of HTML, or the file of an image or sound."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
from markupsafe import Markup

from ...errors import CorruptError, NotFoundError, RemoteError
from ...process.texts import bytes_text, number
from ...reading.version_ref import VersionColumns, VersionRef
from ..cells.picture import thumbnail, url_of
from ..cells.text import shown, visible
from ..report.page import style, templates
from .filter import Filter
from .rows import MOST_LOOKED, Excerpt, Hits, Media, Values, found_from, media_of, names_of, part_of, row_of
from .shelf import OpenRef, Shelf

__all__ = ["Answer", "HTML", "link", "MOST_COLUMNS", "Pages", "parameters", "Refused", "STYLE"]

_HERE = "torchyoga.tools.view"
MOST_COLUMNS = 200  # in the table of rows
_MOST_IDS, _MOST_VERSIONS, _MOST_LOG = 50, 20, 200
_MOST_ROWS, _MOST_CELLS = 50, 2000
_CELL = 120
_MOST_VALUES, _MOST_TEXT, _LEAST_TEXT = 5000, 1_000_000, 120  # of a row in full
_MOST_OF_VALUE = 4000
_SECONDS_OF_PICTURES = 4.0
_MOST_NAMED = 200
HTML = "text/html; charset=utf-8"
_MOST_FIELDS = 16
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Answer:
    """The answer to a request: the status, the media type, and the bytes."""

    status: int
    type: str
    body: bytes


@dataclass(frozen=True)
class _Cell:
    """A value in the table of rows: its text, a thumbnail, where it is shown in full."""

    column: str
    text: str
    picture: str | None
    is_number: bool
    link: str


@dataclass(frozen=True)
class _Value:
    """A value of a row in full, as far as it fits: its name, and where the rest is."""

    column: str
    part: Excerpt
    media: Media | None
    link: str
    file: str


class Pages:
    """The pages about a storage or a dataset."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._pages: dict[str, Callable[[Mapping[str, str]], Answer]] = {
            "": self._start,
            "versions": self._versions,
            "rows": self._rows,
            "row": self._row,
            "value": self._value,
            "file": self._file,
        }

    def answer(self, page: str, values: Mapping[str, str]) -> Answer:
        """The page of this name, or one that says why there is none."""
        try:
            if page not in self._pages:
                raise Refused(404, "there is no such page; go back to the start")
            return self._pages[page](values)
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

    def refused(self, error: Refused) -> Answer:
        """A page that says why a request is not answered as asked."""
        return self._problem(error.status, str(error), {})

    def _problem(self, status: int, text: str, values: Mapping[str, str]) -> Answer:
        titles = {400: "That cannot be shown", 404: "Not here"}
        id, version = values.get("id"), values.get("version")
        trail = [] if id is None or self._shelf.storage is None else [(link("versions", id=id), visible(id))]
        if trail and version is not None:
            trail.append((link("rows", id=id, version=version), visible(version)))
        return self._page(
            "problem.html.jinja",
            status,
            title=titles.get(status, "It cannot be read"),
            text=shown(text, 2000),
            trail=trail,
        )

    def _page(self, template: str, /, status: int = 200, **values: Any) -> Answer:
        page = templates(_HERE).get_template(template)
        text = page.render(css=STYLE, place=shown(self._shelf.name, 200), **values)
        # Halves of characters, which JSON may hold, cannot be written.
        return Answer(status, HTML, text.encode("utf-8", "backslashreplace"))

    def _start(self, values: Mapping[str, str]) -> Answer:
        if self._shelf.storage is None:
            return self._rows(values)
        start = _number_in(values, "start", 0)
        ids = list(self._shelf.ids().items())
        some = self._shelf.datasets(ids[start : start + _MOST_IDS])
        return self._page(
            "start.html.jinja",
            datasets=[
                {
                    "id": visible(one.id),
                    "link": link("versions", id=one.id),
                    "versions": [
                        (visible(name), link("rows", id=one.id, version=name))
                        for name in list(one.versions)[-_MOST_VERSIONS:]
                    ],
                    "others": max(0, len(one.versions) - _MOST_VERSIONS),
                    "tags": [
                        (visible(tag), visible(version), link("rows", id=one.id, version=version))
                        for tag, version in list(one.tags.items())[:_MOST_VERSIONS]
                    ],
                    "problem": shown(one.problem, 300),
                }
                for one in some
            ],
            total=len(ids),
            start=start,
            before=None if not start else link("", start=max(0, start - _MOST_IDS)),
            after=link("", start=start + _MOST_IDS) if start + _MOST_IDS < len(ids) else None,
            trail=[],
        )

    def _versions(self, values: Mapping[str, str]) -> Answer:
        if self._shelf.storage is None:
            raise Refused(404, "there is one dataset; go back to the start")
        id = _name(values, "id")
        entries, left_out = self._shelf.log(id, _MOST_LOG)
        return self._page(
            "versions.html.jinja",
            id=visible(id),
            versions=[
                {
                    "version": visible(one.version),
                    "link": link("rows", id=id, version=one.version),
                    "tags": [visible(tag) for tag in one.tags],
                    "rows": number(one.rows),
                    "size": "" if one.nbytes is None else bytes_text(one.nbytes),
                    "made": shown(one.created.replace("T", " ").removesuffix("Z"), 40),
                    "who": shown(one.who or "", 60),
                    "message": shown(one.message or "", 200),
                    "problem": shown(one.problem or "", 300),
                }
                for one in entries
            ],
            left_out=left_out,
            trail=[],
        )

    def _rows(self, values: Mapping[str, str]) -> Answer:
        kept, place = self._opened(values)
        start, text = _number_in(values, "start", 0), values.get("where", "").strip()
        total = len(kept.ref)
        if start and start >= total:
            raise Refused(404, f"there is no row {start:,}: there are {total:,}")
        names = names_of(kept.ref, kept.held) if total else []
        condition, problem = None, ""
        if text and total:
            try:
                condition = Filter.of(text, kept.ref.schema, kept.ref.info, names)
            except ValueError as error:
                problem = str(error)
        most = max(1, min(_MOST_ROWS, _MOST_CELLS // max(1, min(len(names), MOST_COLUMNS))))
        found = Hits((), start, start)
        if not problem:
            found = found_from(kept.ref, start, most, condition, kept.first, kept.held)
        rows, columns, notes = self._cells(found, place)
        if kept.total > len(columns) or len(names) > MOST_COLUMNS:
            notes.append(f"The first {len(columns)} of {max(kept.total, len(names)):,} columns.")
        if condition is not None and kept.is_remote:
            notes.append("Files are downloaded as their rows are looked at.")
        here: dict[str, Any] = {**place, "where": text or None}
        going_on = not problem and found.stop < total
        is_numbered = condition is None and not problem
        last = (total - 1) // most * most if total else 0
        return self._page(
            "rows.html.jinja",
            **self._about(kept, values),
            rows=rows,
            columns=columns,
            right={cell.column for row in rows[:1] for cell in row["cells"] if cell.is_number},
            names=[visible(name) for name in names[:_MOST_NAMED]],
            where=visible(text),
            problem=problem,
            notes=notes,
            looked=found.stop - found.start if condition is not None else None,
            most_looked=MOST_LOOKED,
            found=found,
            total=total,
            before=link("rows", **here, start=max(0, start - most)) if is_numbered and start else None,
            first=link("rows", **here) if start else None,
            after=link("rows", **here, start=found.stop) if going_on else None,
            last=link("rows", **here, start=last) if is_numbered and going_on else None,
            everything=link("rows", **place) if text else None,
            hidden=place,
        )

    def _cells(
        self, found: Hits, place: Mapping[str, str]
    ) -> tuple[list[dict[str, Any]], list[str], list[str]]:
        """The rows of the table, the names of its columns, and what is not shown and why."""
        until, missing, is_late = time.monotonic() + _SECONDS_OF_PICTURES, "", False
        rows: list[dict[str, Any]] = []
        columns: dict[str, None] = {}
        for row_number, values in found.rows:
            cells = []
            for place_of, (name, value) in enumerate(values[:MOST_COLUMNS]):
                picture = None
                if time.monotonic() < until:
                    try:
                        picture = url_of(thumbnail(value, name))
                    except ImportError as error:
                        missing = str(error)
                else:
                    is_late = True
                is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
                where = link("value", **place, row=row_number, column=place_of)
                cells.append(_Cell(visible(name), shown(value, _CELL), picture, is_number, where))
            columns |= dict.fromkeys(cell.column for cell in cells)
            by_name = {cell.column: cell for cell in cells}
            where = link("row", **place, row=row_number)
            rows.append({"number": row_number, "link": where, "cells": cells, "by_name": by_name})
        notes = [f"Images are not shown: {missing}."] if missing else []
        notes += ["Some images have no thumbnail, as they take long; open their row."] if is_late else []
        return rows, list(columns)[:MOST_COLUMNS], notes

    def _row(self, values: Mapping[str, str]) -> Answer:
        kept, place = self._opened(values)
        at = self._row_number(kept, values)
        found = row_of(kept.ref, at, kept.held)
        most = max(_LEAST_TEXT, min(_MOST_OF_VALUE, _MOST_TEXT // max(1, len(found))))
        shown_values = []
        for place_of, (name, value) in enumerate(found[:_MOST_VALUES]):
            media = _media(value, name) if place_of < MOST_COLUMNS else None
            names = {**place, "row": at, "column": place_of}
            part = part_of(value, 0, most)
            shown_values.append(
                _Value(visible(name), part, media, link("value", **names), link("file", **names))
            )
        return self._page(
            "row.html.jinja",
            **self._about(kept, values),
            row=at,
            total=len(kept.ref),
            values=shown_values,
            left_out=len(found) - len(shown_values),
            before=link("row", **place, row=at - 1) if at else None,
            after=link("row", **place, row=at + 1) if at + 1 < len(kept.ref) else None,
            rows=link("rows", **place, start=at or None),
        )

    def _value(self, values: Mapping[str, str]) -> Answer:
        kept, place = self._opened(values)
        at, column, start = self._row_number(kept, values), _number_in(values, "column"), 0
        start = _number_in(values, "start", 0)
        name, value = _chosen(row_of(kept.ref, at, kept.held), at, column)
        part = part_of(value, start)
        if start and start >= part.total:
            raise Refused(404, f"there is nothing at {start:,}: it has {part.total:,} {part.unit}")
        names: dict[str, Any] = {**place, "row": at, "column": column}
        step = max(1, part.stop - part.start)
        return self._page(
            "value.html.jinja",
            **self._about(kept, values),
            row=at,
            row_link=link("row", **place, row=at),
            name=visible(name),
            part=part,
            media=_media(value, name),
            file=link("file", **names),
            before=link("value", **names, start=max(0, start - step)) if start else None,
            after=link("value", **names, start=part.stop) if part.stop < part.total else None,
            neighbours=[
                (text, link("value", **{**names, "row": one}))
                for text, one in (("Row before", at - 1), ("Next row", at + 1))
                if 0 <= one < len(kept.ref)
            ],
        )

    def _file(self, values: Mapping[str, str]) -> Answer:
        kept, _ = self._opened(values)
        at, column = self._row_number(kept, values), _number_in(values, "column")
        name, value = _chosen(row_of(kept.ref, at, kept.held), at, column)
        media = media_of(value, name)
        if media is None:
            raise Refused(404, f"{visible(name)!r:.200} of row {at:,} is neither an image nor sound")
        return Answer(200, media.type, media.data)

    def _opened(self, values: Mapping[str, str]) -> tuple[OpenRef, dict[str, str]]:
        if self._shelf.storage is None:
            return self._shelf.opened(None, None), {}
        id, version = _name(values, "id"), _name(values, "version")
        return self._shelf.opened(id, version), {"id": id, "version": version}

    def _row_number(self, kept: OpenRef, values: Mapping[str, str]) -> int:
        at = _number_in(values, "row")
        if at >= len(kept.ref):
            raise Refused(404, f"there is no row {at:,}: there are {len(kept.ref):,}")
        return at

    def _about(self, kept: OpenRef, values: Mapping[str, str]) -> dict[str, Any]:
        """The title of a dataset, what is known of it, and what leads to it."""
        id, version = values.get("id"), values.get("version")
        ref = kept.first
        columns = kept.total
        facts = [f"{len(ref):,} {'row' if len(ref) == 1 else 'rows'}"]
        if columns:
            facts.append(f"{columns:,} {'column' if columns == 1 else 'columns'}")
        if isinstance(ref, (VersionRef, VersionColumns)):
            facts.append(bytes_text(ref.manifest.nbytes))
        if self._shelf.storage is None or id is None or version is None:
            return {"title": shown(self._shelf.name, 200), "facts": facts, "trail": [], "home": link("rows")}
        home = link("rows", id=id, version=version)
        return {
            "title": f"{visible(id)} {visible(version)}",
            "facts": facts,
            "trail": [(link("versions", id=id), visible(id))],
            "home": home,
        }


def _name(values: Mapping[str, str], what: str) -> str:
    if not values.get(what):
        raise Refused(400, f"the address names no {what}; go back to the start")
    return values[what]


def _chosen(row: Values, at: int, column: int) -> tuple[str, object]:
    if column >= len(row):
        raise Refused(404, f"row {at:,} has {len(row):,} values, and none of number {column:,}")
    return row[column]


def _media(value: object, name: str) -> Media | None:
    try:
        return media_of(value, name)
    except ImportError:  # then it is shown as what it is besides
        return None


# The sheet of the report, and what these pages need besides.
STYLE = Markup(f"{style()}\n{style('view.css', _HERE)}")


class Refused(Exception):
    """A request that is not answered as asked: the status, and what to say."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def link(page: str, **values: object) -> str:
    """The address of a page, seen from any other page.

    What it is about stands behind the question mark, where browsers change nothing: in a path they would
    resolve an id such as `..`, also if it is escaped.

    Example:
        >>> link("rows", id="a/b", version="..", start=None)
        'rows?id=a%2Fb&version=..'
    """
    fields = {name: str(value) for name, value in values.items() if value is not None}
    return f"{page or './'}?{urlencode(fields)}" if fields else page or "./"


def parameters(query: str) -> dict[str, str]:
    """The parameters behind the question mark, by name.

    Raises:
        Refused: it is not what `link` writes.
    """
    try:
        fields = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS, strict_parsing=False
        )
    except ValueError:
        raise Refused(400, "the address is not one of this server; go back to the start") from None
    return dict(fields)


def _number_in(values: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A number of at least 0.

    Raises:
        Refused: there is none, or something else.
    """
    text = values.get(name, "")
    if not text and default is not None:
        return default
    if not _NUMBER.fullmatch(text):
        raise Refused(400, f"{name} must be a number from 0 on, of at most 18 digits; found {text[:40]!r}")
    return int(text)
