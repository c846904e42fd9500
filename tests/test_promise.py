"""The way in that docs/design.md shows is what the promise runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_the_way_in_is_what_the_promise_runs() -> None:
    command = [sys.executable, str(HERE / "promise.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr[-2000:]
    print(done.stdout.splitlines()[0])
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["share"] > 0.29, "more code lies beside the promise than before"
    text = (HERE.parent / "docs" / "design.md").read_text(encoding="utf-8")
    way = re.findall(r"^\d+\. `([\w/]+\.py)`", text.partition("## The rooms")[0], re.MULTILINE)
    assert len(way) == 12
    assert all(found["lines"].get(name, 0) >= 30 for name in way), found["lines"]
