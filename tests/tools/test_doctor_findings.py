"""Each kind of finding of the doctor's, provoked for real, and what is like it but right."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
import torch
from children import run_program, started
from doctored import (
    PATIENCE,
    Drawing,
    Hanging,
    Held,
    Sharded,
    Slow,
    Streamed,
    in_trial,
    seeded_alike,
    trial_of,
)
from groups import control_group
from residency import on_disk
from stored import an_hour_later, store_of, watched
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

import torchyoga as yoga
from torchyoga.loading.meter.pace import most_workers
from torchyoga.stores.lease import Lease
from torchyoga.stores.objects import Remote
from torchyoga.stores.opened import opened
from torchyoga.tools.doctor.cpus import Cpus, few_cpus, seconds_of_all, throttled
from torchyoga.tools.doctor.disk import Disk, disk_findings, file_system, files_in, read
from torchyoga.tools.doctor.handles import handle_findings, open_handles, unpicklable
from torchyoga.tools.doctor.leftovers import leftover_findings, leftovers
from torchyoga.tools.doctor.patient import Patient
from torchyoga.tools.doctor.randomness import drawn, same_numbers
from torchyoga.tools.doctor.sharding import RunningJob, dealt, disagreeing, order, order_findings
from torchyoga.tools.doctor.shared_memory import orphaned, orphans, small_shared_memory
from torchyoga.tools.doctor.trial import Step, tried
from torchyoga.tools.doctor.workers import counts, few_workers, rates_text, recommended

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
ROOT = Path(yoga.__file__).parents[1]


# -- CPUs


def test_an_affinity_of_one_cpu_is_a_finding() -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("there is only one CPU")
    code = """
    import os
    import torchyoga as yoga
    from torchyoga.tools.doctor.cpus import Cpus, few_cpus
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for finding in yoga.doctor(seconds=20).findings:
        print(finding.name, finding.severity, finding.measured, finding.change, sep="|")
    print("fits", [*few_cpus(Cpus.now(), 1)])
    print("many", [finding.severity for finding in few_cpus(Cpus.now(), 2)])
    """
    lines = run_program(textwrap.dedent(code)).stdout.splitlines()
    (few,) = (line.split("|") for line in lines if line.startswith("few-cpus"))
    assert few[1] == "maybe"
    assert few[2].startswith(f"os.cpu_count() says {os.cpu_count()} CPUs, but the affinity allows 1")
    assert few[3] == "num_workers=1"
    assert lines[-2:] == ["fits []", "many ['maybe']"]


@pytest.mark.parametrize("is_second", [True, False], ids=["v2", "v1"])
def test_a_quota_of_a_group_or_of_one_above_it_is_a_finding(tmp_path: Path, is_second: bool) -> None:
    group = "/" if is_second else "cpu,cpuacct"
    inner = tmp_path / "sys/fs/cgroup" / ("" if is_second else group) / "pod/job"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    line = "0::/pod/job" if is_second else "4:memory:/x\n3:cpu,cpuacct:/pod/job"
    (tmp_path / "proc/self/cgroup").write_text(line + "\n")
    if is_second:
        (inner / "cpu.max").write_text("max 100000\n")
        (inner.parent / "cpu.max").write_text("50000 100000\n")
        stat = "usage_usec 9\nnr_periods 100\nnr_throttled 40\nthrottled_usec 2500000\n"
    else:
        for folder, quota in ((inner, -1), (inner.parent, 50000)):
            (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")
        stat = "nr_periods 100\nnr_throttled 40\nthrottled_time 2500000000\n"
    (inner / "cpu.stat").write_text(stat)
    found = Cpus.now(tmp_path)
    assert (found.quota, found.usable, found.periods, found.held_back) == (0.5, 1, 100, 40)
    assert found.seconds == pytest.approx(2.5)
    if found.machine > 1:
        (few,) = few_cpus(found, None)
        assert "the control group's quota is 0.5" in few.measured
    (held,) = throttled(None, found)
    assert "in 40 of 100 periods, for 2.5 s" in held.measured
    # What was before the examination is no finding, once enough was seen of it.
    for held_back in (41, 90):
        later = stat.replace("periods 100", "periods 200").replace("throttled 40", f"throttled {held_back}")
        (inner / "cpu.stat").write_text(later)
        assert any(throttled(found, Cpus.now(tmp_path))) == (held_back == 90)


def test_a_process_that_its_group_holds_back_is_throttled() -> None:
    first = {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "2000"}
    with control_group("cpu", first, {"cpu.max": "2000 10000"}) as folder:
        code = f"""
        import os, time
        from pathlib import Path
        Path({str(folder)!r}, "cgroup.procs").write_text(str(os.getpid()))
        from torchyoga.tools.doctor.cpus import Cpus, few_cpus, throttled
        before = Cpus.now()
        while Cpus.now().periods < before.periods + 20:
            sum(range(10_000))
        now = Cpus.now()
        print(now.quota, now.usable, [finding.name for finding in throttled(before, now)])
        """
        assert run_program(textwrap.dedent(code)).stdout.strip() == "0.2 1 ['throttled']"


def test_what_other_processes_take_of_the_cpus_is_known() -> None:
    before = seconds_of_all()
    run_program("import time\nwhile time.process_time() < 1: sum(range(10_000))")
    assert seconds_of_all() - before >= 0.9  # it counts in hundredths
    assert "while other processes took 30% of the CPUs" in rates_text({0: 1.0}, 0.3)
    assert "other" not in rates_text({0: 1.0}, 0.1)


# -- shared memory


@pytest.mark.rest
def test_a_small_shared_memory_is_a_finding() -> None:
    """In a namespace with a /dev/shm of 2 MB, where a worker with batches of 3 MB dies."""
    code = """
    import sys
    import torch, torchyoga as yoga
    from doctored import Slow
    from torchyoga.tools.doctor.examination import examined
    from torchyoga.tools.doctor.patient import Patient
    for size in (100_000, 750_000):
        loader = torch.utils.data.DataLoader(Slow(0.0, (size // 8,)), batch_size=8, num_workers=2)
        found = examined(Patient.of(loader), seconds=20, with_rates=False)
        print([one.measured for one in found.findings if one.name == "small-shm"], flush=True)
    ours = yoga.DataLoader(Slow(0.0, (25_000,)), batch_size=8, num_workers=2)
    found = examined(Patient.of(ours), seconds=20, with_rates=False)
    print([one.name for one in found.findings if one.name == "small-shm"])
    """
    mounted = "mount -t tmpfs -o size=2m tmpfs /dev/shm"
    if (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "-rm", "sh", "-c", mounted], capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted in a namespace here")
    script = f'{mounted} && exec "$0" -c "$1"'
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, sys.executable, textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert (
        "['/dev/shm has 2 MB free of 2 MB; 2 workers x 2 batches ahead + 1 are 5 batches of 400 kB: 2 MB"
        not in lines
    )
    assert "5 batches of" in lines[1]
    assert lines[2] == "[]"  # our batches travel elsewhere


def test_shared_memory_is_compared_with_all_batches_under_way(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    (finding,), measured = small_shared_memory(4, 2, free // 4, str(tmp_path))
    assert "4 workers x 2 batches ahead + 1 are 9 batches" in measured == finding.measured
    assert finding.change.startswith("num_workers=0, or docker run --shm-size=")
    (finding,), _ = small_shared_memory(2, 8, free // 10, str(tmp_path))
    assert finding.change.startswith("prefetch_factor=4, or")
    assert small_shared_memory(2, 2, 1000, str(tmp_path))[0] == []
    assert small_shared_memory(2, 2, 1000, str(tmp_path / "none"))[0] == []


# -- random numbers


def same(loader: DataLoader[Any]) -> list[str]:
    return [finding.measured for finding in same_numbers(in_trial(drawn, Patient.of(loader)))]


@pytest.mark.quick("ours-own", "torch's-own torch")
@pytest.mark.parametrize("kind", ["own", "own random", "own torch"])
@pytest.mark.parametrize("make", [yoga.DataLoader, DataLoader], ids=["ours", "torch's"])
def test_a_generator_that_each_worker_has_a_copy_of_is_a_finding(make: Any, kind: str) -> None:
    found = same(make(Drawing(kind), batch_size=4, num_workers=2))
    at = "which stood at the same place in two workers and in two epochs"
    (said,) = found
    assert said.startswith(f"rows drew from dataset.generator, {at}; the rows are equal")


def test_the_same_numbers_in_each_epoch_are_a_finding() -> None:
    (found,) = same(DataLoader(Drawing("own"), num_workers=1))
    assert found.startswith("rows drew from dataset.generator, which stood at the same place in two epochs")
    assert same(DataLoader(Drawing("own"), num_workers=1, persistent_workers=True)) == []


@pytest.mark.quick("random-random")
@pytest.mark.parametrize(("kind", "name"), [("numpy", "numpy.random"), ("random", "random")])
def test_a_function_that_seeds_all_workers_alike_is_a_finding(kind: str, name: str) -> None:
    (found,) = same(DataLoader(Drawing(kind), num_workers=2, worker_init_fn=seeded_alike))
    assert found.startswith(f"rows drew from {name}, which stood at the same place in two workers")
    # Rows are seeded after it.
    assert same(yoga.DataLoader(Drawing(kind), num_workers=2, worker_init_fn=seeded_alike)) == []
    # Nothing is drawn from it.
    assert same(DataLoader(Drawing("torch"), num_workers=2, worker_init_fn=seeded_alike)) == []


class SeedsItself(Dataset[float]):
    """Rows that seed the generator themselves: by their number, or all alike."""

    def __init__(self, alike: bool) -> None:
        self.alike = alike

    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> float:
        random.seed(0 if self.alike else row)
        return random.random()


def test_rows_that_are_to_be_the_same_in_each_epoch_are_none() -> None:
    assert same(DataLoader(SeedsItself(alike=False), num_workers=2)) == []
    (found,) = same(DataLoader(SeedsItself(alike=True), num_workers=2))
    assert found.startswith("two rows seeded random with the same number")


def test_a_slow_batch_is_no_hang() -> None:
    loader = DataLoader(Slow(0.3), batch_size=32, num_workers=2)
    diagnosis = yoga.doctor(loader, seconds=6)
    assert "hang" not in [finding.name for finding in diagnosis.findings]
    (slow,) = [finding for finding in diagnosis.findings if finding.name == "slow-rows"]
    assert re.match(r"a row takes 0\.\d+ s; first batch: not within 2 s", slow.measured)


def test_a_dataset_without_row_numbers_is_looked_at_too() -> None:
    assert len(same(DataLoader(Streamed(Drawing("own")), num_workers=2))) == 1
    assert same(DataLoader(Streamed(Drawing("numpy")), num_workers=2)) == []


# -- handles


@contextlib.contextmanager
def handle(kind: str, folder: Path) -> Iterator[Any]:
    """An open handle of a kind."""
    if kind == "h5py":
        with h5py.File(folder / "a.h5", "w") as file:
            yield file
    elif kind == "h5py dataset":
        with h5py.File(folder / "a.h5", "w") as file:
            yield file.create_dataset("x", data=[1])
    elif kind == "lmdb":
        with lmdb.open(str(folder / "a.lmdb")) as environment:
            yield environment
    elif kind == "sqlite3":
        with contextlib.closing(sqlite3.connect(folder / "a.db")) as connection:
            yield connection
    elif kind == "socket":
        with socket.socket() as found:
            yield found
    elif kind == "file":
        with open(folder / "a", "wb") as opened_file:
            yield opened_file
    elif kind == "lock":
        lock = threading.Lock()
        with lock:
            yield lock
    elif kind == "thread":
        end = threading.Event()
        thread = threading.Thread(target=end.wait)
        thread.start()
        yield thread
        end.set()
        thread.join()


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("h5py", "an open h5py.File"),
        ("h5py dataset", "an open h5py.Dataset"),
        ("lmdb", "an open lmdb.Environment"),
        ("sqlite3", "a sqlite3.Connection"),
        ("socket", "an open socket"),
        ("file", "an open file"),
        ("lock", "a lock of threads that is held"),
        ("thread", "a running thread"),
    ],
)
def test_an_open_handle_is_named_by_its_attribute(kind: str, what: str, tmp_path: Path) -> None:
    with handle(kind, tmp_path) as held:
        dataset = Subset(Held({"files": [None, held]}), [1, 2])
        path = "dataset.dataset.held['files'][1]"
        assert open_handles(dataset) == [(path, what)]
        at, error = trial_of(lambda found: unpicklable(dataset)).found["step"] or (path, "")
        assert bool(error) == (kind != "socket")  # spawned workers get a copy of it
        assert at.startswith(path)
        open_one, pickled = handle_findings(
            {"open": open_handles(dataset), "unpicklable": (at, error)}, "fork", 2
        )
        assert (open_one.name, open_one.severity) == ("fork-unsafe", "maybe")
        assert open_one.measured == f"{path} is {what}"
        assert path in open_one.change
        assert (pickled.name, pickled.severity) == ("not-picklable", "maybe")
        for raised, severity in ((None, "maybe"), ("TypeError: cannot pickle it", "wrong")):
            found = {"open": [(path, what)], "unpicklable": (at, error)}
            (pickled,) = handle_findings(found, "spawn", 2, error=raised)
            assert pickled.severity == severity
    if kind not in ("thread", "h5py dataset"):  # it is closed or free now
        assert open_handles(Held(held)) == []


def test_a_lambda_is_to_be_a_function_of_a_module() -> None:
    for dataset in (Held(lambda row: row), Held(yoga.from_arrays({"x": np.arange(3)}).map(lambda row: row))):
        seen = {"open": [], "unpicklable": unpicklable(dataset)}
        (finding,) = handle_findings(seen, "spawn", 2)
        assert "a function of a module, in place of a lambda" in finding.change


def test_what_survives_a_fork_is_no_finding(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    ref = storage.submit([{"x": 1}, {"x": 2}], "a", "1", progress=False)
    ref[0]
    for dataset in (ref, Subset(ref, [0]), Held(ref), ref.map(dict), Held(torch.Generator()), Held(tmp_path)):
        assert open_handles(dataset) == []
    for dataset in (ref, Subset(ref, [0]), Held(ref), Held(tmp_path)):
        assert trial_of(lambda found, dataset=dataset: unpicklable(dataset)).found["step"] is None  # type: ignore[misc]


def test_a_function_that_does_not_pickle_is_named() -> None:
    held = Held({"transform": lambda row: row})
    at, error = trial_of(lambda found: unpicklable(held)).found["step"]
    assert at == "dataset.held['transform']"
    assert "lambda" in error
    cycle: list[Any] = []
    cycle.append(cycle)
    assert open_handles(Held(cycle)) == []


# -- sharding


@pytest.mark.parametrize("loader", [DataLoader, yoga.DataLoader])
@pytest.mark.parametrize(
    ("name", "drops", "dropped"), [("valid", True, 8), ("valid", False, 0), ("train", True, 0)]
)
def test_an_evaluation_that_drops_rows_is_named(loader: Any, name: str, drops: bool, dropped: int) -> None:
    patient = Patient.of(loader(list(range(200)), batch_size=64, drop_last=drops), [name])
    found = order_findings(order(patient), patient, 200)
    assert [one.measured for one in found] == [
        f"valid looks like an evaluation, and drops {dropped} of 200 rows" for _ in range(bool(dropped))
    ]


def named(dataset: Any, job: RunningJob, **arguments: Any) -> list[str]:
    return [finding.name for finding in dealt(Patient.of(DataLoader(dataset, **arguments)), job)]


def test_rows_that_are_dealt_twice_or_to_nobody_are_a_finding() -> None:
    rows, job = Slow(0.0), RunningJob(4, 1)
    sampler = DistributedSampler(rows, num_replicas=4, rank=1)
    assert named(rows, job, sampler=sampler) == []
    assert named(rows, job) == ["not-sharded"]
    assert named(rows, job, shuffle=True) == ["not-sharded"]
    assert named(rows, RunningJob()) == []
    assert named(rows, RunningJob(), sampler=sampler) == ["wrong-ranks"]
    for part in (Subset(rows, range(1, 64, 4)), Sharded(1, 4), Held(Sharded(1, 4))):
        assert named(part, job) == []
        again = DistributedSampler(part, num_replicas=4, rank=1)
        assert named(part, job, sampler=again) == ["sharded-twice"]
    # A split of the user's own is not a rank's part.
    odd = Subset(rows, range(1, 64, 2))
    assert named(odd, job, sampler=DistributedSampler(odd, num_replicas=4, rank=1)) == []
    shuffled = Subset(rows, torch.randperm(64).tolist())
    assert named(shuffled, job, sampler=DistributedSampler(shuffled, num_replicas=4, rank=1)) == []


def test_our_loader_in_a_job_that_is_not_initialised_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = yoga.DataLoader(Slow(0.0), batch_size=4)
    assert not [*dealt(Patient.of(loader), RunningJob.now())]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    (finding,) = dealt(Patient.of(loader), RunningJob.now())
    assert finding.name == "not-sharded"
    assert finding.change == "call init_process_group before the first batch"
    given = yoga.DataLoader(Slow(0.0), batch_size=4, num_replicas=2, rank=1)
    assert not [*dealt(Patient.of(given), RunningJob.now())]


@pytest.mark.parametrize("name", ["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"])
def test_other_launchers_start_ranks_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "4")
    rows = Slow(0.0)
    sampler = DistributedSampler(rows, num_replicas=4, rank=1)
    assert named(rows, RunningJob.now(), sampler=sampler) == []
    assert named(rows, RunningJob.now()) == []  # perhaps it trains alone
    monkeypatch.setenv(name, "x")
    assert named(rows, RunningJob.now(), sampler=sampler) == ["wrong-ranks"]


def test_a_loader_that_was_told_its_rank_is_no_mistake() -> None:
    told = yoga.DataLoader(Slow(0.0), batch_size=4, num_replicas=1, rank=0)
    (finding,) = dealt(Patient.of(told), RunningJob(2, 0, True))
    assert (finding.name, finding.severity) == ("not-sharded", "maybe")
    assert "yoga.DataLoader gives this one all rows" in finding.measured


def test_two_processes_of_a_group_are_looked_at(tmp_path: Path) -> None:
    code = """
    import sys
    import torch.distributed as dist
    import torchyoga as yoga
    from torch.utils.data import DataLoader
    from torchyoga.tools.doctor.patient import Patient
    from torchyoga.tools.doctor.sharding import RunningJob, dealt
    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/meet", rank=rank, world_size=2)
    alone = yoga.DataLoader(range(8), 2, num_replicas=1, rank=0)
    for loader in (yoga.DataLoader(range(8), 2), DataLoader(range(8), 2), alone):
        print([finding.name for finding in dealt(Patient.of(loader), RunningJob.now())])
    dist.destroy_process_group()
    """
    with started(textwrap.dedent(code), "1", str(tmp_path)) as other:
        first = run_program(textwrap.dedent(code), "0", str(tmp_path))
        second = other.stdout.read()
    expected = "[]\n['not-sharded']\n['not-sharded']\n"
    assert (first.stdout, second) == (expected, expected), first.stderr


def test_receipts_of_ranks_show_rows_that_came_twice() -> None:
    def receipts(ranks: list[int], seeds: list[int]) -> list[Any]:
        found = []
        for rank, seed in zip(ranks, seeds, strict=True):
            loader = yoga.DataLoader(range(64), 4, shuffle=True, seed=seed, num_replicas=2, rank=rank)
            batches = iter(loader)
            for _ in range(3):
                next(batches)
            found.append(loader.receipt())
        return found

    assert not [*disagreeing(receipts([0, 1], [7, 7]))]
    assert not [*disagreeing([])]
    for ranks, seeds, said in (([0, 0], [7, 7], "the same rank"), ([0, 1], [7, 8], "has seed 8")):
        (finding,) = disagreeing(receipts(ranks, seeds))
        assert (finding.name, said in finding.measured) == ("sharded-twice", True)
    diagnosis = yoga.doctor(seconds=20, receipts=receipts([1, 1], [7, 7]))
    assert "sharded-twice" in [finding.name for finding in diagnosis.findings]


# -- the disk


def test_a_version_that_is_not_in_memory_is_a_cold_cache(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    rows = ({"x": np.full(2**20, row, np.uint8)} for row in range(20))
    ref = storage.submit([*rows], "large", "1", progress=False)
    paths = files_in(Subset(ref, [1]))
    assert paths
    assert all(os.path.samefile(Path(path).parent.parent, tmp_path / "storage" / "large") for path in paths)
    warm = Disk(**read(paths, 2.0))
    assert warm.cached is not None
    assert not [one for one in disk_findings(warm, paths[0]) if one.name != "network-disk"]
    for path in paths:
        on_disk(Path(path))
    cold = Disk(**read(paths, 2.0))
    if cold.in_memory is None or cold.in_memory > 0.5:
        pytest.skip("this file system keeps its files in memory")
    names = [finding.name for finding in disk_findings(cold, paths[0], slow=0.0)]
    assert "cold-cache" in names
    assert "slow-disk" not in names
    if cold.direct is not None:
        slow = {finding.name: finding for finding in disk_findings(cold, paths[0], slow=1e15)}
        assert "slow-disk" in slow
        wanted = disk_findings(cold, paths[0], wanted=1e15, slow=0.0)
        assert any("the loader could take" in finding.measured for finding in wanted)


def test_a_network_file_system_is_known_by_its_mount(tmp_path: Path) -> None:
    folder = tmp_path / "proc/self"
    folder.mkdir(parents=True)
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/vda rw",
        "2 1 0:5 / /data rw,relatime shared:3 - nfs4 server:/data rw",
        r"3 1 0:6 / /data/my\040disk rw - xfs /dev/vdb rw",
        "4 1 0:7 / /hub rw - fuse.s3fs s3fs rw",
        "5 1 0:8 / /over rw - fuse.fuse-overlayfs fuse rw",
    ]
    (folder / "mountinfo").write_text("\n".join(lines) + "\n")
    kinds = {
        path: file_system(path, tmp_path)
        for path in ("/a", "/data/x", "/data/my disk/x", "/hub/a", "/database", "/over/a")
    }
    assert list(kinds.values()) == ["ext4", "nfs4", "xfs", "fuse.s3fs", "ext4", "fuse.fuse-overlayfs"]
    found = {kind: any(disk_findings(Disk(kind, 9, 1.0, None, 1e9, 10**9), "/a")) for kind in kinds.values()}
    assert [kind for kind, is_found in found.items() if is_found] == ["nfs4", "fuse.s3fs"]
    assert file_system(str(tmp_path))  # this machine's


# -- workers and threads


def test_a_loader_that_would_be_faster_with_workers_is_a_finding() -> None:
    diagnosis = yoga.doctor(DataLoader(Slow(0.02), batch_size=2), seconds=12)
    found = [finding for finding in diagnosis.findings if finding.name == "num-workers"]
    if max(counts(Cpus.now().usable, 0)) >= 2:
        assert found[0].change.startswith("num_workers=")
        assert found[0].change != "num_workers=0"
    most = most_workers(Cpus.now().usable)
    assert f"with {most}" in diagnosis.measured["workers"]  # its rows wait, so that they take no turns
    assert "with 0" in diagnosis.measured["workers"]


def test_the_smallest_number_of_workers_as_good_as_the_best_is_recommended() -> None:
    rates = {0: 100.0, 1: 90.0, 2: 190.0, 4: 200.0, 8: 199.0}
    assert recommended(rates) == 2
    (few,) = few_workers(rates, 0)
    assert (few.change, few.severity) == ("num_workers=2", "maybe")  # no loop was seen that waits
    for current in (2, 4, None, 3):
        assert not [*few_workers(rates, current)]
    assert counts(6, None) == [0, 1, 2, 4, 6]
    assert counts(1, 3) == [0, 1, 3]
    assert recommended({0: 96.0, 1: 100.0}) == 0


@pytest.mark.rest
def test_threads_of_workers_that_are_more_than_the_cpus_are_a_finding() -> None:
    code = """
    import numpy as np, torch
    from torchyoga.tools.doctor.patient import Patient
    from torchyoga.tools.doctor.cpus import oversubscribed, used_threads
    from torchyoga.tools.doctor.trial import Step, tried
    class Multiplied(torch.utils.data.Dataset):
        def __init__(self, size): self.size = size
        def __len__(self): return 64
        def __getitem__(self, row):
            a = np.ones((self.size, self.size))
            return float((a @ a)[0, 0])
    for size in (700, 1):
        patient = Patient.of(torch.utils.data.DataLoader(Multiplied(size), num_workers=4))
        found = tried([Step("step", lambda found: used_threads(patient), 100)], 100).found["step"]
        print([finding.name for finding in oversubscribed(found, 4, 2)], found)
        print([*oversubscribed(found, 4, 1000)])
    """
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "4", "OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr
    assert lines[0].startswith("['thread-oversubscription']"), lines
    assert lines[1] == "[]"
    assert lines[2].startswith("[]"), lines
    assert lines[3] == "[]"


def test_a_trial_ends_what_it_has_started(tmp_path: Path) -> None:
    def work(found: dict[str, Any]) -> None:
        child = os.fork()
        if child == 0:
            threading.Event().wait()
        (tmp_path / "pid").write_text(str(child))
        threading.Event().wait()

    trial = trial_of(work, 1.0)
    assert trial.found == {}
    assert trial.left
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 60
    while time.monotonic() < end and _is_running(pid):
        time.sleep(0.02)
    assert not _is_running(pid)
    died = trial_of(lambda found: os.kill(os.getpid(), signal.SIGKILL))
    assert died.left == {"step": "it ended the process that tried it"}
    assert Hanging(True)  # which the test of the whole uses


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- what killed processes leave


BUILDER = """
import os, signal, sys
import numpy as np
import torchyoga as yoga

class Rows:
    def __len__(self):
        return 100
    def __getitem__(self, row):
        if row == 60:
            print("half", flush=True)
            sys.stdin.readline()
        return {"x": np.full(10_000, row, np.uint8)}

yoga.Storage(sys.argv[1]).submit(Rows(), "digits", "1", progress=False)
"""


def test_a_killed_builder_leaves_a_build_and_a_lock(tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    yoga.Storage(folder).submit([{"x": 1}], "other", "1", progress=False)
    store = opened(folder)
    assert leftovers(store) == []
    with started(BUILDER, str(folder)) as builder:
        assert builder.stdout.readline() == "half\n"
        assert leftovers(store) == []  # it is at work
        builder.kill()
    before = sorted(folder.rglob("*"))
    (finding,) = leftover_findings(leftovers(store), store.name)
    assert finding.name == "interrupted-build"
    assert f"in {folder}: .staging/digits/1 (of process {builder.pid} on " in finding.measured
    assert f"yoga gc --storage {folder} --grace " in finding.change
    assert sorted(folder.rglob("*")) == before  # nothing is deleted
    diagnosis = yoga.doctor(storage=folder, seconds=20)
    assert "interrupted-build" in [one.name for one in diagnosis.findings]
    yoga.Storage(folder).clean(0.0)
    assert leftovers(store) == []


def test_a_plan_at_which_nobody_is_is_a_finding(tmp_path: Path) -> None:
    yoga.Storage(tmp_path).plan(list(range(100)), "a", "1")
    store = opened(tmp_path)
    before = sorted((path, path.stat().st_mtime) for path in tmp_path.rglob("*"))
    assert leftovers(store) == []
    (found,) = leftovers(store, forgotten=-1.0)
    assert (found["kind"], found["name"]) == ("interrupted-build", ".builds/a/1")
    assert sorted((path, path.stat().st_mtime) for path in tmp_path.rglob("*")) == before  # no lock, either


def test_a_lock_without_a_build_is_a_finding(tmp_path: Path) -> None:
    code = """
    import sys
    from torchyoga.stores.opened import opened
    with opened(sys.argv[1]).lock("digits", "1"):
        print("held", flush=True)
        sys.stdin.readline()
    """
    store = opened(tmp_path)
    with started(textwrap.dedent(code), str(tmp_path)) as holder:
        assert holder.stdout.readline() == "held\n"
        assert leftovers(store) == []
        holder.kill()
    assert leftovers(store) == []  # whoever removes a version leaves as much
    os.utime(tmp_path / ".locks/digits/1.holder", (0, time.time() - 7200))
    (finding,) = leftover_findings(leftovers(store), store.name)
    assert finding.name == "stale-lock"
    assert ".locks/digits/1.lock (of process" in finding.measured
    yoga.Storage(tmp_path).clean(3600)
    assert not (tmp_path / ".locks/digits/1.lock").exists()  # as the command does


def test_files_that_no_version_names_are_a_finding(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    storage.submit([{"x": 1}], "a", "1", progress=False)
    folder = tmp_path / "a" / "1"
    (data,) = folder.glob("*.mdb")
    left = folder / f"{'0' * 16}-00000.mdb"
    shutil.copy(data, left)
    store = opened(tmp_path)
    assert leftovers(store) == []  # it may be about to be published
    os.utime(left, (0, time.time() - 7200))
    (finding,) = leftover_findings(leftovers(store), store.name)
    assert (finding.name, "untouched for 2 hours" in finding.measured) == ("forgotten-files", True)
    left.unlink()


def test_a_lease_whose_holder_is_silent_is_a_finding(tmp_path: Path) -> None:
    url = f"memory://doctor-{os.getpid()}"
    storage = watched((url, None), tmp_path)
    store = store_of(storage)
    with Lease(Remote(url, None), ".leases/a/1", "building", 60.0, 0.0):
        assert leftovers(store) == []
        an_hour_later(storage)
        (finding,) = leftover_findings(leftovers(store), store.name)
        assert finding.name == "stale-lease"
        assert f".leases/a/1 (of process {os.getpid()} on " in finding.measured
    assert leftovers(store) == []  # it was given up


def test_shared_memory_of_a_killed_process_is_a_finding() -> None:
    code = """
    import os, sys
    from multiprocessing import resource_tracker, shared_memory
    names = [f"torch_{os.getpid()}_1", f"psm_doctor{os.getpid()}", f"mine_{os.getpid()}"]
    parts = [shared_memory.SharedMemory(name, create=True, size=100_000) for name in names]
    for part in parts:
        part.buf[:] = bytes(100_000)
        resource_tracker.unregister(part._name, "shared_memory")
    print(*names, flush=True)
    sys.stdin.readline()
    """
    names: list[str] = []
    try:
        with started(textwrap.dedent(code)) as maker:
            names = maker.stdout.readline().split()
            assert not {one.name for one in orphans(old=0.0)} & set(names)  # it lives
            maker.kill()
        found = {one.name: one for one in orphans(old=0.0)}
        assert set(names) & found.keys() == set(names[:2])  # the third may be anybody's
        assert found[names[0]].nbytes >= 100_000
        assert {one.name for one in orphans()} & set(names) == {names[0]}  # the other is young
        (finding,) = orphaned([found[names[0]]])
        assert finding.change == f"rm /dev/shm/torch_{maker.pid}_*"
        (finding,) = orphaned([found[names[1]]])
        assert finding.change == f"rm /dev/shm/{names[1]}"
        assert Path("/dev/shm", names[0]).exists()  # nothing is deleted
    finally:
        for name in names:
            Path("/dev/shm", name).unlink(missing_ok=True)
    assert not [*orphaned([])]


@pytest.mark.rest
def test_a_step_that_computes_without_getting_a_cpu_is_not_idle() -> None:
    cpu = min(os.sched_getaffinity(0))

    def work(found: dict[str, Any]) -> None:
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while True:
            sum(range(1000))

    hog = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    with started(hog) as other:
        other.stdout.readline()
        hang = tried([Step("step", work, 1.0)], PATIENCE).hung
        other.kill()
    assert hang is not None
    assert not hang.is_idle


def test_each_kind_of_work_is_a_function() -> None:
    work: Callable[[dict[str, Any]], object] = lambda found: 1 / 0  # noqa: E731
    assert trial_of(work).errors == {"step": "ZeroDivisionError: division by zero"}
