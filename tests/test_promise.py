"""The way in that docs/design.md shows is what the promise runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from children import run_program

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("part", "share"),
    [pytest.param((), 0.31, id="heart"), pytest.param(("all",), 0.66, id="all", marks=pytest.mark.rest)],
)
def test_the_way_in_is_what_the_promise_runs(part: tuple[str, ...], share: float) -> None:
    done = run_program((HERE / "promise.py").read_text(encoding="utf-8"), *part)
    assert not done.returncode, done.stderr[-2000:]
    print(done.stdout.splitlines()[0])
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["share"] > share, "more code lies beside the promise than before"
    text = (HERE.parent / "docs" / "design.md").read_text(encoding="utf-8")
    way = re.findall(r"^\d+\. `([\w/]+\.py)`", text.partition("## The rooms")[0], re.MULTILINE)
    assert len(way) == 12
    assert all(found["lines"].get(name, 0) >= 30 for name in way), found["lines"]
