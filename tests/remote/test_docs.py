"""The page and the example program that need a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import S3

from docs import REMOTE_EXAMPLES, REMOTE_PAGES, blocks, run_blocks, run_here


@pytest.mark.parametrize("page", REMOTE_PAGES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_code_block_runs(
    page: Path, s3: S3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert len(blocks(page, "python")) > 5
    # The page's bucket is one of a server on loopback.
    run_blocks(page, url=f"s3://{bucket}/datasets", storage_options=s3.storage_options, tmp_path=tmp_path)


@pytest.mark.parametrize("name", REMOTE_EXAMPLES)
def test_an_example_runs(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    run_here(name)
    assert REMOTE_EXAMPLES[name] in capfd.readouterr().out
