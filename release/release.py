"""Builds a release, checks it, and tags it: `make release`. It uploads nothing; the pushed tag does.

python release/release.py [--dry-run | --pages]
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST_WHEEL = 600_000  # bytes; a file that does not belong there shows
# How to install it, in these pages and nowhere else: before the first release, and from then on.
PAGES = ("README.md", "docs/index.md", "docs/install.md")
INSTALL = (
    """\
There is no release yet; install it from a copy of the repository:

```console
$ pip install .
```
""",
    """\
Install it with PyTorch, if that is not there yet:

```console
$ pip install torchyoga
```
""",
)


def version_of(root: Path) -> str:
    """The version number, from the one place that has it."""
    for node in ast.parse((root / "torchyoga" / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise LookupError(f"{root / 'torchyoga' / '__init__.py'} has no __version__")


def git(root: Path, *arguments: str) -> str:
    """What git prints; CalledProcessError if it fails."""
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def hindrances(root: Path) -> list[str]:
    """Why this checkout is not one to release: what was found, and what to do."""
    version, found = version_of(root), []
    branch = git(root, "branch", "--show-current")
    if branch != "main":
        found.append(f"this is branch {branch or 'of no name'!r}; release from main")
    if changed := git(root, "status", "--porcelain"):
        found.append(f"{len(changed.splitlines())} files are not committed; commit or remove them")
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        found.append(f"__version__ is {version!r}; write it as 1.2.3 or 1.2.3rc1")
    if git(root, "tag", "--list", f"v{version}"):
        found.append(f"v{version} is tagged already; raise __version__ in torchyoga/__init__.py")
    fragments = [path.name for path in (root / "changes").glob("*.md")]
    if fragments:
        found.append(f"changes/ has {len(fragments)} fragments, such as {min(fragments)}; `make changelog`")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", _changelog(root), re.MULTILINE):
        found.append(f"CHANGELOG.md has no section `## {version} (<date>)`; `make changelog`")
    found += [f"{page} says how to install a copy; `make changelog`" for page in _unreleased(root)]
    return found


def _unreleased(root: Path) -> list[str]:
    """The pages that say how to install it before its first release."""
    paths = {page: root / page for page in PAGES}
    return [
        page
        for page, path in paths.items()
        if path.exists() and INSTALL[0] in path.read_text(encoding="utf-8")
    ]


def switch_pages(root: Path) -> None:
    """Makes pages say how to install what is released, and dates a section that the changelog has already."""
    version, text = version_of(root), _changelog(root)
    text = text.replace(f"## {version} (unreleased)", f"## {version} ({datetime.date.today()})")
    (root / "CHANGELOG.md").write_text(text, encoding="utf-8")
    for page in _unreleased(root):
        text = (root / page).read_text(encoding="utf-8")
        (root / page).write_text(text.replace(*INSTALL), encoding="utf-8")


def _changelog(root: Path) -> str:
    return (root / "CHANGELOG.md").read_text(encoding="utf-8")


def check_built(dist: Path, version: str) -> Path:
    """The wheel; ValueError if `dist` holds anything but it and the sdist, or it is too large."""
    names = sorted(path.name for path in dist.iterdir())
    wheel, sdist = f"torchyoga-{version}-py3-none-any.whl", f"torchyoga-{version}.tar.gz"
    if names != sorted([wheel, sdist]):
        raise ValueError(f"{dist} should hold {wheel} and {sdist}, found {names}")
    nbytes = (dist / wheel).stat().st_size
    if nbytes > LARGEST_WHEEL:
        raise ValueError(f"{wheel} has {nbytes} bytes, more than {LARGEST_WHEEL}; look what is in it")
    return dist / wheel


def tag(root: Path, version: str) -> None:
    """Makes the tag, signed where git knows a key."""
    key = subprocess.run(
        ["git", "-C", str(root), "config", "user.signingkey"], capture_output=True, timeout=60
    )
    git(root, "tag", "-s" if key.stdout.strip() else "-a", f"v{version}", "-m", f"torchyoga {version}")


def main() -> int:
    """Exit code 1 if anything hinders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dry-run", action="store_true", help="build and check, and name what hinders; no tag"
    )
    parser.add_argument(
        "--pages", action="store_true", help="only make pages say what is released, and how to install it"
    )
    asked = parser.parse_args()
    if asked.pages:
        switch_pages(ROOT)
        return 0
    dry = asked.dry_run
    found, version = hindrances(ROOT), version_of(ROOT)
    for hindrance in found:
        print(f"not yet: {hindrance}", file=sys.stderr)
    if found and not dry:
        return 1
    subprocess.run(["make", "dist-check"], cwd=ROOT, check=True, timeout=3600)
    wheel = check_built(ROOT / "dist", version)
    sdist = next((ROOT / "dist").glob("*.tar.gz"))
    print(f"{wheel.name}: {wheel.stat().st_size / 1000:,.0f} kB")
    print(f"sha256 of the sdist, for the recipe: {hashlib.sha256(sdist.read_bytes()).hexdigest()}")
    if dry:
        return int(bool(found))
    tag(ROOT, version)
    print(f"tagged v{version}; upload it with: git push origin v{version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
