"""The code in the docs runs, and their links lead to something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import (
    ENGINE_EXAMPLES,
    FRAMEWORK_EXAMPLES,
    FRAMEWORK_PAGES,
    MODULES,
    NOTEBOOK_PAGES,
    PAGES,
    REMOTE_EXAMPLES,
    REMOTE_PAGES,
    ROOT,
    TRAINER_EXAMPLES,
    TRAINER_PAGES,
    blocks,
    run_blocks,
    run_examples,
)

DATA_PAGE = ROOT / "docs" / "data.md"
BESIDE = pytest.mark.damages("a file of the user's lies beside a version")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[BESIDE] * (page.name == "storage.md"), id=page.relative_to(ROOT).as_posix())
        for page in PAGES
        if page.name != "README.md"  # whose blocks run below
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_code_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")  # pictures of tutorials are drawn, and shown nowhere
    run_blocks(page)


def test_every_block_of_the_tour_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a print stands its line; `...` for what may differ, and a remark in brackets after it."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "docs"}
    for code in blocks(ROOT / "README.md", "python"):
        exec(code, namespace)
        shown = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) == len(shown) == len(re.findall(r"^ *print\(", code, re.MULTILINE)) > 0, code
        for line, wanted in zip(printed, shown, strict=True):
            pattern = re.escape(wanted).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, line) or line == wanted.rpartition(" (")[0], line


def test_every_line_for_a_kind_of_data_is_run() -> None:
    """The table in docs/data.md: each line is in a block that runs, there or in the page that it links to."""
    table = re.findall(
        r"^\| (?!your|anything)[^|]+ \| `([^`]+)`(.*) \|$", DATA_PAGE.read_text(), re.MULTILINE
    )
    assert len(table) > 12
    for line, more in table:
        pages = [DATA_PAGE.parent / name for name in re.findall(r"\((\w+\.md)#", more)] or [DATA_PAGE]
        assert any(line in code for page in pages for code in blocks(page, "python")), line


def test_tables_of_speed_have_only_figures_of_runs() -> None:
    """Those of peers.py stand in its picture, of `make bench` in its tables; ratios are of both figures."""
    page = (ROOT / "docs" / "performance.md").read_text()
    peers = (ROOT / "docs" / "images" / "peers.svg").read_text()
    bench = (ROOT / "benchmarks" / "results.md").read_text()
    first, second, *others = re.findall(r"^\|[^\n]*\n\|---.*?\n\n", page, re.MULTILINE | re.DOTALL)
    for table, run in ((first, peers), (second, bench), *((table, bench) for table in others)):
        for line in table.splitlines()[2:]:
            cells = line.strip("| ").split(" | ")[-4 if run is peers else -2 if table is second else 1 :]
            for number in re.findall(
                r"(?<![\w^])\d[\d,.]*\d\b", " | ".join(cells[:-1] if table is second else cells)
            ):
                is_ratio = run is peers and number in (cells[1], cells[3])
                assert is_ratio or re.search(rf"(?<![\d,.]){re.escape(number)}(?![\d,.]*\d)", run), number
    ours = [
        int(cell.replace(",", ""))
        for cell in re.findall(r"^\| torchyoga \| (.+?) \| \| (.+?) \|", first, re.M)[0]
    ]
    assert len(others) >= 3
    quotients = []
    for cells in re.findall(r"\| ([\d,]+) \| ([\d.]+) \| ([\d,]+) \| ([\d.]+) \|$", first, re.MULTILINE):
        quotients += [(our, cells[2 * n], cells[2 * n + 1]) for n, our in enumerate(ours)]
    quotients += [
        (b, a, ratio)
        for a, b, ratio in re.findall(r"\| ([\d,.]+) \| ([\d,.]+) \| ([\d.]+) \|$", second, re.M)
    ]
    assert len(quotients) >= 19
    for our, their, ratio in quotients:
        exact = float(str(our).replace(",", "")) / float(their.replace(",", ""))
        assert float(ratio) == pytest.approx(exact, rel=0.1), (our, their)


def test_the_first_program_runs_however_processes_start() -> None:
    (program,) = blocks(ROOT / "docs" / "index.md", "python")
    assert "num_workers" not in program or "__main__" in program


def test_there_are_blocks_to_run() -> None:
    assert sum(len(blocks(page, "python")) for page in PAGES) > 10


@pytest.mark.parametrize(
    "page",
    PAGES + FRAMEWORK_PAGES + TRAINER_PAGES + REMOTE_PAGES + NOTEBOOK_PAGES,
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_and_make_targets_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for code in blocks(page, "sh"):
        for line in code.splitlines():
            assert line.startswith("make ")
            assert line.split()[1] in targets


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str, tmp_path: Path) -> None:
    run_examples(name, tmp_path)


def test_every_example_is_run_by_some_test() -> None:
    known = {"quickstart", *FRAMEWORK_EXAMPLES, *TRAINER_EXAMPLES, *REMOTE_EXAMPLES, *ENGINE_EXAMPLES}
    assert known == {path.stem for path in (ROOT / "examples").glob("*.py")}
