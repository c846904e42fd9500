"""Real engines, started once for all tests of a process, whose workers find the modules of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session", autouse=True)
def modules_of_tests() -> Iterator[None]:
    """Workers are processes of their own, which import the datasets of the tests."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent), *([before] if before else [])])
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def dask_client() -> Iterator[object]:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: make test-engines")
    with (
        distributed.LocalCluster(
            2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def ray_started() -> Iterator[object]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: make test-engines")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield ray
    ray.shutdown()
