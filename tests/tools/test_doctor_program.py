"""`yoga doctor` as a program: around a training program."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from children import run_program
from commanding import ENVIRONMENT, hears_ctrl_c, process, said

from docs import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="trials are forked")
TRAIN = """
import sys, time
import numpy as np, torch, torchyoga as yoga

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.generator = np.random.default_rng(0)
    def __len__(self):
        return 32
    def __getitem__(self, row):
        return self.generator.random()

def main():
    for batch in yoga.DataLoader(Rows(), 8, num_workers=2):
        pass

main()
print(sys.stdin.readline().strip(), sys.argv[1:], flush=True)
if "wait" in sys.argv:
    time.sleep(300)
theirs = torch.utils.data.DataLoader(list(range(32)), 4)
for batch in theirs:
    pass
for batch in yoga.to_device(yoga.DataLoader(list(range(32)), 2), "cpu"):
    pass
sys.exit(3)
"""
DOCTOR = [sys.executable, "-m", "torchyoga", "doctor", "--json", "--seconds"]
EACH = 7  # seconds for each loader


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path / "train.py"


def begun(program: Path, *arguments: str, loaders: int = 1) -> subprocess.Popen[str]:
    command = [*DOCTOR, str(EACH * loaders), "--", sys.executable, str(program), *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, **ENVIRONMENT}
    pipes["preexec_fn"] = hears_ctrl_c
    return subprocess.Popen(command, text=True, env=environment, cwd=program.parent, **pipes)  # type: ignore[call-overload,no-any-return]


@pytest.mark.rest
def test_a_program_runs_as_it_does_alone_and_its_loaders_are_examined(program: Path) -> None:
    with begun(program, "--lr", "1", loaders=3) as running:
        output, errors = running.communicate("hello\n", timeout=300)
    first, _, rest = output.partition("\n")
    assert first == "hello ['--lr', '1']"
    assert running.returncode == 3, errors
    found = json.loads(rest)
    assert found["exit_code"] == 3
    lines = enumerate(TRAIN.splitlines(), 1)
    line, moved = (f"train.py:{number}" for number, text in lines if "in yoga." in text)
    named = [(one["name"], one["loader"]) for one in found["findings"]]
    assert ("same-random-numbers", line) in named
    batches = {name: text[:6] for name, text in found["measured"].items() if name.endswith("batch")}
    assert batches == {f"{line}: batch": "8 rows", "theirs: batch": "4 rows", f"{moved}: batch": "2 rows"}


@pytest.mark.rest
@pytest.mark.parametrize("is_group", [False, True], ids=["one", "group"])
def test_an_interrupted_program_is_examined_and_ends_as_interrupted(program: Path, is_group: bool) -> None:
    with begun(program, "wait") as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write("hello\n")
        running.stdin.flush()
        assert running.stdout.readline() == "hello ['wait']\n"
        running.send_signal(signal.SIGINT)
        if is_group:  # as shells and `timeout` do
            running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=300)
    assert "KeyboardInterrupt" in errors
    assert running.returncode == 130
    assert "same-random-numbers" in [finding["name"] for finding in json.loads(output)["findings"]]


DECODED = """
import io
import numpy as np, torchyoga as yoga
from PIL import Image

file = io.BytesIO()
Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(file, "PNG")
rows = yoga.Storage("storage").submit([{"image": file.getvalue()}] * 64, "images", "1")
for batch in yoga.DataLoader(rows.decoded({"image": yoga.codecs.image(size=8)}), 8):
    pass
"""


@pytest.mark.rest
def test_rows_that_a_pool_of_threads_makes_are_measured_when_the_program_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DECODED)
    with begun(tmp_path / "train.py") as running:
        output, errors = running.communicate(timeout=300)
    assert running.returncode == 0, errors
    found = json.loads(output)
    assert "cannot schedule new futures" not in output
    assert found["measured"]["batch"].startswith("8 rows")


def test_a_program_that_is_killed_or_has_no_loader_is_said_so() -> None:
    killed = said("doctor", "--", "sh", "-c", "kill -9 $$", code=128 + 9)
    assert "no process of it has reported" in killed
    assert "import torchyoga" in killed
    assert "no loader was iterated" in said("doctor", "--", sys.executable, "-c", "import torchyoga")
    assert "name what to examine, such as yoga doctor -- python train.py" in said("doctor", code=2)
    missing = said("doctor", "--", "no-such-program", code=2)
    assert missing.startswith("error: no-such-program cannot be run: No such file or directory\n")


def test_a_loader_that_is_local_to_a_function_is_examined(tmp_path: Path) -> None:
    code = """
    import torch, torchyoga
    from concurrent.futures import ThreadPoolExecutor
    from torch.utils.data import DataLoader, Dataset
    class Rows(Dataset):
        pool = ThreadPoolExecutor(1)  # Python closes it, and takes the name below away, when the program ends
        def __len__(self):
            return 30
        def __getitem__(self, number):
            return self.pool.submit(len, __file__).result(), number
    def main():
        loader = DataLoader(Rows(), batch_size=32, drop_last=True)
        loader.dataset[0]
        for batch in loader:
            pass
    main()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(code))
    diagnosis = said("doctor", "--json", "--", sys.executable, str(tmp_path / "train.py"))
    found = {one["name"]: one for one in json.loads(diagnosis)["findings"]}
    assert found["no-batches"]["severity"] == "wrong"
    assert "broken-rows" not in found


