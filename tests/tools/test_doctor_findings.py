"""Each kind of finding of the doctor's, provoked for real, and what is like it but right."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
import torch
from children import run_program, started
from commanding import process
from doctored import PATIENCE, Drawing, Held, Sharded, Slow, in_trial, seeded_alike
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset, TensorDataset
from waiting import eventually

import torchyoga as yoga
from torchyoga.process.control_group import usable_cpus
from torchyoga.tools.doctor.batch import EPOCH, small_shared_memory
from torchyoga.tools.doctor.contents import IN_PLACE, VALUES
from torchyoga.tools.doctor.diagnosis import Check
from torchyoga.tools.doctor.epochs import ORDER, RANDOM_NUMBERS, STALE_EPOCH, order_state
from torchyoga.tools.doctor.handles import HANDLES, open_handles
from torchyoga.tools.doctor.patient import Patient
from torchyoga.tools.doctor.sharding import RANKS, STREAMS, dealt
from torchyoga.tools.doctor.trial import ENDED, seconds_of_all, tried
from torchyoga.tools.doctor.workers import WORKERS, counts, enough
from torchyoga.tools.meter_advice import Verdict, most_workers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
ROOT = Path(yoga.__file__).parents[1]


# -- CPUs


def test_more_workers_than_the_affinity_allows_are_a_finding() -> None:
    code = """
    import os
    from torch.utils.data import DataLoader
    from torchyoga.tools.doctor.patient import Patient
    from torchyoga.tools.doctor.workers import WORKERS
    from torchyoga.process.control_group import usable_cpus
    cpu = min(os.sched_getaffinity(0))
    loaders = [DataLoader([1], num_workers=number) for number in (1, 2)]
    os.sched_setaffinity(0, {cpu})
    for loader in loaders:
        for waits in (False, True):
            facts = {"usable": usable_cpus(), "rates": [], "others": 0.0, "waits": waits}
            for finding in WORKERS.judge(Patient.of(loader), facts, {}):
                print(finding.name, finding.severity, finding.measured, finding.change[:13], sep="|")
    """
    measured = f"num_workers is 2; this process may keep 1 of {os.cpu_count()} CPUs busy"
    lines = run_program(textwrap.dedent(code)).stdout.splitlines()
    assert lines == [f"few-cpus|maybe|{measured}|fewer workers"]


def test_more_threads_than_cpus_are_none() -> None:
    """A loader of copied rows takes no more of them, however many are asked for."""
    number, rows = usable_cpus() + 1, yoga.from_arrays({"x": np.arange(99)})
    facts = {"usable": usable_cpus(), "rates": [], "others": 0.0, "waits": False}
    for options, names in (({}, []), ({"collate_fn": list}, ["few-cpus"])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's of so many
            patient = Patient.of(yoga.DataLoader(rows, 9, num_workers=number, **options))
        epoch = tried(partial(EPOCH.measure, patient, PATIENCE), PATIENCE).value
        assert [one.name for one in WORKERS.judge(patient, facts, {EPOCH.name: epoch})] == names


@pytest.mark.parametrize("is_second", [True, False], ids=["v2", "v1"])
def test_a_quota_of_a_group_or_of_one_above_it_counts(tmp_path: Path, is_second: bool) -> None:
    group = "/" if is_second else "cpu,cpuacct"
    inner = tmp_path / "sys/fs/cgroup" / ("" if is_second else group) / "pod/job"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    line = "0::/pod/job" if is_second else "4:memory:/x\n3:cpu,cpuacct:/pod/job"
    (tmp_path / "proc/self/cgroup").write_text(line + "\n")
    assert usable_cpus(tmp_path / "without") == len(os.sched_getaffinity(0))
    if is_second:
        (inner / "cpu.max").write_text("max 100000\n")
        (inner.parent / "cpu.max").write_text("50000 100000\n")
    else:
        for folder, quota in ((inner, -1), (inner.parent, 50000)):
            (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cpus(tmp_path) == 1


def test_what_other_processes_take_of_the_cpus_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    before = seconds_of_all()
    run_program("import time\nwhile time.process_time() < 1: sum(range(10_000))")
    assert seconds_of_all() - before >= 0.9  # it counts in hundredths
    facts = {"usable": 2, "rates": [(0, 100.0), (2, 190.0)], "others": 0.3, "waits": False}
    busy = ("workers", "other processes took 30% of the CPUs: too much to tell how many workers are enough")
    assert [*WORKERS.judge(Patient.of(DataLoader([1])), facts, {})] == [busy]
    _, found = WORKERS.judge(Patient.of(DataLoader([1])), {**facts, "others": 0.1}, {})
    assert (found.name, found.change) == ("num-workers", "num_workers=2")
    monkeypatch.setattr("torchyoga.tools.doctor.workers.counted", lambda meter: Verdict("lower", 0))
    ours = Patient.of(yoga.DataLoader([1]))
    assert [*WORKERS.judge(ours, {**facts, "rates": []}, {})] == [busy]
    assert [*WORKERS.judge(ours, {**facts, "others": 0.1}, {})][1].change == "num_workers=0"


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
    inside = ["unshare", "-rm", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*inside, mounted], capture_output=True).returncode:
        pytest.skip("no file system can be mounted in a namespace here")
    command = [*inside, f'{mounted} && exec "$0" -c "$1"', sys.executable, textwrap.dedent(code)]
    done = process(*command, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert "5 batches of" in lines[1]
    assert lines[2] == "[]"  # our batches travel elsewhere


def test_shared_memory_is_compared_with_all_batches_under_way(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    one, two = (DataLoader([1], num_workers=1), DataLoader([1], num_workers=2, prefetch_factor=8))
    (finding,) = small_shared_memory(one, free * 2 // 3, str(tmp_path))
    assert "1 worker x 2 batches ahead + 1 are 3 batches" in finding.measured
    assert finding.change.startswith("num_workers=0, or docker run --shm-size=")
    (finding,) = small_shared_memory(two, free // 10, str(tmp_path))
    assert finding.change.startswith("prefetch_factor=4, or")
    for folder in (tmp_path, tmp_path / "none"):
        assert not [*small_shared_memory(two, 1000, str(folder))]


# -- random numbers


def same(loader: DataLoader[Any]) -> list[str]:
    return [finding.measured for finding in in_trial(RANDOM_NUMBERS, Patient.of(loader))]


@pytest.mark.quick("ours-own", "torch's-own torch")
@pytest.mark.parametrize("kind", ["own", "own random", "own torch"])
@pytest.mark.parametrize("make", [yoga.DataLoader, DataLoader], ids=["ours", "torch's"])
def test_a_generator_that_each_worker_has_a_copy_of_is_a_finding(make: Any, kind: str) -> None:
    at = "which stood at the same place in two workers and in two epochs"
    (said,) = same(make(Drawing(kind), batch_size=4, num_workers=2))
    assert said.startswith(f"rows drew from dataset.generator, {at}; the rows are equal")


@pytest.mark.quick("random-random")
@pytest.mark.parametrize(("kind", "name"), [("numpy", "numpy.random"), ("random", "random")])
def test_a_function_that_seeds_all_workers_alike_is_a_finding(kind: str, name: str) -> None:
    (found,) = same(DataLoader(Drawing(kind), num_workers=2, worker_init_fn=seeded_alike))
    assert found.startswith(f"rows drew from {name}, which stood at the same place in two workers")
    # Rows are seeded after it.
    assert same(yoga.DataLoader(Drawing(kind), num_workers=2, worker_init_fn=seeded_alike)) == []
    # Nothing is drawn from it.
    assert same(DataLoader(Drawing("torch"), num_workers=2, worker_init_fn=seeded_alike)) == []
    assert same(DataLoader(Drawing("coin"), num_workers=2)) == []
    # Rows that are changed in place differ from themselves, too.
    facts = {"stood": [["a generator that was not found", True, True]], "equal": [True, True], "alike": []}
    assert not [*RANDOM_NUMBERS.judge(Patient.of([1]), facts, {IN_PLACE.name: {"path": "dataset.images"}})]


class Counting(Slow):
    """Rows that hold what the dataset counts."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.made, self.seen = 0, set[int]()

    def __getitem__(self, row: int) -> torch.Tensor:
        self.made += 1
        return super().__getitem__(row) + self.made


