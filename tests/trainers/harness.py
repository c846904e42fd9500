"""Runs the training programs as processes, and reads what they have logged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Step", "evaluated", "launch", "record", "runs", "trained"]

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"


class Step(NamedTuple):
    """A batch that was trained on; the loss as `float.hex` has it."""

    epoch: int
    rows: list[int]
    loss: str


def launch(program: str, task: dict[str, Any], world: int = 1, timeout: float = 120) -> str:
    """Runs a program to its end, under torchrun if there is more than one rank; returns what it said.

    Raises:
        AssertionError: it failed or took too long, with the tail of what it said.
    """
    Path(task["folder"]).mkdir(parents=True, exist_ok=True)
    command = [sys.executable]
    if world > 1:
        # --standalone finds a free port.
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}"]
    command += [str(PROGRAMS / f"{program}.py"), json.dumps(task)]
    # Into a file: workers that outlive their process for a moment would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, env=_environment(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
            # torchrun ends its ranks, which are in sessions of their own, if it is asked to.
            process.terminate()
            _wait(process, 40)
        finally:
            _kill(process)
        output.seek(0)
        said = output.read()
    ending = f"took more than {timeout} s" if code is None else f"ended with {code}"
    assert code == 0, f"{program} {task} on {world} {ending}:\n{said[-6000:]}"
    return said


def record(folder: str | Path, run: int, world: int = 1) -> list[list[Step]]:
    """The steps of each rank of a run."""
    return [[Step(**line) for line in _lines(Path(folder) / f"run{run}-rank{rank}")] for rank in range(world)]


def evaluated(folder: str | Path, run: int, world: int = 1) -> list[list[list[int]]]:
    """The rows of each batch of evaluation of each rank of a run."""
    names = [Path(folder) / f"run{run}-rank{rank}-eval" for rank in range(world)]
    return [[line["rows"] for line in _lines(name)] for name in names]


def runs(
    program: str,
    folder: str | Path,
    stops: Sequence[int],
    worlds: Sequence[int] | None = None,
    timeout: float = 120,
    **task: Any,
) -> list[list[list[Step]]]:
    """The steps of each rank of each run: one for each stop, after so many batches, and one to the end."""
    worlds = worlds or [1] * (len(stops) + 1)
    found = []
    for run, (stop, world) in enumerate(zip([*stops, None], worlds, strict=True)):
        one = {**task, "folder": str(folder), "run": run, "stop_after": stop, "resume": run > 0}
        launch(program, one, world, timeout)
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
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def _lines(name: Path) -> list[dict[str, Any]]:
    path = Path(f"{name}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Whatever is left of its group: workers, above all."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
