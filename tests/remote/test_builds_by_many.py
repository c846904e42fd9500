"""Builds in parts in stores on loopback: faults on the way, helpers that share nothing else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from parted import Plain, read_lines
from servers import Fault, Proxy
from stored import objects_of, short_waits

import torchyoga as yoga
from torchyoga import Storage
from torchyoga.errors import ExistsError


def test_each_kind_of_store_gives_the_version_of_one_process(place: tuple[str, Any], tmp_path: Path) -> None:
    url, options = place
    storage = Storage(url, storage_options=options, cache_dir=tmp_path / "cache", lease_seconds=5)
    one = storage.submit(Plain(60), "one", "1.0")
    with ThreadPoolExecutor(2) as executor:
        many = storage.submit(Plain(60), "many", "1.0", executor=executor)
    assert many.fingerprint == one.fingerprint
    lines = storage.submit(yoga.flat_map(list(range(9)), read_lines), "lines", "1.0", together=True)
    assert len(lines) == sum(number % 4 for number in range(9))
    for id, version in storage.list():
        storage.check(id, version)


FAULTS = {
    "503": [Fault("status", status=503, every=7)],
    "lost replies": [Fault("lost reply", method="PUT", every=5)],
    "cut": [Fault("refuse", every=9), Fault("cut upload", method="PUT", bytes=50, every=11)],
}


@pytest.mark.parametrize("kind", list(FAULTS))
def test_helpers_with_a_bad_network_build_one_version(
    kind: str, proxy: Proxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_waits(0.01, patch=monkeypatch.setattr)

    def helper(number: int) -> str:
        storage = Storage(
            f"s3://{bucket}/p",
            storage_options=proxy.storage_options,
            cache_dir=tmp_path / f"cache{number}",
            lease_seconds=5,
        )
        return str(storage.submit(Plain(80), "a", "1.0", together=True, progress=False).fingerprint)

    proxy.faults = FAULTS[kind]
    with ThreadPoolExecutor(3) as helpers:
        found = list(helpers.map(helper, range(3)))
    proxy.clear()
    assert len(set(found)) == 1
    storage = Storage(f"s3://{bucket}/p", storage_options=proxy.storage_options, cache_dir=tmp_path / "cache")
    storage.check("a", "1.0")
    assert storage.submit(Plain(80), "b", "1.0").fingerprint == found[0]
    assert not [name for name in objects_of(storage).find() if name.startswith(".builds")]


def test_publishing_many_parts_costs_few_requests(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    storage = Storage(f"s3://{bucket}/p", storage_options=proxy.storage_options, cache_dir=tmp_path / "cache")
    plan = storage.plan(Plain(100), "a", "1.0", parts=20)
    for part in plan.parts:
        part.build()
    proxy.clear()
    plan.publish()
    assert len(proxy.seen("GET", "done/")) == 20
    assert len(proxy.requests) <= 20 + 3 * 20 + 40  # notes are read, and then deleted with their claims
    with pytest.raises(ExistsError):
        storage.plan(Plain(100), "a", "1.0")
