"""What a release is made of: one version number, the changelog, the recipe, and what hinders."""

from __future__ import annotations

import configparser
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import torchyoga

ROOT = Path(__file__).parents[1]
CONFIG = configparser.ConfigParser()
CONFIG.read(ROOT / "setup.cfg")
release = SimpleNamespace(**runpy.run_path(str(ROOT / "release" / "release.py")))
# What packages of PyPI are called on conda-forge.
ON_CONDA = {"torch": "pytorch", "lmdb": "python-lmdb", "xxhash": "python-xxhash", "isal": "python-isal"}


def git(root: Path, *arguments: str) -> None:
    named = re.findall(
        r"\S+", "-c user.name=a -c user.email=a@b.c -c commit.gpgsign=false -c tag.gpgsign=false"
    )
    subprocess.run(["git", "-C", str(root), *named, *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A checkout that nothing hinders."""
    root = tmp_path / "clone"
    (root / "torchyoga").mkdir(parents=True)
    (root / "torchyoga" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (root / "changes").mkdir()
    (root / "changes" / "README.txt").write_text("fragments\n")
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2026-11-23)\n\n- all\n")
    git(tmp_path, "init", "-q", "-b", "main", str(root))
    git(root, "add", "-A")
    git(root, "commit", "-qm", "all")
    return root


def test_a_clean_checkout_is_tagged_once(clean: Path) -> None:
    assert release.hindrances(clean) == []
    git(clean, "config", "user.name", "a")
    git(clean, "config", "user.email", "a@b.c")
    release.tag(clean, release.version_of(clean))
    assert release.git(clean, "describe") == "v1.2.3"
    assert "v1.2.3 is tagged already" in release.hindrances(clean)[0]


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("torchyoga/__init__.py", '__version__ = "1.2.4"\n', "no section `## 1.2.4"),
        ("torchyoga/__init__.py", '__version__ = "1.2"\n', "write it as 1.2.3"),
        ("CHANGELOG.md", "## 1.2.3 (unreleased)\n", "no section `## 1.2.3"),
        ("changes/7.fix.md", "mended\n", "1 fragments, such as 7.fix.md"),
    ],
)
def test_what_hinders_is_said(clean: Path, path: str, text: str, said: str) -> None:
    (clean / path).write_text(text)
    found = release.hindrances(clean)
    assert "1 files are not committed" in " ".join(found)
    git(clean, "add", "-A")
    git(clean, "commit", "-qm", "more")
    assert said in release.hindrances(clean)[0]


def test_other_branches_are_not_released(clean: Path) -> None:
    git(clean, "checkout", "-q", "-b", "other")
    assert "this is branch 'other'" in release.hindrances(clean)[0]


def test_what_was_built_is_all_there_is(tmp_path: Path) -> None:
    wheel = tmp_path / "torchyoga-1.2.3-py3-none-any.whl"
    wheel.write_bytes(bytes(10))
    with pytest.raises(ValueError, match="should hold"):
        release.check_built(tmp_path, "1.2.3")
    (tmp_path / "torchyoga-1.2.3.tar.gz").write_bytes(b"")
    assert release.check_built(tmp_path, "1.2.3") == wheel
    wheel.write_bytes(bytes(release.LARGEST_WHEEL + 1))
    with pytest.raises(ValueError, match="more than"):
        release.check_built(tmp_path, "1.2.3")


def test_a_release_switches_how_to_install_it_and_no_other_line_says_it(clean: Path) -> None:
    said = {page: (ROOT / page).read_text() for page in release.PAGES}
    (stage,) = {
        number for number, text in enumerate(release.INSTALL) if any(text in page for page in said.values())
    }
    (clean / "docs").mkdir()
    for page, text in said.items():
        assert text.count(release.INSTALL[stage]) == 1, page
        (clean / page).write_text(text)
    git(clean, "add", "-A")
    git(clean, "commit", "-qm", "pages")
    changelog = clean / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("2026-11-23", "unreleased"))
    git(clean, "commit", "-qam", "not dated")
    if stage == 0:
        assert release.hindrances(clean)[1:] == [
            f"{page} says how to install a copy; `make changelog`" for page in release.PAGES
        ]
    release.switch_pages(clean)
    for page in release.PAGES:
        assert release.INSTALL[1] in (clean / page).read_text()
    git(clean, "commit", "-qam", "dated, and for those who install what is released")
    assert release.hindrances(clean) == []
    others = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.py")]
    others = [path for path in others if "_build" not in path.parts and "generated" not in path.parts]
    for path in others:
        text = path.read_text()
        for one in release.INSTALL:
            text = text.replace(one, "")
        if path.name != "CHANGELOG.md":
            assert not re.search(r"pip install[^`\n]*(torchyoga|[ \"'.]\.)", text), path


def test_extras_that_are_named_exist() -> None:
    files = [*(ROOT / "torchyoga").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    named = {
        extra
        for path in files
        for extras in re.findall(r"torchyoga\[([a-z0-9, ]+)\]", path.read_text())
        for extra in extras.split(",")
    }
    assert named
    assert named <= set(CONFIG["options.extras_require"])


def test_there_is_one_version_number() -> None:
    assert CONFIG["metadata"]["version"] == "attr: torchyoga.__version__"
    assert release.version_of(ROOT) == torchyoga.__version__
    assert f'{{% set version = "{torchyoga.__version__}" %}}' in recipe_text()


def recipe_text() -> str:
    return (ROOT / "release" / "recipe" / "meta.yaml").read_text()


def test_the_recipe_needs_what_the_package_needs() -> None:
    wanted = set()
    for line in CONFIG["options"]["install_requires"].split("\n"):
        if name := line.partition(";")[0].strip():
            package, bound = re.fullmatch(r"([a-z0-9-]+)(>=.*)", name).groups()  # type: ignore[union-attr]
            wanted.add(f"{ON_CONDA.get(package, package)} {bound}")
    text = re.sub(r"^{%.*%}$", "", recipe_text(), flags=re.MULTILINE)
    recipe = yaml.safe_load(re.sub(r"{{.*?}}", "x", text))
    assert set(recipe["requirements"]["run"]) == wanted | {f"python {CONFIG['options']['python_requires']}"}
    scripts = CONFIG["options.entry_points"]["console_scripts"].split("\n")
    assert recipe["build"]["entry_points"] == [line for line in scripts if line]


def test_fragments_become_a_section(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "changes", tmp_path / "changes")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n<!-- the latest release is first -->\n\n## 0.0.1 (2020-01-01)\n\n- the first\n"
    )
    (tmp_path / "changes" / "7.feature.md").write_text("`yoga.seven` counts to seven.\n")
    (tmp_path / "changes" / "meter.fix.md").write_text("- One.\n- Two.\n")
    options = ["--yes", "--version", "9.9.9", "--date", "2026-11-23"]
    command = [sys.executable, "-m", "towncrier", "build", *options]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog\n\n<!-- the latest release is first -->\n\n## 9.9.9 (2026-11-23)\n")
    for line in ("### New", "- `yoga.seven` counts to seven.", "### Mended", "- One.\n- Two.", "- the first"):
        assert f"\n{line}\n" in text
    assert text.index("### New") < text.index("### Mended") < text.index("## 0.0.1")


def test_fragments_have_a_kind() -> None:
    kinds = {"feature", "fix", "speed", "removal", "doc"}
    for path in (ROOT / "changes").glob("*.md"):
        assert path.suffixes[-2:-1] and path.suffixes[-2][1:] in kinds, f"{path.name}: {sorted(kinds)}"  # noqa: PT018
