"""Mutation testing: small changes to the rooms where a silent mistake costs most; do their tests notice?

    make mutants                                   # a thousand, hours
    python tests/mutants.py --rooms stores/lease --count 40
    python tests/mutants.py --report               # runs nothing

Each mutant is made in a copy of the checkout, where the tests of its room run until one fails. Results go to
a file, a line each; the same command continues where it was stopped. Mutants that no test can notice, because
they do the same as the original, are listed with the reason in tests/mutants.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from mutations import Mutation, mutations

ROOT = Path(__file__).parents[1]
EQUAL = Path(__file__).with_suffix(".txt")
# Each room and the files of tests that are run for it: tests/<folder>/test_<name>.py.
ROOMS = {
    "order/full": "order/full order/by_file sampling/unordered sampling/sampler sampling/stories",
    "order/by_file": "order/by_file order/full reading/reader sampling/sampler sampling/stories",
    "order/place": "order/epoch order/full order/by_file order/cursor sampling/unordered sampling/sampler",
    "order/state": "order/cursor order/saved_states sampling/unordered sampling/stories sampling/sampler",
    "order/epoch": "order/epoch order/cursor order/proof sampling/unordered sampling/stories "
    "sampling/sampler loading/loader",
    "order/cursor": "order/cursor sampling/unordered order/saved_states sampling/stories sampling/sampler "
    "reading/stream loading/loader order/quality",
    "order/proof": "order/proof order/cursor sampling/sampler sampling/ranks",
    "sampling/sampler": "sampling/sampler reading/readahead sampling/ranks loading/loader sampling/stories "
    "trainers/hooks",
    "sampling/indices": "sampling/sampler reading/readahead sampling/ranks loading/loader sampling/stories "
    "order/saved_states views/joined sampling/seeding sampling/unordered sampling/appended",
    "sampling/redrawn": "sampling/redrawn sampling/user_sampler loading/loader sampling/seeding",
    "rows/block": "rows/block rows/collate formats/formats reading/reader storage/build adapters/arrays "
    "adapters/torch formats/odd_sizes rows/collector rows/nesting rows/outline rows/statistics",
    "rows/column": "rows/block storage/build adapters/arrays adapters/torch rows/tree formats/odd_sizes "
    "rows/collector rows/nesting rows/outline tables/arrow",
    "reading/reader": "reading/reader formats/formats mapped/items mapped/pages reading/readahead "
    "views/joined views/views storage/storage reading/together reading/flipped_bits",
    "loading/parcel": "loading/parcel loading/batch_kinds loading/shared_memory",
    "loading/shared_memory": "loading/shared_memory loading/batch_kinds process/forks loading/loader",
    "loading/plan": "loading/loader loading/in_use loading/batch_kinds sampling/seeding loading/threads "
    "loading/auto",
    "loading/delivery": "loading/loader loading/in_use loading/batch_kinds sampling/unordered loading/device "
    "loading/threads loading/pace loading/auto",
    "versions/manifest": "versions/manifest versions/info formats/formats stores/local storage/build "
    "storage/storage versions/listed versions/columns tables/parquet_bad",
    "versions/location": "stores/local storage/build storage/full_disk storage/storage power",
    "files/root": "files/root stores/local storage/full_disk storage/storage power",
    "stores/local": "stores/local storage/full_disk storage/storage storage/build files/root power "
    "stores/cleaning stores/notes stores/foreign_files",
    "stores/lease": "remote/lease remote/races remote/stores/stores",
    "stores/cache": "stores/cache remote/stores/small_cache remote/stores/downloads remote/stores/stores "
    "stores/kept_index",
    "stores/downloads": "remote/stores/downloads remote/stores/small_cache remote/stores/stores remote/races "
    "remote/stores/foreign_stores tables/records tables/mds tables/litdata tables/json_lines",
    "stores/remote": "remote/stores/stores remote/races remote/remote",
}
_LONGEST = 1800  # seconds of the tests of a room
_PYTEST = ["-x", "--tb=line", "--no-header", "--hypothesis-profile", "quick"]
_WITHOUT = ["-p", "no:cacheprovider"]


def files_of(room: str) -> list[str]:
    """The files of a room's tests, in the order in which they matter."""
    paths = [name.rpartition("/") for name in ROOMS[room].split()]
    return [f"tests/{folder + '/' if folder else ''}test_{name}.py" for folder, _, name in paths]


def chosen(sources: dict[str, str], count: int, seed: int) -> list[tuple[str, Mutation]]:
    """A sample of the mutants of some rooms, whose sources are passed: the room of each, and the mutation.

    The rank of a mutant in the drawing does not depend on which other mutants there are.
    """
    found = [(room, each) for room, source in sources.items() for each in mutations(source, f"{room}.py")]
    return sorted(found, key=lambda one: hashlib.blake2b(f"{seed} {one[1].key}".encode()).digest())[:count]


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


@dataclass
class Result:
    """The outcome of a mutant: survived, killed, or timeout (which counts as killed)."""

    key: str
    room: str
    outcome: str
    seconds: float
    why: str
    diff: str


