"""Mutation testing: small changes to the rooms where a silent mistake costs most; do their tests notice?

    make mutants                                   # a thousand, an hour and a half on two cores
    python tests/mutants.py --rooms store --count 40
    python tests/mutants.py --again                # those that have survived, by all tests of their rooms

Results go to a file, a line each; the same command continues where it was stopped. Each mutant is made in a
copy of the checkout and run by a child of this process, which has imported torch and others, not torchyoga.
It runs those tests of the room that run the changed line, the quickest first; with --again all of them.
Mutants that no test can notice, because they do the same as the original, are listed with the reason in
tests/mutants.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import math
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from becoming import leave
from mutations import Mutation, mutations

__all__ = ["ROOMS", "chosen", "files_of", "known_equal", "rank"]

ROOT = Path(__file__).parents[1]
EQUAL = Path(__file__).with_suffix(".txt")
# Each room and the files of tests that are run for it: tests/<folder>/test_<name>.py.
ROOMS = {
    "order/full": "order/full order/by_file sampling/unordered sampling/sampler sampling/stories",
    "order/by_file": "order/by_file order/full reading/reader sampling/sampler sampling/stories",
    "order/place": "order/place order/full order/by_file order/cursor sampling/unordered sampling/sampler",
    "order/epoch": "order/epoch order/cursor order/proof sampling/stories",
    "order/state": "order/cursor order/golden_states sampling/unordered sampling/stories sampling/sampler",
    "order/iteration": "order/epoch order/cursor sampling/unordered sampling/stories sampling/sampler "
    "loading/loader",
    "order/cursor": "order/cursor sampling/unordered order/golden_states sampling/stories sampling/sampler "
    "reading/stream loading/loader",
    "order/proof": "order/proof order/cursor sampling/sampler sampling/ranks",
    "sampling/sampler": "sampling/sampler reading/readahead sampling/ranks loading/loader sampling/stories",
    "sampling/ordered": "sampling/sampler reading/readahead sampling/ranks loading/loader sampling/stories "
    "order/golden_states views/joined sampling/seeding",
    "sampling/batch_sampler": "sampling/sampler sampling/ranks loading/loader sampling/stories "
    "trainers/hooks",
    "sampling/replay": "sampling/replay sampling/foreign loading/loader sampling/seeding",
    "rows/block": "rows/block rows/collate formats/formats reading/reader storage/build adapters/arrays "
    "adapters/torch formats/odd_sizes",
    "rows/leaf": "rows/block storage/build adapters/arrays adapters/torch rows/compound formats/odd_sizes",
    "reading/reader": "reading/reader formats/formats mapped/items mapped/pages reading/readahead "
    "views/joined views/views storage/storage",
    "loading/parcel": "loading/parcel loading/batch_kinds loading/shared_memory",
    "loading/shared_memory": "loading/shared_memory loading/batch_kinds process/forks loading/loader",
    "loading/plan": "loading/loader loading/in_use loading/batch_kinds sampling/seeding",
    "loading/delivery": "loading/loader loading/in_use loading/batch_kinds sampling/unordered loading/device",
    "versions/manifest": "versions/manifest versions/info formats/formats stores/local storage/build "
    "storage/storage",
    "versions/staging": "stores/local storage/build storage/full_disk storage/storage power",
    "files/root": "files/root stores/local storage/full_disk storage/storage power",
    "stores/local": "stores/local storage/full_disk storage/storage storage/build files/root power",
    "stores/lease": "remote/lease remote/races remote/stores/stores",
    "stores/cache": "stores/cache remote/stores/small_cache remote/stores/downloads remote/stores/stores",
    "stores/downloads": "remote/stores/downloads remote/stores/small_cache remote/stores/stores remote/races",
    "stores/mirror": "remote/stores/stores remote/races remote/remote",
}
# Modules that take long to import and do not import torchyoga. What tests set before they import them must be
# set here, too: with this, gcsfs would speak gRPC, which no emulator does.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
WARM = (
    "torch.utils.data",
    "torch.distributed",
    "h5py",
    "lmdb",
    "hypothesis.extra.numpy",
    "hypothesis.stateful",
    "fsspec",
    "s3fs",
    "gcsfs",
    "xdist",
    "torchdata.stateful_dataloader",
    "multiprocessing.pool",
    "tqdm",
    "filelock",
)
KILLED = ("killed", "timeout")


# -- which mutants


def files_of(room: str) -> list[str]:
    """The files of a room's tests, in the order in which they matter."""
    found = []
    for name in ROOMS[room].split():
        folder, _, name = name.rpartition("/")
        found.append(f"tests/{folder + '/' if folder else ''}test_{name}.py")
    return found


