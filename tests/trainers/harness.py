"""Runs the training programs as processes, and reads their logs."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
# Programs that import about the same are started by one process.
NURSERIES = {
    "lightning_trainer": "lightning",
    "fabric": "lightning",
    "accelerate_loop": "accelerate",
    "accelerate_rates": "accelerate",
    "checkpointed": "lightning",
    "transformers_trainer": "transformers",
    "keras_fit": "keras",
    **dict.fromkeys(["plain", "dcp", "stateful", "nodes", "tutorial", "ahead"], "torch"),
}


class Step(NamedTuple):
    """A batch that was trained on; the loss as `float.hex` has it."""

    epoch: int
    rows: list[int]
    loss: str


def launch(program: str, task: dict[str, Any], world: int = 1, torchrun: bool = False) -> str:
    """Runs a program on `world` ranks to its end, with torchrun or in the same way; returns its output.

    Raises:
        AssertionError: it failed or took too long, with the end of its output.
    """
    Path(task["folder"]).mkdir(parents=True, exist_ok=True)
    starter = _Torchrun() if torchrun else _nurseries.get(NURSERIES[program])
    if starter is None:
        starter = _nurseries[NURSERIES[program]] = _Nursery(NURSERIES[program])
    with tempfile.NamedTemporaryFile("r", dir=task["folder"]) as output:
        order = {"program": program, "task": json.dumps(task), "world": world, "output": output.name}
        code = starter.run(order)
        printed = output.read()
    ending = f"took more than {PATIENCE} s" if code is None else f"ended with {code}"
    assert code == 0, f"{program} {task} on {world} {ending}:\n{printed[-6000:]}"
    return printed


class _Nursery:
    """A process that starts those of programs that import about the same."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py")), name],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        atexit.register(self._process.kill)

    def run(self, order: dict[str, Any]) -> int | None:
        """The exit code; None if it took too long, and was killed."""
        child = None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            child = self._answer("child", PATIENCE)  # it imports a lot first
            assert child is not None, f"no process of {order['program']} could be started"
            code = self._answer("code", PATIENCE)
            _kill_group(child)  # processes that it left, workers above all
            if code is None:
                assert self._answer("code", 60) is not None
            return code
        except BaseException:  # a late answer would be taken for the answer to the next order
            self._process.kill()
            if child is not None:
                _kill_group(child)
            _nurseries.clear()
            raise

    def _answer(self, what: str, timeout: float) -> int | None:
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            return None
        line = self._process.stdout.readline()
        assert line, "the nursery has ended"
        return int(json.loads(line)[what])


def _kill_group(child: int) -> None:
    assert child > 1
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


_nurseries: dict[str, _Nursery] = {}


class _Torchrun:
    def run(self, order: dict[str, Any]) -> int | None:
        """The exit code; None if it took too long, and was ended."""
        ranks = f"--nproc_per_node={order['world']}"
        path = Path(__file__).parent / "programs" / f"{order['program']}.py"
        # --standalone finds a free port.
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            ranks,
            str(path),
            order["task"],
        ]
        with open(order["output"], "w") as output:
            process = subprocess.Popen(command, env=_environment(), stdout=output, stderr=subprocess.STDOUT)
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.terminate()  # it takes its ranks with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(40)
            return None
        finally:
            process.kill()
            process.wait()


def record(folder: str | Path, run: int, world: int = 1) -> list[list[Step]]:
    """The steps of each rank of a run."""
    return [[Step(**line) for line in _lines(Path(folder) / f"run{run}-rank{rank}")] for rank in range(world)]


def evaluated(folder: str | Path, run: int, world: int = 1) -> list[list[list[int]]]:
    """The rows of each evaluation batch of each rank of a run."""
    names = [Path(folder) / f"run{run}-rank{rank}-eval" for rank in range(world)]
    return [[line["rows"] for line in _lines(name)] for name in names]


def runs(
    program: str,
    folder: str | Path,
    stops: Sequence[int],
    worlds: Sequence[int] | None = None,
    torchrun: int = 0,
    **task: Any,
) -> list[list[list[Step]]]:
    """The steps of each rank of each run: one for each stop, after that many batches, and one to the end.

    So many of the first runs are started by torchrun, others in the same way.
    """
    worlds = worlds or [1] * (len(stops) + 1)
    found = []
    for run, (stop, world) in enumerate(zip([*stops, None], worlds, strict=True)):
        one = {**task, "folder": str(folder), "run": run, "stop_after": stop, "resume": run > 0}
        launch(program, one, world, torchrun=run < torchrun)
        found.append(record(folder, run, world))
        is_over = all((Path(folder) / f"run{run}-rank{rank}.done").exists() for rank in range(world))
        assert is_over == (stop is None), f"{program}: run {run} {'ended early' if is_over else 'broke off'}"
    return found


def trained(
    program: str, folder: str | Path, stops: Sequence[int] = (), world: int = 1, **task: Any
) -> list[list[Step]]:
    """The steps of each rank over all the runs."""
    found = runs(program, folder, stops, [world] * (len(stops) + 1), **task)
    return [[step for run in found for step in run[rank]] for rank in range(world)]


def _environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": "1",
        "KERAS_BACKEND": "torch",
        "GLOO_SOCKET_IFNAME": "lo",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def _lines(name: Path) -> list[dict[str, Any]]:
    path = Path(f"{name}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
