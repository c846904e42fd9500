"""A user's program, read by type checkers: each wrong line is an error, and no other line is."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchyoga

PROGRAM = Path(__file__).parent / "program.py"
MARKED = {n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# wrong: " in line}
PACKAGES = Path(torchyoga.__file__).parent.parent


def checked(folder: Path, module: str, *arguments: str) -> str:
    """What a type checker says in a folder."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed; it is in the extra 'lint'")
    command = [sys.executable, "-m", module, *arguments]
    environment = dict(os.environ)
    if PACKAGES.name != "site-packages":  # else type checkers find the installed package by themselves
        environment |= {"MYPYPATH": str(PACKAGES), "PYTHONPATH": str(PACKAGES)}
    found = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment, cwd=folder)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    return found.stdout


@pytest.mark.rest
def test_pyright_finds_what_is_wrong_and_nothing_else() -> None:
    found = json.loads(
        checked(PROGRAM.parent, "pyright", "--outputjson", "--pythonpath", sys.executable, PROGRAM.name)
    )
    errors = [e for e in found["generalDiagnostics"] if e["severity"] == "error"]
    assert {error["range"]["start"]["line"] + 1 for error in errors} == MARKED, errors


# -- pages, in strict mode


# A page's code is plain: it annotates nothing, and some packages that it uses have no types. What checkers
# say of that is left out; whatever else they say is a fault of ours.
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md"]
PAGES += [page for folder in ("howto", "tutorials") for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
# Of functions, lists and packages without types; and of names that are not used.
PLAIN = {
    *("no-untyped-def", "no-untyped-call", "type-arg", "var-annotated", "import-untyped", "import-not-found"),
    *("reportMissingParameterType", "reportMissingTypeArgument", "reportMissingTypeStubs"),
    *(
        "reportMissingImports",
        "reportUnknownParameterType",
        "reportUnknownArgumentType",
        "reportUnknownLambdaType",
    ),
    *("reportUnknownMemberType", "reportUnknownVariableType", "reportUnusedImport", "reportUnusedVariable"),
}
# What scikit-learn says of itself is narrower than what it returns; torch does not say that it exports these.
NARROW = ("self.digits.", "dcp.save(", "dcp.load(")


def program(page: Path) -> list[str]:
    """The lines of all blocks of a page, each at its place."""
    text = page.read_text(encoding="utf-8")
    lines: list[str] = []
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        start = text.count("\n", 0, block.start(1))
        lines += [""] * (start - len(lines)) + block[1].splitlines()
    return lines


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all programs, and what strict means to pyright."""
    folder = tmp_path_factory.mktemp("pages")
    for page in PAGES:
        (folder / f"{page.parent.name}_{page.stem}.py").write_text("\n".join(program(page)) + "\n")
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    assert len(list(folder.glob("*.py"))) == len(PAGES)
    return folder


def faults(folder: Path, found: list[tuple[str, int, str, str]]) -> list[str]:
    """What is said of the programs and not of plain code: place, rule, the line, the message."""
    said = []
    for file, number, rule, message in found:
        if (folder / file).exists() and rule not in PLAIN:
            line = (folder / file).read_text().splitlines()[number - 1]
            if not any(narrow in line for narrow in NARROW):
                said.append(f"{file}:{number}: {rule}: {line}: {message}")
    return said


@pytest.mark.rest
def test_mypy_finds_what_is_wrong_and_says_nothing_of_pages(written: Path) -> None:
    options = ("--strict", "--output=json", "--config-file=", "--follow-imports=silent")
    kept = ROOT / ".mypy_cache" / "programs"  # from one run to the next: torch and others take a minute
    said = checked(written, "mypy", *options, f"--cache-dir={kept}", ".", str(PROGRAM))
    errors = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    errors = [error for error in errors if error["severity"] == "error"]
    of_pages = [error for error in errors if Path(error["file"]).name != PROGRAM.name]
    assert {error["line"] for error in errors if error not in of_pages} == MARKED, said
    assert {error["code"] for error in of_pages} & PLAIN  # it has read them
    assert not faults(written, [(e["file"], e["line"], e["code"], e["message"]) for e in of_pages])


@pytest.mark.rest
def test_pyright_says_nothing_of_pages(written: Path) -> None:
    said = json.loads(checked(written, "pyright", "--outputjson", "--pythonpath", sys.executable))
    errors = [error for error in said["generalDiagnostics"] if error["severity"] == "error"]
    assert {error["rule"] for error in errors} & PLAIN
    places = [(Path(error["file"]).name, error["range"]["start"]["line"] + 1) for error in errors]
    assert not faults(
        written, [(*place, e["rule"], e["message"]) for place, e in zip(places, errors, strict=True)]
    )