class Remembering(Counting):
    def __getitem__(self, row: int) -> torch.Tensor:
        is_new = row not in self.seen
        self.seen.add(row)
        return Slow.__getitem__(self, row) + is_new


def test_rows_that_hold_what_the_dataset_counts_prove_no_generator() -> None:
    for rows in (Counting(), Remembering()):
        patient = Patient.of(DataLoader(rows, 4, num_workers=2, persistent_workers=True))
        (found,) = in_trial(RANDOM_NUMBERS, patient)
        assert found.severity == "maybe"


# -- handles


def held_lock(opened: contextlib.ExitStack) -> Any:
    lock = threading.Lock()
    opened.enter_context(lock)
    return lock


def running_thread(opened: contextlib.ExitStack) -> threading.Thread:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    opened.callback(thread.join)
    opened.callback(end.set)
    return thread


HELD: dict[str, Callable[[contextlib.ExitStack], Any]] = {
    "an open h5py.File": lambda opened: opened.enter_context(h5py.File("a.h5", "w")),
    "an open h5py.Dataset": lambda opened: HELD["an open h5py.File"](opened).create_dataset("x", data=[1]),
    "an open lmdb.Environment": lambda opened: opened.enter_context(lmdb.open("a.lmdb")),
    "a sqlite3.Connection": lambda opened: opened.enter_context(contextlib.closing(sqlite3.connect("a.db"))),
    "a sqlite3.Cursor": lambda opened: HELD["a sqlite3.Connection"](opened).cursor(),
    "an open socket": lambda opened: opened.enter_context(socket.socket()),
    "an open file": lambda opened: opened.enter_context(open("a", "wb")),  # noqa: SIM115
    "a lock of threads that is held": held_lock,
    "a running thread": running_thread,
}


