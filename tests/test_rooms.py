"""The picture and the notes of docs/design.md, and the table of CONTRIBUTING.md, match the code."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import rooms
import test_house

import torchyoga

DESIGN = rooms.DOCS / "design.md"
# What the tools still import beside public names, by room; it may only become less.
BEHIND_THE_WALL = re.findall(
    r"[\w.]+",
    """
    coding.opened files.open_regular files.read_regular process.as_int
    process.begin_thread process.bytes_text process.count_of process.escaped process.in_columns
    process.cpu_delay process.number process.share process.short process.usable_cpus reading.VersionRef
    reading.in_epoch reading.title_of rows.Bars rows.Column rows.ColumnStats rows.HEAD rows.Ints
    rows.Node rows.Path rows.Projection rows.TITLES rows.TableStats rows.cells_of rows.format_of
    rows.path_name rows.readable_name rows.timezone_of storage.store_of stores.Objects stores.RIGHT
    stores.Store stores.TagEntry stores.VersionLog stores.cleaned stores.directory_of stores.freed
    stores.is_url stores.log_of stores.moves_of stores.newest stores.opened stores.refuse_tagged
    stores.removed stores.store_of stores.tag_history stores.tagged stores.tagged_manifest
    stores.tags_of stores.untagged versions.Lineage versions.Manifest
    versions.natural views.RowView
    """,
)


def test_the_picture_and_the_table_match_the_code() -> None:
    again = "run `python docs/rooms.py`"
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.picture(), again
    text = rooms.PAGE.read_text(encoding="utf-8")
    assert text == rooms.page(text), again
    assert "](images/rooms.svg)" in DESIGN.read_text(encoding="utf-8")


def test_the_picture_is_complete_and_its_boxes_do_not_overlap() -> None:
    texts = list(ElementTree.fromstring(rooms.picture()).iter("{http://www.w3.org/2000/svg}text"))
    assert set(test_house.HOUSE) <= {node.text for node in texts}
    for node in texts:  # the widest letters of such a font are a little wider than half of its size
        assert node.attrib["font-size"] != "10" or len(node.text or "") * 5.8 < rooms.BOX, node.text
    spots = list(rooms.spots().values())
    for number, spot in enumerate(spots):
        assert rooms.BOX / 2 <= spot.x <= rooms.WIDTH - rooms.BOX / 2
        for other in spots[:number]:
            assert abs(spot.x - other.x) >= rooms.BOX or abs(spot.y - other.y) > rooms.HEIGHT


def test_tools_import_public_names_and_what_is_left_to_replace() -> None:
    found = set()
    for name in frozenset[str]().union(*map(rooms.imported, rooms.files_of("tools"))):
        package, _, inner = name.partition(".")
        room, named = inner.partition(".")[0], inner.rpartition(".")[2]
        is_private = room not in ("tools", "errors", "testing") and named not in torchyoga.__all__
        if package == "torchyoga" and "." in inner and is_private:
            found.add(f"{room}.{named}")
    assert found <= {*BEHIND_THE_WALL}


def test_pictures_have_colours_for_dark_pages() -> None:
    for path in (rooms.DOCS / "images").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "@media(prefers-color-scheme:dark)" in text, f"{path}: see docs/pictures.py"


@pytest.mark.parametrize("name", [name for name in test_house.HOUSE if name not in ("errors", "testing")])
def test_a_folder_says_its_doors_and_what_it_never_sees(name: str) -> None:
    shown = rooms.room(name)
    assert shown.never
    texts = [path.read_text(encoding="utf-8") for path in rooms.files_of(name)]
    for door in re.findall(r"`(\w+)`", shown.doors):
        defined = re.compile(rf"^(class|def) {door}\b|^{door}\b.*=", re.MULTILINE)
        is_folder = (rooms.PACKAGE / name / door).is_dir()
        assert is_folder or any(map(defined.search, texts)), f"{name} has no {door}"


def test_each_note_names_the_modules_that_say_its_number() -> None:
    notes = re.findall(r"^\*\*Note (\d+)\. .*?Modules:(.*?)\.$", DESIGN.read_text("utf-8"), re.M | re.S)
    assert [int(number) for number, _ in notes] == list(range(1, len(notes) + 1))
    assert len(notes) <= 20  # as many as one reads; a smaller thought stands in its own file
    named = {(number, name) for number, names in notes for name in re.findall(r"`([\w/]+\.py)`", names)}
    assert {number for number, _ in named} == {number for number, _ in notes}
    said = {
        (number, path.relative_to(rooms.PACKAGE).as_posix())
        for path in rooms.PACKAGE.rglob("*.py")
        for number in re.findall(r"\b[Nn]ote (\d+)\b", path.read_text(encoding="utf-8"))
    }
    assert named == said
    for page in rooms.DOCS.rglob("*.md"):
        mentioned = re.findall(r"\b[Nn]ote (\d+)\b", page.read_text(encoding="utf-8"))
        assert {number for number, _ in notes}.issuperset(mentioned), page
