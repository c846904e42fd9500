"""Starts training programs as processes forked from one that has only imported: new processes, without the
seconds that imports take.

Reads orders from its standard input, a line of JSON each; answers with the id of a process, and its exit
code.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import struct
import sys
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch._dynamo  # noqa: F401  (DDP and optimizers import it when they are first made)
from becoming import become, finish, run_main
from torch.distributed import TCPStore

import torchyoga  # noqa: F401

_PROGRAMS = Path(__file__).parent / "programs"
# What the programs of each nursery import, also what their trainers import later.
_IMPORTS = {
    "torch": [
        "torch.distributed.algorithms.join",
        "torch.distributed.checkpoint.state_dict_loader",
        "torchdata.stateful_dataloader",
        "torchdata.nodes",
    ],
    "lightning": ["lightning.pytorch", "accelerate"],
    "accelerate": ["accelerate"],
    "transformers": ["transformers.trainer"],
    "keras": ["keras", "tensorflow"],
}


def _start(order: dict[str, Any]) -> NoReturn:
    """In a child: runs the program as if it were started from the command line, or all of its ranks."""

    def program() -> None:
        if order["world"] > 1:
            sys.exit(_start_ranks(order["program"], order["task"], order["world"]))
        _run(order["program"], order["task"])

    output = Path(order["output"])
    become(program, Path(os.devnull), output, output)


def _start_ranks(program: str, task: str, world: int) -> int:
    """Starts processes as torchrun does, with its environment and its store; the first code that is not 0."""
    told, tell = os.pipe()
    children = set()
    for rank in range(world):
        child = os.fork()
        if child == 0:
            os.close(tell)
            finish(partial(_run_rank, program, task, rank, world, told))
        children.add(child)
    # Only now, because it has a thread. It chooses the port itself: one chosen before could be taken
    # meanwhile.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(tell, struct.pack("H", store.port) * world)
    while children:
        child, status = os.wait()
        children.discard(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            return os.waitstatus_to_exitcode(status) or 1
    return 0


def _run_rank(program: str, task: str, rank: int, world: int, told: int) -> None:
    (port,) = struct.unpack("H", os.read(told, 2))
    os.environ.update(_environment(rank, world, port))
    _run(program, task)


def _environment(rank: int, world: int, port: int) -> dict[str, str]:
    found = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
    }
    return {name: str(value) for name, value in found.items()}


def _run(program: str, task: str) -> None:
    path = _PROGRAMS / f"{program}.py"
    sys.path.insert(0, str(_PROGRAMS))
    # Not as a file: workers that are spawned do not import it, and with it a trainer, for seconds.
    run_main(path.read_text(), [str(path), task])


def main() -> None:
    for name in ("datasets", "pandas", "pyarrow"):
        # Trainers import them where they are installed, and Arrow's memory has threads of its own.
        sys.modules[name] = None  # type: ignore[assignment]
    for name in _IMPORTS[sys.argv[1]]:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads, which would not be there in a child"
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _start(json.loads(line))
        print(json.dumps({"child": child}), flush=True)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
