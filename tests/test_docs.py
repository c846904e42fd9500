"""The code in the docs runs, and their links lead to something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import docs

DATA_PAGE = docs.ROOT / "docs" / "data.md"
BESIDE = pytest.mark.damages("a file of the user's lies beside a version")


@pytest.mark.slow("docs/measure.md", "docs/caching.md", "docs/howto/script.md")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, marks=[BESIDE] * (page.name == "caching.md"), id=page.relative_to(docs.ROOT).as_posix()
        )
        for page in docs.PAGES
        if page.name != "README.md"  # whose blocks run below
        and page not in docs.TUTORIALS  # which a build of the site runs
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_code_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    docs.run_blocks(page)


def test_every_block_of_the_tour_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a print stands its line; `...` for what may differ, and a remark in brackets after it."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "docs"}
    for code in docs.blocks(docs.ROOT / "README.md", "python"):
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
        pages = [DATA_PAGE.parent / name for name in re.findall(r"\(([\w/]+\.md)#", more)] or [DATA_PAGE]
        assert any(line in code for page in pages for code in docs.blocks(page, "python")), line


def test_tables_of_speed_have_only_figures_of_runs() -> None:
    """The page's ratios stand in benchmarks/results.md; what peers.py measured is in its picture."""
    (table,) = _tables((docs.ROOT / "docs" / "performance.md").read_text())
    peers = (docs.ROOT / "docs" / "images" / "peers.svg").read_text()
    bench = (docs.ROOT / "benchmarks" / "results.md").read_text()
    assert len(table) > 15
    _all_of(run=bench, figures=[figure for row in table for figure in row[2:]])
    ours, *theirs = [row[1:] for row in _tables(bench.partition("## Small images")[2])[0]]
    _all_of(run=peers, figures=[*ours[::2], *(row[n] for row in theirs for n in (0, 2))])
    for row in theirs:
        for n in (0, 2):
            quotient = float(ours[n].replace(",", "")) / float(row[n].replace(",", ""))
            assert float(row[n + 1]) == pytest.approx(quotient, rel=0.1), row  # of rounds


def _tables(page: str) -> list[list[list[str]]]:
    """The cells of each table's rows, without its head."""
    tables = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    return [[line.strip("| ").split(" | ") for line in table.splitlines()[2:]] for table in tables]


def _all_of(run: str, figures: list[str]) -> None:
    for figure in filter(None, (figure.strip("| ") for figure in figures)):
        assert re.search(rf"(?<![\d,.]){re.escape(figure)}(?![\d,.]*\d)", run), figure


def test_the_first_program_runs_however_processes_start() -> None:
    (program,) = docs.blocks(docs.ROOT / "docs" / "index.md", "python")
    assert "num_workers" not in program or "__main__" in program


@pytest.mark.parametrize(
    "page",
    docs.PAGES + docs.FRAMEWORK_PAGES + docs.TRAINER_PAGES + docs.REMOTE_PAGES + docs.NOTEBOOK_PAGES,
    ids=lambda page: page.relative_to(docs.ROOT).as_posix(),
)
def test_links_and_make_targets_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    targets = re.findall(r"^([\w-]+):", (docs.ROOT / "Makefile").read_text(), re.MULTILINE)
    for code in docs.blocks(page, "sh"):
        for line in code.splitlines():
            assert line.startswith("make ")
            assert line.split()[1] in targets


@pytest.mark.slow("torchyoga.tools.doctor.examination")
@pytest.mark.parametrize("name", docs.WITH_EXAMPLES)
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    docs.run_examples(name, tmp_path)


def test_every_example_is_run_by_some_test() -> None:
    known = {
        "quickstart",
        *docs.FRAMEWORK_EXAMPLES,
        *docs.TRAINER_EXAMPLES,
        *docs.REMOTE_EXAMPLES,
        *docs.ENGINE_EXAMPLES,
    }
    assert known == {path.stem for path in (docs.ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize(
    "path", [*sorted((docs.ROOT / "examples").glob("*.py")), *docs.TUTORIALS], ids=lambda p: p.stem
)
def test_programs_that_compare_losses_fix_the_number_of_threads(path: Path) -> None:
    """On processors where MKL takes its AVX2 kernels, another number of threads gives other last bits."""
    text = path.read_text()
    if re.search(r"losses are equal|bit for bit|last bit", text):
        assert "torch.set_num_threads(1)" in text or '"OMP_NUM_THREADS": "1"' in text