EPOCHS = """
import sys
import torch, torchyoga
from torch.utils.data import DataLoader, DistributedSampler

rows = torch.arange(200)
same = DataLoader(rows, 8, shuffle=True)
never_set = DataLoader(rows, 8, sampler=DistributedSampler(rows, num_replicas=1, rank=0))
for epoch in range(int(sys.argv[1])):
    torch.manual_seed(0)
    for batch in same:
        pass
    torch.manual_seed(0)
    anew = DataLoader(rows, 8, shuffle=True)
    for batch in anew:
        pass
    for batch in never_set:
        pass
"""


@pytest.mark.rest
def test_epochs_that_began_alike_had_the_same_order(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EPOCHS)
    quick = [*DOCTOR, str(3 * EACH), "--", sys.executable, str(tmp_path / "train.py")]
    said = {"same": "generator stood", "anew": "generator stood", "never_set": "epoch is 0, as each of 2"}
    for epochs in (1, 2):
        found = json.loads(process(*quick, str(epochs)).stdout)["findings"]
        texts = {one["loader"]: one["measured"] for one in found if one["name"] == "same-order"}
        assert texts.keys() == (said.keys() if epochs == 2 else set())  # of one epoch nothing is known
        assert all(said[name] in text for name, text in texts.items())


DISTRIBUTED = """
import sys
import torch, torchyoga
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

class Lines(IterableDataset):
    def __init__(self, split):
        self.split = split
    def __iter__(self):
        step = dist.get_world_size() if self.split else 1
        rows = torch.rand(64, 3, generator=torch.Generator().manual_seed(0))
        yield from rows[dist.get_rank() % step :: step]

def main():
    dist.init_process_group("gloo")
    dataset = TensorDataset(torch.rand(64, 3))
    rows = DataLoader(dataset, 8)
    split_rows = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
    stream = DataLoader(Lines(False), 8)
    split_stream = DataLoader(Lines(True), 8)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    for loader in (rows, split_rows, stream, split_stream):
        for batch in loader:
            model(batch[0] if isinstance(batch, list) else batch)
    dist.destroy_process_group()

main()
"""


@pytest.mark.rest
def test_ranks_that_torchrun_starts_are_compared_row_by_row(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = process(*DOCTOR, "20", "--", *run, str(tmp_path / "train.py"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["findings"]
    sharding = {(one["loader"], one["severity"]) for one in found if one["name"] == "not-sharded"}
    assert sharding == {("rows", "wrong"), ("stream", "wrong")}


@pytest.mark.rest
def test_ranks_of_a_job_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes, both of which take themselves for rank 0 of 2."""
    code = """
    import torchyoga as yoga
    loader = yoga.DataLoader(range(32), 4, seed=1, shuffle=True, num_replicas=2, rank=0)
    for batch in loader:
        pass
    """
    (tmp_path / "rank.py").write_text(textwrap.dedent(code))
    monkeypatch.chdir(tmp_path)
    job = 'RANK=0 WORLD_SIZE=2 "$0" rank.py & RANK=1 WORLD_SIZE=2 "$0" rank.py; wait'
    found = json.loads(process(*DOCTOR, str(EACH), "--", "sh", "-c", job, sys.executable).stdout)
    (finding,) = (one for one in found["findings"] if one["name"] == "not-sharded")
    assert finding["measured"] == "2 ranks begin with the same 16 rows, one after the other"
    assert finding["severity"] == "wrong"


@pytest.mark.parametrize("folder", ["", "/nowhere"])  # as after the command has ended
def test_without_a_folder_in_the_variable_nothing_of_the_doctor_is_loaded(folder: str) -> None:
    code = "import importlib, os, sys, torchyoga as yoga; os.environ['TORCHYOGA_DOCTOR'] = sys.argv[1]; "
    code += "importlib.reload(yoga).DataLoader; "
    code += "print([name for name in sys.modules if 'tools' in name and 'torchyoga' in name])"
    assert run_program(code, folder).stdout == "[]\n"


@pytest.mark.rest
def test_the_examples_of_the_help_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^ +yoga (doctor\b.*)$", said("doctor", "--help"), re.MULTILINE)
    assert len(examples) == 2
    page = (ROOT / "docs" / "measure.md").read_text()
    assert all(f"$ yoga {line}\n" in page for line in examples)
    Path("train.py").write_text("import torchyoga")
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    for line in examples:
        assert "no loader was iterated" in said(*line.split())
    written = json.loads(Path("found.json").read_text())
    assert "no loader was iterated" in written["left_out"]["the program"]
    assert written["exit_code"] == 0
