"""Builds in parts by real engines: each gives the version of one process, also if workers are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
from children import forked
from parted import Deadly, Plain
from waiting import eventually

import torchyoga as yoga
from docs import ENGINE_EXAMPLES, ROOT, blocks
from torchyoga import Storage
from torchyoga.errors import YogaError

ROWS = 240
PROGRAM = Path(__file__).parent / "together.py"


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> str:
    storage = Storage(tmp_path_factory.mktemp("one"))
    return str(storage.submit(Plain(ROWS), "one", "1.0").fingerprint)


@pytest.fixture
def marks(tmp_path) -> Path:
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def built_in_calls(storage, data, make):
    """The version, after calls whose pools have broken."""
    for _ in range(4):
        with suppress(YogaError):
            return storage.submit(data, "a", "1.0", executor=make())
    return storage.submit(data, "a", "1.0", executor=make())


@pytest.mark.xdist_group("pools")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_process_pool_with_a_kill_after_every_other_note(method, tmp_path, marks, expected):
    storage = Storage(tmp_path / "storage")
    data = Deadly(ROWS, marks, (30, 90, 150, 210))
    ref = built_in_calls(storage, data, lambda: ProcessPoolExecutor(2, get_context(method)))
    assert ref.fingerprint == expected
    assert len(list(marks.glob("*.once"))) == 4


@pytest.mark.xdist_group("pools")
def test_loky_with_kills(tmp_path, marks, expected):
    loky = pytest.importorskip("loky", reason="loky is not installed: make test-engines")
    storage = Storage(tmp_path / "storage")

    def pool():
        return loky.get_reusable_executor(max_workers=2)

    assert built_in_calls(storage, Deadly(ROWS, marks, (20, 130)), pool).fingerprint == expected
    loky.get_reusable_executor(max_workers=2).shutdown(kill_workers=True)


@pytest.mark.xdist_group("dask")
def test_dask_with_kills(dask_client, tmp_path, marks, expected):
    storage = Storage(tmp_path / "storage", lease_seconds=2)
    data = Deadly(ROWS, marks, (20, 100, 200))
    ref = storage.submit(data, "a", "1.0", executor=dask_client.get_executor(pure=False))
    assert ref.fingerprint == expected


@pytest.mark.xdist_group("ray")
def test_ray_with_kills(ray_started, tmp_path, marks, expected):
    storage = Storage(tmp_path / "storage")
    data = Deadly(ROWS, marks, (20, 100, 200))
    (recipe,) = blocks(ROOT / "docs" / "caching.md", "py")
    made: dict = {}
    exec(recipe, made)
    executor = made["RayExecutor"](num_cpus=1)
    assert storage.submit(data, "a", "1.0", executor=executor).fingerprint == expected
    lines = yoga.flat_map(list(range(30)), lambda number: [{"x": number}] * (number % 3))
    assert len(storage.submit(lines, "lines", "1.0", executor=executor)) == 30


@pytest.mark.xdist_group("pools")
def test_a_stopped_worker_whose_part_is_done_twice(tmp_path, marks, expected):
    folder = tmp_path / "storage"
    data = Deadly(ROWS, marks, (75,), how=signal.SIGSTOP)
    data.owner = 0

    def help_out() -> None:
        Storage(folder, lease_seconds=1).submit(data, "a", "1.0", together=True)

    waits = [forked(help_out) for _ in range(2)]
    eventually(lambda: (marks / "75.once").exists() and (marks / "75.once").read_text() != "")
    storage = Storage(folder, lease_seconds=1)
    eventually(lambda: ("a", "1.0") in storage.list())
    os.kill(int((marks / "75.once").read_text()), signal.SIGCONT)
    assert [wait() for wait in waits] == [0, 0]
    assert storage.fetch("a", "1.0").fingerprint == expected
    storage.check("a", "1.0")
    assert not (folder / ".builds" / "a").exists()


@pytest.mark.xdist_group("pools")
def test_a_driver_killed_between_the_last_note_and_the_manifest(tmp_path, expected):
    folder = tmp_path / "storage"

    def drive() -> None:
        from torchyoga.caching.many import BuildJob

        BuildJob.publish = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,method-assign]
        Storage(folder).submit(Plain(ROWS), "a", "1.0", executor=ThreadPoolExecutor(2))

    assert forked(drive)() == -signal.SIGKILL
    storage = Storage(folder)
    assert storage.list() == []
    built = sorted(path.name for path in (folder / "a" / "1.0").iterdir())
    ref = storage.submit(Plain(ROWS), "a", "1.0", together=True)
    assert ref.fingerprint == expected
    assert sorted(path.name for path in (folder / "a" / "1.0").iterdir()) == [*built, "manifest.json"]


@pytest.mark.xdist_group("torchrun")
def test_torchrun_helps(tmp_path, expected):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = [str(PROGRAM), str(tmp_path / "storage"), "a", str(tmp_path / "notes"), "{}"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [expected] * 2
    pids = len(set((tmp_path / "notes").read_text().split()))
    assert pids == ROWS


@pytest.mark.xdist_group("s3")
def test_plain_processes_that_share_only_a_store(tmp_path, expected):
    pytest.importorskip("moto", reason="moto is not installed")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        keys = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
        import s3fs

        s3fs.S3FileSystem(**keys).mkdir("bucket")
        helpers = []
        for number in range(3):
            options = {
                "storage_options": keys,
                "cache_dir": str(tmp_path / f"cache{number}"),
                "lease_seconds": 2,
            }
            arguments = ["s3://bucket/x", "a", str(tmp_path / f"notes{number}"), json.dumps(options)]
            helpers.append(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, text=True
                )
            )
        eventually(lambda: any((tmp_path / f"notes{number}").exists() for number in range(3)))
        victim = next(n for n in range(3) if (tmp_path / f"notes{n}").exists())
        eventually(lambda: len((tmp_path / f"notes{victim}").read_text().split()) > 20)
        helpers[victim].kill()
        found = [helper.communicate(timeout=240)[0].split() for helper in helpers]
        assert {text for words in found for text in words} == {expected}
        storage = Storage("s3://bucket/x", storage_options=keys, cache_dir=tmp_path / "cache")
        storage.check("a", "1.0")
    finally:
        server.stop()


@pytest.mark.xdist_group("dask")
@pytest.mark.parametrize("name", ENGINE_EXAMPLES)
def test_the_examples_do_what_they_say(name):
    pytest.importorskip("distributed", reason="Dask is not installed: make test-engines")
    example = Path(__file__).parents[2] / "examples" / f"{name}.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "killed a worker" in done.stdout
    assert ENGINE_EXAMPLES[name] in done.stdout
    assert "620 rows as {'prod': '1.1'}" in done.stdout