@pytest.mark.parametrize("what", HELD)
def test_an_open_handle_is_named_by_its_attribute(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as opened:
        held = HELD[what](opened)
        dataset = Subset(Held({"files": [None, held]}), [1, 2])
        path = "dataset.dataset.held['files'][1]"
        assert open_handles(dataset) == [(path, what)]
        (finding,) = HANDLES.judge(Patient.of(dataset), open_handles(dataset), {})
        assert (finding.name, finding.severity) == ("fork-unsafe", "maybe")
        assert finding.measured.startswith(f"{path} is {what}")
        assert path in finding.change
    if what not in ("a running thread", "an open h5py.Dataset"):  # it is closed or free now
        assert open_handles(Held(held)) == []


def test_objects_that_deny_their_class_hide_no_handle(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=[1])
    with np.load(tmp_path / "a.npz") as arrays:
        assert open_handles(Held(arrays)) == [("dataset.held.fid", "an open file")]


def test_an_attribute_that_is_called_as_a_global_is_not_that_global() -> None:
    code = "class Rows(Held):\n    def __getitem__(self, row):\n        return {}[row]"
    with open(__file__) as file:
        for named, handles in (("self.held", []), ("(lambda: held)()", [("user.held", "an open file")])):
            scope: dict[str, Any] = {"__name__": "user", "Held": Held, "held": file}
            exec(code.format(named), scope)
            assert open_handles(scope["Rows"]([1])) == handles


def test_what_survives_a_fork_is_no_finding(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path / "storage")
    ref = storage.submit([{"x": 1}, {"x": 2}], "a", "1", progress=False)
    ref[0]
    for dataset in (ref, Subset(ref, [0]), Held(ref), ref.map(dict), Held(torch.Generator()), Held(tmp_path)):
        assert open_handles(dataset) == []
    cycle: list[Any] = []
    cycle.append(cycle)
    assert open_handles(Held(cycle)) == []


# -- rows


class Shuffled(IterableDataset[int]):
    """A stream whose order follows from an epoch; without one, workers shuffle it in orders of their own."""

    def __init__(self, epoch: int | None = 0) -> None:
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.epoch).permutation(100).tolist())


class Reshuffled(IterableDataset[int]):
    """A stream that is shuffled, if at all, with the same seed each time."""

    def __init__(self, shuffle: bool = True) -> None:
        self.shuffle = shuffle

    def __iter__(self) -> Iterator[int]:
        yield from np.random.default_rng(7).permutation(100).tolist() if self.shuffle else range(100)


