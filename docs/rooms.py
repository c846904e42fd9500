"""Draws the picture of design.md and writes the table of CONTRIBUTING.md: from imports and docstrings.

python docs/rooms.py
"""

from __future__ import annotations

import ast
import re
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "torchyoga"
FLUENT = {PACKAGE / name for name in ("reading/contract.py", "reading/dataref.py", "loading/loader.py")}
PICTURE, PAGE = DOCS / "images" / "rooms.svg", DOCS.parent / "CONTRIBUTING.md"
# Each room on a road is imported by one before it.
ROADS = {
    "in": ("storage", "caching", "adapters", "building", "rows", "formats", "versions", "stores"),
    "out": ("loading", "order", "reading", "formats", "rows"),
}
SIGNS = {"in": "the way in: your data to a published version", "out": "the way out: an index to a batch"}
WIDTH, BOX, HEIGHT, STOREY, TOP = 920, 226, 48, 88, 40
WIDEST = 38  # characters of the doors that a box is wide enough for
LANES = {-1: 1 / 6, 0: 1 / 2, 1: 5 / 6}  # of the width; between them lines pass
INK = {  # class: (on a light page, on a dark one)
    "page": ("#ffffff", "#0d1117"),
    "box": ("#f3f5f8", "#1b222c"),
    "line": ("#9aa5b1", "#59636e"),
    "text": ("#1f2328", "#e6edf3"),
    "note": ("#59636e", "#9198a1"),
    "in": ("#3b74b9", "#79b0f2"),
    "out": ("#d9700a", "#f0a35a"),
}


class Room(NamedTuple):
    """A folder of the package, or a file beside the folders, and what its docstring says."""

    name: str
    turns: str
    doors: str
    never: str


class Spot(NamedTuple):
    """Where a box is drawn: its centre."""

    x: float
    y: float


@cache
def names() -> list[str]:
    """All rooms, by name."""
    paths = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in paths if not path.name.startswith("__"))


def files_of(name: str) -> list[Path]:
    """The files of a room; the first has its docstring."""
    folder = PACKAGE / name
    if not folder.is_dir():
        return [folder.with_suffix(".py")]
    return [folder / "__init__.py", *sorted(set(folder.rglob("*.py")) - {folder / "__init__.py"})]


