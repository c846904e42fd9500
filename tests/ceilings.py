"""How large the house is and may be: `python tests/ceilings.py` lowers today's numbers in `budgets.txt`.

A number that lies above its budget may only fall. A budget does not rise: a commit that adds a feature takes
another one out.
"""

from __future__ import annotations

import io
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import torchyoga

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGE = ROOT / "torchyoga"
TABLE = TESTS / "budgets.txt"
SLACK = 50  # lines by which a room may fall before its number has to be lowered


def lines_of_code(text: str) -> int:
    """Lines that hold more than a comment or a docstring."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    is_first = True  # in its statement
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent and token.type != tokenize.ENDMARKER:
            if not (is_first and token.type == tokenize.STRING):
                lines |= set(range(token.start[0], token.end[0] + 1))
            is_first = False
        elif token.type == tokenize.NEWLINE:
            is_first = True
    return len(lines)


@cache
def lines_by_file() -> dict[Path, int]:
    """Lines of code of each file of the package."""
    return {path: lines_of_code(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def members(cls: type) -> list[str]:
    """The public members that a class has from us."""
    ours = [vars(base) for base in cls.__mro__ if base.__module__.startswith("torchyoga")]
    return [name for name in sorted(dir(cls)) if name[0] != "_" and any(name in names for names in ours)]


@cache
def counts() -> dict[str, int]:
    """Every number that has a budget, by name."""
    rooms: Counter[str] = Counter()
    for path, number in lines_by_file().items():
        rooms[path.relative_to(PACKAGE).parts[0].removesuffix(".py")] += number
    pages = [page for page in (ROOT / "docs").rglob("*.md") if not {"_build", "generated"} & set(page.parts)]
    return {
        **dict(sorted(rooms.items())),
        "all lines": sum(rooms.values()),
        "all files": len(lines_by_file()),
        "lines of tests": sum(path.read_bytes().count(b"\n") for path in TESTS.rglob("*.py")),
        "words of docs": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "pages of docs": len(pages),
        "public names": len(torchyoga.__all__),
        "members of DataRef": len(members(torchyoga.DataRef)),
        "members of Storage": len(members(torchyoga.Storage)),
    }


def kept() -> dict[str, tuple[int, int]]:
    """Today's number and the budget of each name, as the table has them."""
    rows = (line.split() for line in TABLE.read_text(encoding="utf-8").splitlines()[1:])
    return {" ".join(name): (int(today), int(budget)) for *name, today, budget in rows}


def lower() -> None:
    """Writes today's numbers, none above both the one before and its budget."""
    lines = [f"{'':20}{'today':>8}{'budget':>8}"]
    for name, (before, budget) in kept().items():
        if number := counts().get(name):
            lines.append(f"{name:20}{min(number, max(before, budget)):8}{budget:8}")
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    lower()
