"""Processes that fork while their threads talk to a store: the children must not wait for those threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import s3fs
from children import status_of_child
from machines import running
from servers import S3, Fault, Gcs, Proxy
from waiting import PATIENCE, eventually

import torchyoga as yoga

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ROWS = 400
Publish = Callable[[str, S3 | Gcs], object]


@pytest.fixture
def publish(files_of: Callable[[int], None], tmp_path: Path) -> Publish:
    """Publishes files of 10 rows."""
    files_of(10)
    return lambda url, server: yoga.Storage(
        url, storage_options=server.storage_options, cache_dir=tmp_path / "builder"
    ).submit([{"n": n} for n in range(ROWS)], "a", "1")


def test_a_fork_while_threads_wait_for_the_store(
    publish: Publish, bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    url = f"s3://{bucket}/p"
    publish(url, proxy)
    ref = yoga.Storage(url, storage_options=proxy.storage_options, cache_dir=tmp_path / "a").fetch("a", "1")
    proxy.clear()
    proxy.faults = [Fault("timeout", ".mdb", "GET", times=1)]
    waits = threading.Thread(target=lambda: ref[0], daemon=True)
    waits.start()
    eventually(lambda: any(request.fault for request in proxy.requests))

    def reads_all() -> None:
        ref.download(progress=False)  # by several threads
        assert sorted(int(row["n"]) for row in ref) == list(range(ROWS))

    assert status_of_child(reads_all) == 0
    proxy.clear()
    proxy.down()  # a waiting thread is woken at once
    proxy.up()
    waits.join(PATIENCE)
    assert not waits.is_alive()


LATE_FORMAT = """
import os, sys, time
import torchyoga as yoga

if __name__ == "__main__":
    ref = yoga.Storage(sys.argv[1], storage_options=eval(sys.argv[2])).fetch("a", "1")
    assert "h5py" not in sys.modules
    fork = os.fork
    os.fork = lambda: (time.sleep(0.03), fork())[1]  # at many moments of what threads do
    loader = yoga.DataLoader(
        ref, batch_size=10, shuffle=True, num_workers=16, multiprocessing_context="fork", timeout=PATIENCE
    )
    assert sorted(n for batch in loader for n in batch["n"].tolist()) == list(range(ROWS))
    print("all rows", flush=True)
""".replace("ROWS", str(ROWS)).replace("PATIENCE", str(PATIENCE))


def test_threads_do_not_import_a_format_while_workers_are_forked(
    s3: S3, bucket: str, tmp_path: Path, files_of: Callable[[int], None]
) -> None:
    """Files that another tool has uploaded are checked by reading them, as soon as they are downloaded."""
    files_of(10)
    yoga.Storage(tmp_path / "here", format="hdf5").submit([{"n": n} for n in range(ROWS)], "a", "1")
    s3fs.S3FileSystem(**s3.storage_options).put(f"{tmp_path / 'here'}/", f"{bucket}/p/", recursive=True)
    arguments = (f"s3://{bucket}/p", repr(s3.storage_options))
    quiet = {"PYTHONWARNINGS": "ignore"}  # of more workers than cores
    with running(LATE_FORMAT, tmp_path / "machine", *arguments, environment=quiet, fresh=True) as machine:
        assert "all rows" in machine.check()
        assert machine.complaints == ""


TRAINING = """
import multiprocessing, sys
import torchyoga as yoga

def train(ref):
    loader = yoga.DataLoader(
        ref, batch_size=50, shuffle=True, num_workers=2, multiprocessing_context="fork", timeout=PATIENCE
    )
    for _ in range(2):
        assert sorted(n for batch in loader for n in batch["n"].tolist()) == list(range(ROWS))
    print("all rows", flush=True)

if __name__ == "__main__":
    url, options = sys.argv[1], eval(sys.argv[2])
    ref = yoga.Storage(url, storage_options=options).fetch("a", "1")
    process = multiprocessing.get_context("spawn").Process(target=train, args=(ref,))
    process.start()
    process.join(PATIENCE)
    sys.exit(process.exitcode)
""".replace("ROWS", str(ROWS)).replace("PATIENCE", str(PATIENCE))


@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_a_rank_that_was_spawned_forks_its_workers(
    store: str, publish: Publish, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Just before, it begins to plan and to download: the workers work without those threads."""
    server: S3 | Gcs = request.getfixturevalue(store)
    url = f"{ {'s3': 's3', 'gcs': 'gs'}[store] }://{server.new_bucket()}/p"
    publish(url, server)
    with running(TRAINING, tmp_path / "machine", url, repr(server.storage_options), fresh=True) as machine:
        assert "all rows" in machine.check()
        assert machine.complaints == ""
