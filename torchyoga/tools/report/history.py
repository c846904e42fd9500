"""A version -> its files, how it was made, and which versions there are beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import YogaError
from ...reading.version_ref import VersionColumns, VersionRef
from ...stores.history.log import VersionLog, log_of
from ...stores.refs import store_of
from ...versions.lineage import Lineage
from ...versions.manifest import FileEntry, Manifest
from ..cells.text import shown, visible
from .charts import segments
from .words import number, size

__all__ = ["FileRow", "Files", "History", "day", "history_of"]

_MOST_FILES, _MOST_VERSIONS, _MOST_BUILDERS = 50, 50, 50
_MOST_SEGMENTS = 200
_TITLES = ("version", "made from", "rows", "new rows", "size", "made", "by", "tags", "code", "message")
_MOST_SOURCE, _MOST_CELL = 16_000, 120


@dataclass(frozen=True)
class FileRow:
    """A file: its name, rows, bytes, the version that it is of, and when that was made."""

    name: str
    rows: str
    size: str
    of: str
    made: str


@dataclass(frozen=True)
class Files:
    """The files of a version.

    Attributes:
        rows: the first files; `others`: how many more there are.
        map: of SVG, in a box of 640 x 24: the files by their rows.
        said: in words.
    """

    rows: tuple[FileRow, ...]
    others: int
    map: str
    said: str


@dataclass(frozen=True)
class History:
    """What is known of how a version came about.

    Attributes:
        files: its files.
        lineage: by title, how it was made; `source`: the code, if it was kept; `packages`: by name.
        builder_titles: with whether each is of a number; `builders`: what each that wrote files has done.
        builds_note: who they are.
        titles: of the log; `log`: its cells, of the newest version first; `here`: the place of this version
            in it.
        log_note: what the log lacks.
    """

    files: Files
    lineage: dict[str, str]
    source: str
    packages: dict[str, str]
    builder_titles: tuple[tuple[str, bool], ...]
    builders: tuple[tuple[str, ...], ...]
    builds_note: str
    titles: tuple[str, ...]
    log: tuple[tuple[str, ...], ...]
    here: int | None
    log_note: str


def history_of(ref: VersionRef | VersionColumns) -> History:
    """What the manifest of a version says, and its neighbours in the store."""
    manifest = ref.manifest
    log, note = _log(ref)
    made = {} if log is None else {entry.version: entry.created for entry in log}
    lineage = Lineage.of(manifest.lineage)
    entries = () if log is None else tuple(log)[:_MOST_VERSIONS]
    here = [n for n, one in enumerate(entries) if one.version == manifest.version]
    if log is not None and log.left_out:
        note = f"And {log.left_out:,} older versions."
    source = lineage.source or ""
    cut = f"\n… {len(source) - _MOST_SOURCE:,} more characters" if len(source) > _MOST_SOURCE else ""
    cells = [one.cells() for one in entries]
    used = [n for n in range(len(_TITLES)) if any(row[n] for row in cells)]
    return History(
        _files(manifest, made),
        _lineage(manifest, lineage),
        "\n".join(visible(line) for line in source[:_MOST_SOURCE].splitlines()) + cut,
        {visible(name): visible(text) for name, text in sorted(lineage.packages.items())},
        *_builders(manifest.files, lineage),
        tuple(_TITLES[n] for n in used),
        tuple(tuple(row[n] for n in used) for row in cells),
        here[0] if here else None,
        note,
    )


def _log(ref: VersionRef | VersionColumns) -> tuple[VersionLog | None, str]:
    try:
        store = store_of(ref.location, ref.manifest)
        if store is None:
            return None, "The files do not lie in a storage, so there is no log."
        return log_of(store, ref.manifest.id, _MOST_VERSIONS), ""
    except (YogaError, OSError) as error:
        return None, f"The log cannot be read: {shown(str(error), 300)}"


def _files(manifest: Manifest, made: dict[str, str]) -> Files:
    rows = tuple(
        FileRow(
            visible(file.name),
            number(file.rows),
            size(file.nbytes),
            visible(file.of or manifest.version),
            day(made.get(file.of, "") if file.of else manifest.created),
        )
        for file in manifest.files[:_MOST_FILES]
    )
    found = manifest.files
    formats = ", ".join(sorted({file.format for file in found}))
    shared = sum(file.of is not None for file in found)
    deleted = sum(file.deleted.count for file in found if file.deleted is not None)
    said = [
        f"{len(found):,} {'file' if len(found) == 1 else 'files'} ({visible(formats)})"
        if found
        else "No files"
    ]
    said += [f"{size(manifest.nbytes)} in all"] if found else []
    if shared:
        said.append(f"{shared:,} of them shared with other versions")
    if deleted:
        said.append(f"{deleted:,} rows in them left out")
    sizes = [file.rows for file in found]
    if len(sizes) > _MOST_SEGMENTS:  # neighbours together
        step = -(-len(sizes) // _MOST_SEGMENTS)
        sizes = [sum(sizes[at : at + step]) for at in range(0, len(sizes), step)]
    return Files(rows, len(found) - len(rows), segments(sizes, 640, 24), ", ".join(said) + ".")


def day(created: str) -> str:
    """The time of a manifest as people read it."""
    return visible(created.replace("T", " ").removesuffix("Z"))[:40]


def _lineage(manifest: Manifest, lineage: Lineage) -> dict[str, str]:
    changed = {True: ", with changes", False: "", None: ""}[lineage.dirty]
    kept = {True: ", which come first here", False: ""}
    parents = [
        f"{shown(parent.version, 60)} ({parent.rows:,} rows{kept[parent.is_prefix]})"
        for parent in manifest.parents[-8:]
    ]
    found = {
        "message": lineage.message,
        "made": day(manifest.created),
        "function": lineage.function,
        "commit": None if lineage.commit is None else lineage.commit + changed,
        "user": lineage.user,
        "host": lineage.host,
        "seconds": None if lineage.seconds is None else number(lineage.seconds),
        "made from": ", ".join(parents),
        "build": manifest.build,
    }
    return {title: shown(text, 4 * _MOST_CELL) for title, text in found.items() if text}


def _builders(
    files: Sequence[FileEntry], lineage: Lineage
) -> tuple[tuple[tuple[str, bool], ...], tuple[tuple[str, ...], ...], str]:
    """Who built it: as the lineage says, else by the tokens that begin the names of files."""
    if lineage.builders:
        titles = (("builder", False), ("parts", True), ("rows", True), ("seconds", True))
        rows = tuple(
            (shown(one.name, _MOST_CELL), number(one.parts), number(one.rows), number(one.seconds))
            for one in lineage.builders[:_MOST_BUILDERS]
        )
        count, parts = len(lineage.builders), sum(one.parts for one in lineage.builders)
        others = f" The first {len(rows)} are shown." if count > len(rows) else ""
        return titles, rows, f"Built in {parts:,} parts by {_counted(count, 'process')}.{others}"
    found: dict[str, list[FileEntry]] = {}
    for file in files:
        found.setdefault(file.name.partition("-")[0], []).append(file)
    titles = (("build", False), ("files", True), ("rows", True), ("size", True))
    builds = tuple(
        (token, number(len(own)), number(sum(f.rows for f in own)), size(sum(f.nbytes for f in own)))
        for token, own in list(found.items())[:_MOST_BUILDERS]
    )
    others = f" The first {len(builds)} are shown." if len(found) > len(builds) else ""
    return titles, builds, f"{_counted(len(found), 'build')} wrote its files.{others}"


def _counted(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"
