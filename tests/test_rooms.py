"""The picture and the notes of docs/design.md, and the table of CONTRIBUTING.md, match the code."""

from __future__ import annotations

import importlib.util
import re
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import ceilings
import pytest
import test_house

import torchyoga
from docs import ROOT

PACKAGE = Path(torchyoga.__file__).parent
DESIGN = ROOT / "docs" / "design.md"


def script(package: Path = PACKAGE) -> Any:
    """docs/rooms.py, freshly imported, for a package in any folder."""
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PACKAGE = package  # type: ignore[attr-defined]
    module.tree = lambda path: ceilings.parsed(path.read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    return module


@cache
def of_the_package() -> Any:
    """docs/rooms.py for the package as it is."""
    return script()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package that tests may change."""
    return Path(
        shutil.copytree(PACKAGE, tmp_path / "torchyoga", ignore=shutil.ignore_patterns("__pycache__"))
    )


def test_the_picture_and_the_table_match_the_code() -> None:
    rooms = of_the_package()
    again = "run `python docs/rooms.py`"
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.picture(), again
    text = rooms.PAGE.read_text(encoding="utf-8")
    assert text == rooms.page(text), again
    assert "](images/rooms.svg)" in DESIGN.read_text(encoding="utf-8")


def test_pictures_have_colours_for_dark_pages_and_text_within_boxes() -> None:
    for path in (ROOT / "docs" / "images").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "@media(prefers-color-scheme:dark)" in text, f"{path}: see docs/pictures.py"
    rooms = of_the_package()
    notes = re.findall(r'<text class="note"[^>]*font-size="10">([^<]*)<', rooms.picture())
    assert notes
    for note in notes:  # the widest letters of such a font are a little wider than half of its size
        assert len(note) * 5.8 < rooms.BOX, note


def test_the_script_reads_the_imports_that_the_house_test_reads() -> None:
    expected: dict[str, set[str]] = {name: set() for name in test_house.HOUSE}
    for room in test_house.rooms():
        own = room.partition(".")[0]
        expected[own] |= {other.partition(".")[0] for other in test_house.ours(room)} - {own}
    assert of_the_package().imports() == expected


def test_an_additional_import_changes_the_picture(copied: Path) -> None:
    before = script(copied).picture()
    with open(copied / "compat" / "yogadl" / "storage.py", "a") as file:
        file.write("\nfrom ...testing import check_source\n")
    rooms = script(copied)
    assert "testing" in rooms.imports()["compat"]
    assert rooms.picture() != before


def test_an_additional_room_is_drawn_and_listed(copied: Path) -> None:
    (copied / "codecs").mkdir()
    said = (
        '"""Bytes into fewer bytes and back.\n\nDoor: `pack`. Never sees rows.\n"""\nfrom .. import errors\n'
    )
    (copied / "codecs" / "__init__.py").write_text(said)
    rooms = script(copied)
    assert ">codecs</text>" in rooms.picture()
    assert "| `codecs` | Bytes into fewer bytes and back | `pack` | rows |" in rooms.table()


def test_a_road_follows_the_imports(copied: Path) -> None:
    rooms = script(copied)
    rooms.ROADS = {"in": ("storage", "adapters"), "out": ("reading", "caching")}
    with pytest.raises(ValueError, match="caching on the way out is imported by none of"):
        rooms.picture()


def test_the_picture_is_complete_and_its_boxes_do_not_overlap() -> None:
    rooms = of_the_package()
    root = ElementTree.fromstring(rooms.picture())
    texts = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert set(test_house.HOUSE) <= texts
    spots = list(rooms.spots().values())
    for number, spot in enumerate(spots):
        assert rooms.BOX / 2 <= spot.x <= rooms.WIDTH - rooms.BOX / 2
        for other in spots[:number]:
            assert abs(spot.x - other.x) >= rooms.BOX or abs(spot.y - other.y) > rooms.HEIGHT


@pytest.mark.parametrize("name", [name for name in test_house.HOUSE if name not in ("errors", "testing")])
def test_a_folder_says_its_doors_and_what_it_never_sees(name: str) -> None:
    rooms = of_the_package()
    shown = rooms.room(name)
    assert shown.never
    texts = [path.read_text(encoding="utf-8") for path in rooms.files_of(name)]
    for door in re.findall(r"`(\w+)`", shown.doors):
        defined = re.compile(rf"^(class|def) {door}\b|^{door}\b.*=", re.MULTILINE)
        is_folder = (PACKAGE / name / door).is_dir()
        assert is_folder or any(map(defined.search, texts)), f"{name} has no {door}"


def test_each_note_names_the_modules_that_say_its_number() -> None:
    notes = re.findall(
        r"^\*\*Note (\d+)\. .*?Modules:(.*?)\.$", DESIGN.read_text(encoding="utf-8"), re.M | re.S
    )
    assert [int(number) for number, _ in notes] == list(range(1, len(notes) + 1))
    assert len(notes) <= 20  # as many as one reads; a smaller thought stands in its own file
    named = {(number, name) for number, names in notes for name in re.findall(r"`([\w/]+\.py)`", names)}
    assert {number for number, _ in named} == {number for number, _ in notes}
    said = {
        (number, path.relative_to(PACKAGE).as_posix())
        for path in PACKAGE.rglob("*.py")
        for number in re.findall(r"\b[Nn]ote (\d+)\b", path.read_text(encoding="utf-8"))
    }
    assert named == said


def test_pages_refer_to_notes_that_there_are() -> None:
    there = set(re.findall(r"^\*\*Note (\d+)\. ", DESIGN.read_text(encoding="utf-8"), re.M))
    for page in (ROOT / "docs").rglob("*.md"):
        assert set(re.findall(r"\b[Nn]ote (\d+)\b", page.read_text(encoding="utf-8"))) <= there, page