class Mixing(Slow):
    """Rows with random numbers until an epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, row: int) -> torch.Tensor:
        return super().__getitem__(row) + (random.random() if self.epoch < 2 else 0)


MIXED = partial(DataLoader, Mixing(0.0), 4, num_workers=1, persistent_workers=True)


class Once(Shuffled):
    rows = iter(range(64))

    def __iter__(self) -> Iterator[int]:
        return self.rows


def scaled(generator: np.random.Generator, rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(rows) * generator.random()


SCALED = partial(DataLoader, Slow(0.0), num_workers=2, collate_fn=partial(scaled, np.random.default_rng(0)))
PADDED = DistributedSampler(Slow(0.0), num_replicas=5, rank=0, shuffle=False)


@pytest.mark.parametrize(
    ("check", "loader", "name"),
    [
        (VALUES, lambda: DataLoader(TensorDataset(torch.arange(1e4).sub(3001).log())), "not-finite"),
        (STALE_EPOCH, MIXED, "stale-epoch"),
        (STALE_EPOCH, lambda: DataLoader(Shuffled(), 4), "same-order"),
        (ORDER, lambda: DataLoader(Slow(0.0), sampler=torch.randperm(64).tolist()), "same-order"),
        (ORDER, lambda: yoga.DataLoader(Slow(0.0), 4, sampler=torch.randperm(64).tolist()), "same-order"),
        (STREAMS, lambda: DataLoader(Shuffled(None), 4, num_workers=2), "rows-twice"),
        (EPOCH, lambda: DataLoader(Once(), 4), "no-batches"),
        (EPOCH, lambda: DataLoader(Slow(0.0), 4, sampler=iter(range(64)), drop_last=True), "no-batches"),
        (RANDOM_NUMBERS, lambda: DataLoader(Reshuffled(), 4, num_workers=1), "same-order"),
        (RANDOM_NUMBERS, SCALED, "same-random-numbers"),
        (RANKS, lambda: DataLoader(Slow(0.0), sampler=PADDED), "padded-evaluation"),
    ],
)
def test_what_few_rows_or_a_fixed_order_have_is_a_finding(check: Check, loader: Any, name: str) -> None:
    patient = Patient.of(loader())
    assert check.needs(patient)
    assert name in [one.name for one in in_trial(check, patient)]


def test_what_only_collate_fn_makes_nan_is_a_finding() -> None:
    patient = Patient.of(DataLoader(Slow(0.0), 4, collate_fn=lambda rows: torch.stack(rows) * np.nan))
    facts = {
        check.name: tried(partial(check.measure, patient, 1.0), PATIENCE).value for check in (VALUES, EPOCH)
    }
    found = [one for check in (VALUES, EPOCH) for one in check.judge(patient, facts[check.name], facts)]
    assert [one.measured for one in found if one.name == "not-finite"] == [
        "the row: NaN or infinite values in the first batch, of rows that have none"
    ]


def test_a_stream_that_is_not_to_shuffle_is_healthy() -> None:
    assert not in_trial(RANDOM_NUMBERS, Patient.of(DataLoader(Reshuffled(shuffle=False), 4, num_workers=1)))


def test_nothing_is_known_of_a_generator_of_another_kind() -> None:
    sampler = torch.utils.data.SequentialSampler(range(9))
    for generator in (np.random.default_rng(0), random.Random(0)):
        sampler.generator = generator  # type: ignore[attr-defined]
        assert order_state(DataLoader(range(9), sampler=sampler)) == ""  # type: ignore[arg-type]


def test_rows_that_a_rank_gets_twice_are_not_shuffled() -> None:
    padded = DistributedSampler(Slow(0.0), num_replicas=3, rank=1, shuffle=False)
    assert not in_trial(ORDER, Patient.of(DataLoader(Slow(0.0), sampler=padded)))


# -- sharding


def named(dataset: Any, **arguments: Any) -> list[str]:
    return [finding.name for finding in dealt(Patient.of(DataLoader(dataset, **arguments)))]


def test_ranks_that_get_all_rows_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Slow(0.0)
    assert named(rows) == []
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert named(rows, sampler=DistributedSampler(rows, num_replicas=4, rank=1)) == []
    assert named(rows) == named(rows, shuffle=True) == ["not-sharded"]
    for part in (Subset(rows, range(1, 64, 4)), Sharded(1, 4), Held(Sharded(1, 4))):
        assert named(part) == []
    # A split of the user's own is not a rank's part.
    for split in (Subset(rows, range(1, 64, 2)), Subset(rows, torch.randperm(64).tolist()), Sharded(1, 3)):
        assert named(split) == ["not-sharded"]


def test_our_loader_in_a_job_that_is_not_initialised_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = yoga.DataLoader(Slow(0.0), batch_size=4)
    assert not [*dealt(Patient.of(loader))]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    (finding,) = dealt(Patient.of(loader))
    assert (finding.name, finding.severity) == ("not-sharded", "maybe")
    assert finding.change == "call init_process_group before the first batch"
    assert "the loader gives this one all rows" in finding.measured
    given = yoga.DataLoader(Slow(0.0), batch_size=4, num_replicas=2, rank=1)
    assert not [*dealt(Patient.of(given))]


class Replaced(Slow):
    """Rows as a library of tables gives them: the dict is a copy, what was stored in it is another one."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.stored = [{"x": torch.full((8,), 255.0 + row)} for row in range(len(self))]

    def __getitem__(self, row: int) -> Any:
        self.stored[row]["x"] = self.stored[row]["x"] / 255
        return dict(self.stored[row])