def rank(key: str, seed: int) -> bytes:
    """The rank of a mutant in the drawing; it does not depend on which other mutants there are."""
    return hashlib.blake2b(f"{seed} {key}".encode(), digest_size=8).digest()


def chosen(sources: dict[str, str], count: int, seed: int) -> list[tuple[str, Mutation]]:
    """A sample of the mutants of some rooms, whose sources are passed: the room of each, and the mutation."""
    found = [(room, each) for room, source in sources.items() for each in mutations(source, f"{room}.py")]
    return sorted(found, key=lambda one: rank(one[1].key, seed))[:count]


def known_equal(text: str) -> dict[str, str]:
    """The mutants that do the same as the original, and why: a line with the key, below it the reason,
    indented."""
    found: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        if line.startswith(" "):
            found[key] = f"{found[key]} {line.strip()}".strip()
        elif line and not line.startswith("#"):
            key = line
            found[key] = ""
    return found


# -- in a child


@dataclass(eq=False)  # pytest wants plugins hashable
class Watch:
    """A pytest plugin: how long each test takes, and which lines of the rooms it and its forks run."""

    sources: dict[str, str]  # path of each file of a room: the room
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {path: len(Path(path).read_bytes().splitlines()) + 2 for path in self.sources}
        self.hits = mmap.mmap(-1, sum(sizes.values()))  # shared with children
        self.bases, self.size, base = {}, sum(sizes.values()), 0
        tracers: dict[str, Any] = {}
        for path, size in sizes.items():
            self.bases[path] = base, size
            tracers[path] = self._tracer(base)
            base += size

        def call(frame: Any, _event: str, _argument: object) -> Any:
            return tracers.get(frame.f_code.co_filename)

        self.call = call

    def _tracer(self, base: int) -> Any:
        hits = self.hits

        def line(frame: Any, _event: str, _argument: object) -> Any:
            hits[base + frame.f_lineno] = 1
            return line

        return line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.hits[:] = bytes(self.size)
        # For each test: an interrupt within a trace function, in a test before, ends all tracing.
        sys.settrace(self.call)
        threading.settrace(self.call)
        started = time.monotonic()
        result = yield
        found = {"seconds": round(time.monotonic() - started, 3), "lines": {}}
        for path, (base, size) in self.bases.items():
            hit = [number for number, byte in enumerate(self.hits[base : base + size]) if byte]
            if hit:
                found["lines"][self.sources[path]] = f"{sum(1 << number for number in hit):x}"
        self.tests[item.nodeid] = found
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = report.longreprtext[-2000:]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = report.longreprtext[-2000:]


@dataclass(eq=False)  # pytest wants plugins hashable
class Chosen:
    """A pytest plugin: runs some tests in their order, each with a limit; writes the outcomes to a file."""

    names: list[str]
    seconds: dict[str, float]
    told: Path
    run: int = 0
    failed: str = ""
    why: str = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = {name: place for place, name in enumerate(self.names)}
        items[:] = sorted((i for i in items if i.nodeid in places), key=lambda item: places[item.nodeid])
        for item in items:
            item.add_marker(pytest.mark.timeout(_limit(self.seconds[item.nodeid])), append=False)

    def pytest_runtest_logstart(self) -> None:
        self.run += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed, self.why = report.nodeid, report.longreprtext.strip()[-300:]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed, self.why = report.nodeid, report.longreprtext.strip()[-300:]

    def pytest_sessionfinish(self) -> None:
        self.told.write_text(json.dumps({"tests": self.run, "failed": self.failed, "why": self.why}))


