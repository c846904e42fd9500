"""What `clean` would free, where versions share files."""

from __future__ import annotations

from pathlib import Path

import torchyoga as yoga


def test_files_that_kept_versions_name_are_not_counted(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit([{"x": n} for n in range(50)], "a", "1")
    storage.append([{"x": 1}], "a", "2", after="1")
    storage.append([{"x": 2}], "a", "3", after="2")
    alone = storage.convert("a", "3", to="4")
    storage.append([{"x": 3}], "a", "5", after="4")
    before = sum(path.stat().st_size for path in tmp_path.rglob("*.mdb"))
    told = storage.clean(0, keep_last=1, dry_run=True)
    assert {"a/1", "a/2", "a/3"} >= told.keys() >= {"a/1", "a/2"}
    storage.clean(0, keep_last=1)
    storage.clean(0)
    after = sum(path.stat().st_size for path in tmp_path.rglob("*.mdb"))
    assert sum(told.values()) == before - after
    assert len(alone) == 52