class Copy:
    """A copy of the checkout, in which one mutant is tried at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._written = folder, 0
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        if (ROOT.parent / "shared").is_dir() and not (folder.parent / "shared").exists():
            (folder.parent / "shared").symlink_to(ROOT.parent / "shared")

    def tried(self, room: str, mutation: Mutation | None, seconds: float) -> Result:
        """The result of a mutant, or of the room as it is, whose tests have so many seconds."""
        path, source = self.folder / f"torchyoga/{room}.py", (ROOT / f"torchyoga/{room}.py").read_text()
        self._write(path, source if mutation is None else mutation.applied(source))
        began = time.monotonic()
        code, why = self._run(files_of(room), seconds)
        self._write(path, source)
        outcome = {0: "survived", None: "timeout"}.get(code, "killed")
        diff = "" if mutation is None else _diff(source, mutation)
        key = room if mutation is None else mutation.key
        return Result(key, room, outcome, round(time.monotonic() - began, 1), why, diff)

    def _write(self, path: Path, source: str) -> None:
        """Changes a file so that Python notices it, even if its time (in seconds) and size stay the same."""
        self._written += 1
        path.write_text(source)
        os.utime(path, (1e9 + self._written, 1e9 + self._written))

    def _run(self, files: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """The exit code of pytest, None if it took too long, and the line of the test that failed."""
        command = [sys.executable, "-m", "pytest", *_PYTEST, *_WITHOUT, "-m", "not rest and not soak", *files]
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        with tempfile.TemporaryFile("w+") as log:
            child = subprocess.Popen(
                command, cwd=self.folder, env=env, stdout=log, stderr=log, start_new_session=True
            )
            try:
                code: int | None = child.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):  # and all that it has started
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            log.seek(0)
            failed = [line.strip() for line in log if line.startswith(("FAILED", "ERROR"))]
        return code, (failed or [f"ended with {code}"])[0][:300]


def _diff(source: str, mutation: Mutation) -> str:
    old, new = source.splitlines(), mutation.applied(source).splitlines()
    changed = [i for i, (before, after) in enumerate(zip(old, new, strict=True)) if before != after]
    lines = [f"{mutation.line}: {mutation.operator}"]
    lines += [f"- {old[i]}" for i in changed] + [f"+ {new[i]}" for i in changed if new[i].strip()]
    return "\n".join(lines)


def run(sample: Sequence[tuple[str, Mutation]], jobs: int, results: Path) -> None:
    """Tries mutants, so many at once, and adds a line for each to the results."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)  # for tests that become other users
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number)))

        def tried(room: str, mutation: Mutation | None, seconds: float) -> Result:
            copy = copies.get()
            try:
                return copy.tried(room, mutation, seconds)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            limits = {}
            for result in pool.map(
                lambda room: tried(room, None, _LONGEST), list(dict.fromkeys(room for room, _ in sample))
            ):
                if result.outcome != "survived":
                    sys.exit(f"{result.room}: a test fails though nothing is changed: {result.why}")
                limits[result.room] = 60 + 3 * result.seconds
            for done, result in enumerate(pool.map(lambda one: tried(*one, limits[one[0]]), sample), start=1):
                with results.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
                print(
                    f"{done}/{len(sample)} {result.outcome:8} {result.seconds:6.1f} s  {result.key}",
                    flush=True,
                )


def report(results: Sequence[Result], equal: dict[str, str]) -> float:
    """Prints the outcome of each room and the surviving mutants; returns the share of killed ones."""
    rate = 0.0
    for room in [*ROOMS, "all"]:
        of_room = [one for one in results if room in (one.room, "all") and one.key not in equal]
        killed = sum(one.outcome != "survived" for one in of_room)
        if of_room:
            rate = killed / len(of_room)
            print(f"{room:25} {len(of_room):5} mutants, {rate:7.1%} killed")
    for one in results:
        if one.outcome == "survived":
            print(f"\n{one.key}\n{one.diff}\n  {equal.get(one.key, 'SURVIVED')}")
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
    parser.add_argument("--report", action="store_true", help="run nothing, print what there is")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the children are ended
    options.results.parent.mkdir(parents=True, exist_ok=True)
    sources = {room: (ROOT / f"torchyoga/{room}.py").read_text() for room in options.rooms}
    sample = chosen(sources, options.count, options.seed)
    known = _read(options.results)
    if not options.report:
        run([one for one in sample if one[1].key not in known], options.jobs, options.results)
    known = _read(options.results)
    equal = known_equal(EQUAL.read_text())
    rate = report([known[mutation.key] for _, mutation in sample if mutation.key in known], equal)
    there = {mutation.key for room in sources for mutation in mutations(sources[room], f"{room}.py")}
    for key in equal:
        if key not in there and key.partition(".py ")[0] in sources:
            print(f"\n{key}\n  is in {EQUAL.name}, and no mutant any more")
    sys.exit(rate < 0.95)


def _read(results: Path) -> dict[str, Result]:
    lines = results.read_text().splitlines() if results.exists() else []
    return {result.key: result for result in (Result(**json.loads(line)) for line in lines)}


if __name__ == "__main__":
    main()