@cache
def tree(path: Path) -> ast.Module:
    """A file as a syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def room(name: str) -> Room:
    """A room from its docstring: what it turns, its doors, what it never sees.

    Raises:
        ValueError: there is no docstring.
    """
    said = ast.get_docstring(tree(files_of(name)[0]))
    if not said:
        raise ValueError(
            f"{files_of(name)[0]} has no docstring; say what it turns, its door, what it never sees"
        )
    first, _, rest = said.partition("\n")
    rest = " ".join(rest.split())
    doors = re.search(r"Doors?: (.*?)\.(?= |$)", rest)
    never = re.search(r"Never sees (.*?)\.(?= |$)", rest)
    return Room(name, first.rstrip("."), doors[1] if doors else "", never[1] if never else "")


@cache
def imports() -> dict[str, frozenset[str]]:
    """The rooms that each room imports, anywhere in its files."""
    rooms = {f"torchyoga.{name}": name for name in names()}
    return {
        name: frozenset(
            rooms[room]
            for path in files_of(name)
            for found in imported(path)
            if (room := ".".join(found.split(".")[:2])) in rooms and rooms[room] != name
        )
        for name in names()
    }


@cache
def imported(path: Path, by_types: bool = False) -> frozenset[str]:
    """The full names of everything that a file imports, anywhere in it: a module, or a name in one.

    With `by_types` also what only a type checker follows there.
    """
    package = ("torchyoga", *path.relative_to(PACKAGE).parent.parts)
    # A DataRef's methods load rooms above it when they are first called; the house test lists them.
    later = [node for node in tree(path).body if path in FLUENT and not by_types and isinstance(node, ast.If)]
    left_out = {id(node) for block in later for node in ast.walk(block)}
    found = set()
    for node in ast.walk(tree(path)):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *filter(None, [node.module]))
            found |= {".".join((*module, alias.name)) for alias in node.names}
    return frozenset(found)


@cache
def below(name: str) -> frozenset[str]:
    """All rooms that a room imports, directly or not."""
    return imports()[name].union(*map(below, imports()[name]))


@cache
def storey(name: str) -> int:
    """How high a room lies: one above the highest that it imports."""
    return 1 + max((storey(other) for other in imports()[name]), default=-1)


def arrows() -> list[tuple[str, str]]:
    """Imports that do not follow from others; the rest are reached by several arrows."""
    found = []
    for name in names():
        for other in imports()[name]:
            if not any(other in below(between) for between in imports()[name]):
                found.append((name, other))
    return sorted(found)


def check_roads() -> None:
    """Raises ValueError if a room on a road is imported by none before it."""
    for road, stops in ROADS.items():
        for number, name in enumerate(stops[1:], 1):
            if not any(name in imports()[before] for before in stops[:number]):
                raise ValueError(
                    f"{name} on the way {road} is imported by none of {stops[:number]}; see ROADS"
                )


@cache
def spots() -> dict[str, Spot]:
    """The centre of each box: rooms on the way in to the left, those on the way out to the right."""
    highest = max(map(storey, names()))
    side = {name: (name in ROADS["out"]) - (name in ROADS["in"]) for name in names()}
    found = {}
    for level in range(highest + 1):
        here = sorted(
            (name for name in names() if storey(name) == level), key=lambda name: (side[name], name)
        )
        lanes = [LANES[side[name]] for name in here]
        if len(set(lanes)) < len(here):  # two in one lane
            lanes = [(number + 0.5) / max(3, len(here)) for number in range(len(here))]
        y = TOP + (highest - level) * STOREY + HEIGHT
        found |= {name: Spot(lane * WIDTH, y) for name, lane in zip(here, lanes, strict=True)}
    return found


def picture() -> str:
    """The picture as SVG, the same text each time."""
    check_roads()
    places = spots()
    height = max(spot.y for spot in places.values()) + HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img"'
        ' font-family="system-ui, sans-serif">',
        "<title>The rooms of torchyoga, and the two roads through them</title>",
        f"<style>{_style()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height:.0f}"/>',
        *(_arrow(places[a], places[b], number) for number, (a, b) in enumerate(arrows())),
        *(f'<g opacity=".7">{_legs(road, places)}</g>' for road in ROADS),
        *(_box(room(name), places[name]) for name in sorted(places)),
        *(_badges(road, places) for road in ROADS),
        *(_sign(road, number) for number, road in enumerate(ROADS)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _style() -> str:
    def rules(dark: bool) -> str:
        colour = {name: pair[dark] for name, pair in INK.items()}
        return (
            f".page{{fill:{colour['page']}}}"
            f".box{{fill:{colour['box']};stroke:{colour['line']}}}"
            f".arrow{{stroke:{colour['line']};fill:none}}.tip{{fill:{colour['line']}}}"
            f".name{{fill:{colour['text']};font-weight:600}}.note{{fill:{colour['note']}}}"
            + "".join(
                f".{road}{{stroke:{colour[road]};fill:none}}.{road}-fill{{fill:{colour[road]}}}"
                for road in ROADS
            )
            + f".number{{fill:{colour['page']};font-weight:700}}"
        )

    return f"{rules(False)}@media(prefers-color-scheme:dark){{{rules(True)}}}"


def _arrow(above: Spot, under: Spot, number: int) -> str:
    line = _line(above, Spot(under.x, under.y - 6), 4 * (number % 5) - 8)
    end = under.y - HEIGHT / 2
    return f'<path class="arrow" d="{line}"/><path class="tip" d="M{under.x - 4:.0f} {end - 7:.0f}h8l-4 7z"/>'


def _legs(road: str, places: dict[str, Spot]) -> str:
    legs = enumerate(pairwise(ROADS[road]))
    lines = (_line(places[a], places[b], 9 * (number % 4) - 12) for number, (a, b) in legs)
    return "".join(
        f'<path class="{road}" stroke-width="5" stroke-linecap="round" d="{line}"/>' for line in lines
    )


def _line(start: Spot, end: Spot, aside: float) -> str:
    """From the edge of one box to that of another; past boxes between them, a little aside of the others."""
    down = 1 if end.y > start.y else -1
    y, last = start.y + down * HEIGHT / 2, end.y - down * HEIGHT / 2
    bend = down * (STOREY - HEIGHT)
    line = f"M{start.x:.0f} {y:.0f}"
    if start.x == end.x:
        is_free = not any(
            spot.x == start.x and min(y, last) < spot.y < max(y, last) for spot in spots().values()
        )
    else:
        is_free = abs(last - y) < STOREY
    if is_free:
        return f"{line}C{start.x:.0f} {y + bend:.0f} {end.x:.0f} {last - bend:.0f} {end.x:.0f} {last:.0f}"
    x = (1 / 3 if start.x + end.x < WIDTH else 2 / 3) * WIDTH + aside
    return (
        f"{line}C{start.x:.0f} {y + bend:.0f} {x:.0f} {y:.0f} {x:.0f} {y + bend:.0f}V{last - bend:.0f}"
        f"C{x:.0f} {last:.0f} {end.x:.0f} {last - bend:.0f} {end.x:.0f} {last:.0f}"
    )


def _box(shown: Room, spot: Spot) -> str:
    x, y = spot.x - BOX / 2, spot.y - HEIGHT / 2
    doors = ", ".join(re.findall(r"`(\w+)`", shown.doors))
    if len(doors) > WIDEST:
        doors = doors[: WIDEST - 2].rpartition(",")[0] + ", …"
    middle = spot.y + (-3 if doors else 5)
    text = f'<text class="name" x="{spot.x:.0f}" y="{middle:.0f}" font-size="15">{escape(shown.name)}</text>'
    if doors:
        text += (
            f'<text class="note" x="{spot.x:.0f}" y="{spot.y + 14:.0f}" font-size="10">{escape(doors)}</text>'
        )
    box = f'<rect class="box" x="{x:.0f}" y="{y:.0f}" width="{BOX}" height="{HEIGHT}" rx="7"/>'
    return f'{box}<g text-anchor="middle">{text}</g>'


def _badges(road: str, places: dict[str, Spot]) -> str:
    parts = []
    for number, name in enumerate(ROADS[road], 1):
        x = places[name].x + (BOX / 2 - 14) * (1 if road == "out" else -1)
        y = places[name].y - HEIGHT / 2
        parts.append(
            f'<circle class="{road}-fill" cx="{x:.0f}" cy="{y:.0f}" r="10"/><text class="number" x="{x:.0f}"'
            f' y="{y + 4:.0f}" font-size="12" text-anchor="middle">{number}</text>'
        )
    return "".join(parts)


def _sign(road: str, number: int) -> str:
    x, y = 24 + number * WIDTH / 2, 26
    return (
        f'<path class="{road}" stroke-width="5" d="M{x:.0f} {y}h36"/>'
        f'<text class="name" x="{x + 46:.0f}" y="{y + 5}" font-size="13">{escape(SIGNS[road])}</text>'
    )


def table() -> str:
    """The rooms as a table of Markdown, from the top of the picture down."""
    lines = ["| room | turns | doors | never sees |", "|---|---|---|---|"]
    for name in sorted(names(), key=lambda name: (-storey(name), name)):
        shown = room(name)
        lines.append(f"| `{name}` | {shown.turns} | {shown.doors} | {shown.never} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The text of CONTRIBUTING.md with the current table.

    Raises:
        ValueError: the comments around the table are missing.
    """
    marks = "(<!-- rooms: written by docs/rooms.py -->\n).*?(<!-- rooms end -->)"
    between = re.compile(marks, re.DOTALL)
    if not between.search(text):
        raise ValueError(f"{PAGE} has no place for the rooms; restore {marks!r}")
    return between.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", text)


def main() -> None:
    """Writes both."""
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
