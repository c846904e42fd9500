"""A checkpoint behind a URL: whole or not at all, as in a directory."""

from __future__ import annotations

from typing import Any

import pytest
from servers import S3, Proxy
from torch import nn

import torchyoga as yoga
from torchyoga.errors import RemoteError
from torchyoga.stores.objects import Objects

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


def trained(url: str, options: Any, steps: int, keep: int = 2) -> Any:
    """A program that goes on for so many steps, and saves each."""
    train = yoga.DataLoader(list(range(12)), 2, shuffle=True, seed=7)
    run = yoga.Checkpoint(
        url, every=1, keep=keep, model=nn.Linear(1, 1), loaders={"train": train}, storage_options=options
    )
    run.resume()
    until = run.steps + steps
    for _ in run.epochs(9):
        for _ in train:
            run.stepped()
            if run.steps == until:
                run.save()
                return run
    raise AssertionError(run.steps)


def test_saved_damaged_and_continued(place: tuple[str, Any]) -> None:
    url, options = place
    assert trained(url, options, 4).steps == 4
    remote = Objects(url, options)
    names = {
        f"step-{step}/{file}" for step in (3, 4) for file in ("checkpoint.json", "items.pt", "rank-0.json")
    }
    assert set(remote.find()) == names
    remote.write("step-4/items.pt", remote.read("step-4/items.pt", 10**6)[:-1] + b"x")
    remote.write("step-5/items.pt", b"half")
    with pytest.warns(UserWarning, match="step-5 was never finished|step-4/items.pt is not what was written"):
        assert trained(url, options, 1).steps == 4
    assert {name.partition("/")[0] for name in remote.find()} == {"step-3", "step-4-1"}


def test_a_store_that_refuses(s3: S3, proxy: Proxy) -> None:
    url, options = f"s3://{s3.new_bucket()}/run", s3.storage_options
    trained(url, options, 2)
    with pytest.raises((RemoteError, PermissionError)):
        trained(url, {**options, "key": "wrong", "endpoint_url": "http://127.0.0.1:9"}, 1)
    assert trained(url, options, 1).steps == 3