class Quick:
    """A pytest plugin: few random examples, and no search for the smallest that fails."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        import hypothesis

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutants", hypothesis.settings(), max_examples=30, phases=phases, database=None
        )
        hypothesis.settings.load_profile("mutants")


def _limit(seconds: float) -> float:
    """How many seconds to wait for a test that has taken `seconds`."""
    return 30 + 5 * seconds


def _pytest(files: Sequence[str], plugins: list[object]) -> int:
    options = ["--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly"]
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "--durations=0", "--durations-min=1000000"]
    return int(pytest.main([*options, *quiet, *files], plugins=[Quick(), *plugins]))


# -- the copies of the checkout


@dataclass
class Desk:
    """A copy of the checkout in which one child works at a time."""

    folder: Path
    pid: int = 0
    ends: float = math.inf
    written: int = 0

    def __post_init__(self) -> None:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (self.here / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.here / name)
        if (ROOT.parent / "shared").is_dir():
            (self.folder / "shared").symlink_to(ROOT.parent / "shared")

    @property
    def here(self) -> Path:
        """The copy."""
        return self.folder / "here"

    @property
    def told(self) -> Path:
        """What the child has reported at its end."""
        return self.folder / "told.json"

    def write(self, name: str, source: str) -> None:
        """Changes a file so that Python notices it, even if its time (in seconds) and size stay the same."""
        self.written += 1
        path = self.here / name
        path.write_text(source)
        os.utime(path, (1e9 + self.written, 1e9 + self.written))

    def start(self, work: Callable[[], int], seconds: float) -> None:
        """Forks a child that does the work in the copy, for at most `seconds` seconds."""
        for name in ("tmp", "home"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(exist_ok=True)
        self.told.unlink(missing_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        self.ends = time.monotonic() + seconds
        self.pid = os.fork()
        if self.pid == 0:
            self._live(work)

    def _live(self, work: Callable[[], int]) -> NoReturn:
        code = 70
        try:
            os.setsid()
            log = os.open(self.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream, to in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
                os.dup2(to, stream)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as tests of interrupts expect
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # An endless loop must not take the machine's memory.
            size = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_DATA, (size + 6 * 2**30, resource.RLIM_INFINITY))
            os.chdir(self.here)
            os.environ |= {"TMPDIR": str(self.folder / "tmp"), "HOME": str(self.folder / "home")}
            tempfile.tempdir = None
            sys.path[:] = [str(self.here), *(path for path in sys.path if not _is_here(path))]
            more = [
                path for path in os.environ.get("PYTHONPATH", "").split(":") if path and not _is_here(path)
            ]
            os.environ["PYTHONPATH"] = ":".join([str(self.here), *more])
            code = work()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            leave(code)

    def end(self) -> int | None:
        """None while the child lives; then its status, minus SIGKILL if its time was over."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() < self.ends:
                return None
            self.kill()
            return -signal.SIGKILL
        self._kill_all()  # processes that it has left behind
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """Ends the child, if there is one, and all processes that it has started."""
        if self.pid:
            self._kill_all()
            os.waitpid(self.pid, 0)
            self.pid = 0

    def _kill_all(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _is_here(path: str) -> bool:
    return Path(path or ".").resolve() in (ROOT, ROOT / "tests")


# -- the tests as they are


def learned(desks: Sequence[Desk], files: Sequence[str], note: Path) -> dict[str, dict[str, Any]]:
    """The tests of each file: how long they take, which lines they run. What is known already is in the note.

    Tests that fail twice although nothing is changed are named, and left out.
    """
    known = json.loads(note.read_text()) if note.exists() else {}
    package = b"".join(path.read_bytes() for path in sorted((ROOT / "torchyoga").rglob("*.py")))
    digests = {f: hashlib.sha256(package + (ROOT / f).read_bytes()).hexdigest() for f in files}

    def work_on(desk: Desk, file: str) -> Callable[[], int]:
        def work() -> int:
            watch = Watch({str(desk.here / f"torchyoga/{room}.py"): room for room in ROOMS})
            try:
                code = _pytest([file], [watch])
            finally:
                sys.settrace(None)
                threading.settrace(None)  # type: ignore[arg-type]
            desk.told.write_text(json.dumps({"tests": watch.tests, "failed": watch.failed}))
            return code

        return work

    def start(desk: Desk, file: str) -> None:
        desk.start(work_on(desk, file), 1800)

    def finish(desk: Desk, file: str, code: int) -> bool:
        if desk.told.exists():
            told = json.loads(desk.told.read_text())
        else:
            log = (desk.folder / "log.txt").read_text(errors="replace")
            told = {"tests": {}, "failed": {file: f"ended with {code}\n{log[-2000:]}"}}
        failed: dict[str, str] = told["failed"]
        tests = {name: test for name, test in told["tests"].items() if name not in failed}
        known[file] = {"digest": None if failed else digests[file], "tests": tests}
        note.write_text(json.dumps(known))
        took = sum(test["seconds"] for test in tests.values())
        print(f"{file}: {len(tests)} tests pass in {took:.1f} s", flush=True)
        for name, why in failed.items():
            print(f"{name} FAILS though nothing is changed:\n{why}", flush=True)
        return True

    for _ in range(2):
        todo = [file for file in files if known.get(file, {}).get("digest") != digests[file]]
        _at_desks(desks, todo, start, finish)
    return {file: known[file]["tests"] for file in files}


def tests_for(
    room: str, mutation: Mutation, tests: dict[str, dict[str, Any]], all_of_them: bool
) -> list[list[tuple[str, float]]]:
    """The tests of a room that run the changed lines, with their seconds: batches, each for a process.

    First come those of one file, which is imported quickly, then the others, the quickest first. If no test
    runs the lines themselves, because they run at import, the tests of the function or class around them are
    taken; if there are none either, all tests of the room. Tests of remote stores are kept apart, because
    they have threads, beside which the others must not fork.
    """
    found = [
        (name, test["seconds"], int(test["lines"].get(room, "0"), 16))
        for file in files_of(room)
        for name, test in tests[file].items()
    ]
    running: set[str] = set()
    for first, last in mutation.lines:
        mask = (1 << last + 1) - (1 << first)
        running = running or {name for name, _, lines in found if lines & mask}
    soonest = next((name.partition("::")[0] for name, _, _ in found if name in running), "")

    def batch_of(name: str) -> int:
        if name in running and name.startswith(f"{soonest}::"):
            return 0
        return 1 if not name.startswith("tests/remote/") else 2

    batches: list[list[tuple[str, float]]] = [[], [], []]
    for name, seconds, _ in sorted(found, key=lambda test: (test[0] not in running, test[1])):
        if all_of_them or not running or name in running:
            batches[batch_of(name)].append((name, seconds))
    return [batch for batch in batches if batch]


# -- running


def _at_desks(
    desks: Sequence[Desk],
    tasks: Sequence[Any],
    start: Callable[[Desk, Any], None],
    finish: Callable[[Desk, Any, int], bool],
) -> None:
    """Does tasks at desks, one at each desk at a time; `finish` says whether a task is done or goes on."""
    waiting, busy = list(reversed(tasks)), dict[int, tuple[Desk, Any]]()
    free = list(desks)
    try:
        while waiting or busy:
            while waiting and free:
                desk, task = free.pop(), waiting.pop()
                start(desk, task)
                busy[id(desk)] = desk, task
            for desk, task in list(busy.values()):
                code = desk.end()
                if code is not None and finish(desk, task, code):
                    del busy[id(desk)]
                    free.append(desk)
            time.sleep(0.02)
    finally:
        for desk in desks:
            desk.kill()


@dataclass
class Task:
    """A mutant that is being tried."""

    room: str
    mutation: Mutation
    batches: list[list[tuple[str, float]]]
    started: float = 0.0
    tests: int = 0


@dataclass
class Result:
    """The outcome of a mutant: survived, killed, timeout (which counts as killed) or error (which counts as
    none of these)."""

    key: str
    room: str
    operator: str
    outcome: str
    tests: int
    seconds: float
    failed: str = ""
    why: str = ""
    diff: str = ""


def tried(desks: Sequence[Desk], tasks: Sequence[Task], sources: dict[str, str], results: Path) -> None:
    """Runs mutants, and adds a line for each to the results."""
    done = 0

    def start(desk: Desk, task: Task) -> None:
        desk.write(f"torchyoga/{task.room}.py", task.mutation.applied(sources[task.room]))
        task.started = time.monotonic()
        go_on(desk, task)

    def go_on(desk: Desk, task: Task) -> None:
        batch = task.batches.pop(0)
        files = list(dict.fromkeys(name.partition("::")[0] for name, _ in batch))
        plugin = Chosen([name for name, _ in batch], dict(batch), desk.told)
        desk.start(lambda: _pytest(["-x", *files], [plugin]), 60 + 2 * sum(seconds for _, seconds in batch))

    def finish(desk: Desk, task: Task, code: int) -> bool:
        nonlocal done
        told = {"tests": 0, "failed": "", "why": f"ended with {code}"}
        if desk.told.exists():
            told = json.loads(desk.told.read_text())
        task.tests += told["tests"]
        if code == 0 and task.batches:
            go_on(desk, task)
            return False
        is_late = "Failed: Timeout" in told["why"] or (code == -signal.SIGKILL and not desk.told.exists())
        outcome = {0: "survived", 3: "error", 5: "error", 70: "error"}.get(
            code, "timeout" if is_late else "killed"
        )
        desk.write(f"torchyoga/{task.room}.py", sources[task.room])
        mutation, seconds = task.mutation, round(time.monotonic() - task.started, 1)
        result = Result(
            mutation.key,
            task.room,
            mutation.operator,
            outcome,
            task.tests,
            seconds,
            told["failed"],
            told["why"],
        )
        result.diff = _diff(sources[task.room], mutation)
        with results.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        done += 1
        print(
            f"{done}/{len(tasks)} {outcome:8} {seconds:6.1f} s {task.tests:4} tests  {mutation.key}",
            flush=True,
        )
        return True

    _at_desks(desks, tasks, start, finish)


def _diff(source: str, mutation: Mutation) -> str:
    old, new = source.splitlines(), mutation.applied(source).splitlines()
    changed = [i for i, (before, after) in enumerate(zip(old, new, strict=True)) if before != after]
    lines = [f"{mutation.line}: {mutation.operator}"]
    lines += [f"- {old[i]}" for i in changed] + [f"+ {new[i]}" for i in changed if new[i].strip()]
    return "\n".join(lines)


def read(results: Path) -> dict[str, Result]:
    """The last result of each mutant."""
    lines = results.read_text().splitlines() if results.exists() else []
    found = [Result(**json.loads(line)) for line in lines]
    return {result.key: result for result in found}


def report(results: Sequence[Result], equal: dict[str, str], gone: Sequence[str]) -> float:
    """Prints the outcome of each room and the surviving mutants; returns the share of killed ones."""
    survivors = [result for result in results if result.outcome == "survived"]
    print(f"\n{'room':10} mutants killed timeout equal survived error    rate")
    for room in [*ROOMS, "all"]:
        of_room = [result for result in results if room in (result.room, "all")]
        count = {o: sum(r.outcome == o for r in of_room) for o in ("killed", "timeout", "survived", "error")}
        same = sum(result.key in equal for result in of_room if result.outcome == "survived")
        killed = count["killed"] + count["timeout"]
        rate = killed / max(1, killed + count["survived"] - same)
        if of_room:
            print(
                f"{room:10} {len(of_room):7} {count['killed']:6} {count['timeout']:7} {same:5} "
                f"{count['survived'] - same:8} {count['error']:5} {rate:7.1%}"
            )
    for result in survivors:
        reason = f"the same: {equal[result.key]}" if result.key in equal else "SURVIVED"
        print(f"\n{result.key}\n{result.diff}\n  {reason}")
    for key in gone:
        print(f"\n{key}\n  is in {EQUAL.name}, and no mutant any more")
    for result in results:
        if result.outcome == "error":
            print(f"\n{result.key}\n  ERROR: no tests were run: {result.why}")
    return rate


def main() -> None:
    """Runs the sample, or what is left of it, and prints the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="another sample")
    parser.add_argument("--count", type=int, default=1000, help="how many mutants")
    parser.add_argument("--rooms", nargs="*", choices=ROOMS, default=list(ROOMS), metavar="ROOM")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument(
        "--again", action="store_true", help="those that have survived, with all tests of their rooms"
    )
    parser.add_argument("--report", action="store_true", help="run nothing, print what there is")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the children are ended
    options.results.parent.mkdir(parents=True, exist_ok=True)
    sources = {room: (ROOT / f"torchyoga/{room}.py").read_text() for room in options.rooms}
    sample = chosen(sources, options.count, options.seed)
    equal = known_equal(EQUAL.read_text())
    found = read(options.results)

    def is_done(key: str) -> bool:
        if key not in found or found[key].outcome == "error":
            return False
        return found[key].outcome in KILLED or not options.again or key in equal

    todo = {
        room: [mutation for where, mutation in sample if where == room and not is_done(mutation.key)]
        for room in sources
    }
    if any(todo.values()) and not options.report:
        for name in WARM:
            importlib.import_module(name)
        with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
            os.chmod(folder, 0o711)  # for tests that become other users
            desks = [Desk(Path(folder) / str(number)) for number in range(options.jobs)]
            for room in filter(todo.get, sources):
                tests = learned(desks, files_of(room), options.results.with_suffix(".tests.json"))
                if not any(tests.values()):
                    sys.exit(f"{room}: no test passes though nothing is changed; mend that first")
                tasks = [Task(room, m, tests_for(room, m, tests, options.again)) for m in todo[room]]
                tried(desks, tasks, sources, options.results)
    found = read(options.results)
    of_sample = [found[mutation.key] for _, mutation in sample if mutation.key in found]
    of_rooms = tuple(f"{room}.py " for room in sources)
    there = {mutation.key for room in sources for mutation in mutations(sources[room], f"{room}.py")}
    gone = [key for key in equal if key.startswith(of_rooms) and key not in there]
    rate = report(of_sample, equal, gone)
    sys.exit(rate < 0.95)


if __name__ == "__main__":
    main()
