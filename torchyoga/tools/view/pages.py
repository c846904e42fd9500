"""A request -> a page of HTML, or the file of an image or sound."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

from markupsafe import Markup

from ...errors import CorruptError, NotFoundError, RemoteError
from ...process.messages import bytes_text, count_of, escaped
from ...reading.version_ref import VersionRef
from ...storage import Storage
from ..cells.marks import Marks, marks_of
from ..cells.text import shown
from ..report.page import LOG_TITLES, REPORT, style, templates
from .answer import HTML, TEXT, Answer, Refused, link, name_in, number_in, parameters
from .rows import LARGEST_SIDE, Media, excerpt_of, media_of, row_of
from .shelf import OpenRef, Shelf
from .table import rows_page

_HERE = "torchyoga.tools.view"
_MOST_IDS, _MOST_VERSIONS, _MOST_LOG = 1000, 20, 200
_SECONDS_OF_START = 1.5  # for what is known of the newest versions
_MOST_VALUES, _MOST_TEXT, _LEAST_TEXT = 500, 1_000_000, 120  # of a row in full, on a page
_MOST_OF_VALUE, _MOST_OF_FILE = 4000, 2_000_000
_SECONDS_OF_MEDIA = 4.0


class Pages:
    """The pages about a storage or a dataset."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._pages = {"": self._start, "versions": self._versions}
        self._of_dataset = {
            "rows": self._rows,
            "row": self._row,
            "file": self._file,
        }

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
        id, version = values.get("id"), values.get("version")
        trail = [] if id is None or self._shelf.storage is None else [(link("versions", id=id), escaped(id))]
        if trail and version is not None:
            trail.append((link("rows", id=id, version=version), escaped(version)))
        return self._page(
            "problem.html.jinja",
            status,
            title=titles.get(status, "It cannot be read"),
            text=shown(text, 2000),
            trail=trail,
        )

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
        until = time.monotonic() + _SECONDS_OF_START
        return self._page(
            "start.html.jinja",
            datasets=[
                {
                    "id": escaped(id),
                    "newest": dict(zip(*_newest(storage, id), strict=True))
                    if time.monotonic() < until
                    else {},
                    "link": link("versions", id=id),
                    "versions": [
                        (escaped(name), link("rows", id=id, version=name))
                        for name in versions[-_MOST_VERSIONS:]
                    ],
                    "others": max(0, len(versions) - _MOST_VERSIONS),
                }
                for id, versions in islice(found.items(), _MOST_IDS)
            ],
            total=len(found),
            trail=[],
        )

    def _versions(self, values: Mapping[str, str]) -> Answer:
        if self._shelf.storage is None:
            raise Refused(404, "there is one dataset; go back to the start")
        id = name_in(values, "id")
        log = self._shelf.storage.log(id, _MOST_LOG)
        titles, cells = log.table(LOG_TITLES)
        links = [link("rows", id=id, version=one.version) for one in log]
        return self._page(
            "versions.html.jinja",
            id=escaped(id),
            titles=titles,
            cells=cells,
            links=links,
            left_out=log.left_out,
            trail=[],
        )

    def _rows(self, kept: OpenRef, place: Mapping[str, str], values: Mapping[str, str]) -> Answer:
        page = {**self._about(kept, values), **rows_page(kept, place, values)}
        return self._page("rows.html.jinja", **page)

    def _row(self, kept: OpenRef, place: Mapping[str, str], values: Mapping[str, str]) -> Answer:
        at = self._row_number(kept, values)
        found = row_of(kept.only(kept.ref, kept.shown_names[:_MOST_VALUES]), at)[:_MOST_VALUES]
        most = max(_LEAST_TEXT, min(_MOST_OF_VALUE, _MOST_TEXT // max(1, len(found))))
        until, marks = time.monotonic() + _SECONDS_OF_MEDIA, marks_of(found, kept.classes)
        shown_values = []
        for name, value in found:
            file = link("file", **place, row=at, name=name)
            media = _media(value, name) if time.monotonic() < until else None
            is_marked = marks is not None and media is not None and media.is_image
            shown_values.append(
                {
                    "column": escaped(name),
                    "excerpt": excerpt_of(value, most),
                    "named": kept.class_of(name, value),
                    "media": media,
                    "file": file,
                    "picture": f"{file}&side={LARGEST_SIDE}" if is_marked else file,
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

    def _file(self, kept: OpenRef, place: Mapping[str, str], values: Mapping[str, str]) -> Answer:
        """An image, with the marks of its row on it if a side is asked for; sound; or a value as text."""
        at, name = self._row_number(kept, values), name_in(values, "name")
        side = min(LARGEST_SIDE, max(1, number_in(values, "side", 0))) if values.get("side") else None
        names = [name, *(kept.mark_names if side else [])]
        row = list(reversed(kept.values(at, names)))  # of names that come twice, the first one counts
        if name not in dict(row):
            raise Refused(404, f"row {at:,} has no value {escaped(name)!r:.200}")
        value = dict(row)[name]
        media = _media(value, name, side, marks_of(row, kept.classes) if side else None)
        if media is not None:
            return Answer(200, media.type, media.data)
        if side:
            raise Refused(404, f"{escaped(name)!r:.200} of row {at:,} is not an image")
        found = excerpt_of(value, _MOST_OF_FILE)
        cut = [f"... {found.shown:,} of {found.total:,} {found.unit}"] if found.shown < found.total else []
        text = "\n".join([*found.lines, *cut])
        return Answer(200, TEXT, text.encode("utf-8", "backslashreplace"))

    def _opened(self, values: Mapping[str, str]) -> tuple[OpenRef, dict[str, str]]:
        if self._shelf.storage is None:
            return self._shelf.opened(None, None), {}
        id, version = name_in(values, "id"), name_in(values, "version")
        return self._shelf.opened(id, version), {"id": id, "version": version}

    def _row_number(self, kept: OpenRef, values: Mapping[str, str]) -> int:
        at = number_in(values, "row")
        if at >= len(kept.ref):
            raise Refused(404, f"there is no row {at:,}: there are {len(kept.ref):,}")
        return at

    def _about(self, kept: OpenRef, values: Mapping[str, str]) -> dict[str, Any]:
        """The title of a dataset, what is known of it, and what leads to it."""
        id, version = values.get("id"), values.get("version")
        ref, columns = kept.whole, len(kept.names)
        facts = [count_of(len(ref), "row"), *([count_of(columns, "column")] if columns else [])]
        if isinstance(ref, VersionRef):
            facts.append(bytes_text(ref.manifest.nbytes))
        title, trail = shown(self._shelf.name, 200), []
        if id is not None and version is not None and self._shelf.storage is not None:
            title, trail = f"{escaped(id)} {escaped(version)}", [(link("versions", id=id), escaped(id))]
        return {"title": title, "facts": facts, "trail": trail, "home": link("rows", id=id, version=version)}


def _media(value: object, name: str, side: int | None = None, marks: Marks | None = None) -> Media | None:
    try:
        return media_of(value, name, side, marks)
    except ImportError:  # then it is shown as what it is besides
        return None


def _newest(storage: Storage, id: str) -> tuple[list[str], list[str]]:
    """The titles and cells of the newest version of an id."""
    titles, (cells, *_) = storage.log(id, 1).table(LOG_TITLES)
    return titles, cells


# The sheet of the report, and what these pages need besides.
STYLE = Markup(f"{style()}\n{style('view.css', _HERE)}")