class Flipping(Slow):
    """Half of the rows, as random numbers say, change what is stored in place."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.stored = [np.arange(4.0) + row for row in range(len(self))]

    def __getitem__(self, row: int) -> Any:
        if random.random() < 0.5:
            self.stored[row] *= -1
        return self.stored[row]


@pytest.mark.parametrize(
    ("rows", "path"), [(Replaced, "dataset.stored[0]['x']"), (Flipping, "dataset.stored[18]")]
)
def test_stored_values_that_rows_change_are_named(rows: Any, path: str) -> None:
    (found,) = in_trial(IN_PLACE, Patient.of(DataLoader(rows(), 4)))
    assert found.name == "changed-in-place"
    assert found.measured.startswith(f"{path} was changed")


# -- workers


def test_a_loader_that_would_be_faster_with_workers_is_a_finding() -> None:
    loader = DataLoader(Slow(0.02), batch_size=2)
    facts = {**tried(partial(WORKERS.measure, Patient.of(loader), 3.0), PATIENCE).value, "others": 0.0}
    measured, found = WORKERS.judge(Patient.of(loader), facts, {})
    assert found.change.startswith("num_workers=")
    assert found.change != "num_workers=0"
    most = most_workers(usable_cpus())
    assert f"with {most}" in measured.text  # its rows wait, so that they take no turns
    assert "with 0" in measured.text


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_smallest_number_of_workers_as_good_as_the_best_is_recommended() -> None:
    def of(workers: int) -> Patient:
        return Patient.of(DataLoader([1], num_workers=workers))

    rates = {0: 100.0, 1: 90.0, 2: 190.0, 4: 200.0, 8: 199.0}
    assert (enough(rates), enough({0: 96.0, 1: 100.0})) == (2, 0)
    facts = {"usable": 8, "rates": [*rates.items()], "others": 0.0, "waits": False}
    _, few = WORKERS.judge(of(0), facts, {})
    assert (few.change, few.severity) == ("num_workers=2", "maybe")  # no loop was seen that waits
    for current in (2, 4, 3):
        assert len([*WORKERS.judge(of(current), facts, {})]) == 1
    assert (counts(6, 0), counts(1, 3)) == ([0, 1, 2, 4, 6], [0, 1, 3])


def test_a_trial_ends_what_it_has_started(tmp_path: Path) -> None:
    def work() -> None:
        child = os.fork()
        if child == 0:
            threading.Event().wait()
        (tmp_path / "pid").write_text(str(child))
        threading.Event().wait()

    hang = tried(work, 1.0).hang
    assert hang is not None
    assert hang.is_locked
    assert hang.at.endswith(", work")
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not _is_running(pid), timeout=60)
    assert tried(lambda: os.kill(os.getpid(), signal.SIGKILL), PATIENCE).error == ENDED
    assert tried(lambda: 1 / 0, PATIENCE).error == "ZeroDivisionError: division by zero"


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.rest
def test_what_computes_without_getting_a_cpu_is_not_idle() -> None:
    cpu = min(os.sched_getaffinity(0))

    def work() -> None:
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with contextlib.suppress(OSError):  # Linux may share CPUs among sessions first
            Path("/proc/self/autogroup").write_text("19")
        while True:
            sum(range(1000))

    # Beside many it may get nothing for seconds; the kernel counts a wait when it ends.
    hog = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nprint(flush=True)\nwhile True: pass"
    with contextlib.ExitStack() as hogs:
        others = [hogs.enter_context(started(hog)) for _ in range(8)]
        for other in others:
            assert other.stdout.readline()
        hang = tried(work, 2.0).hang
        for other in others:
            other.kill()
    assert hang is not None
    assert not hang.is_idle
