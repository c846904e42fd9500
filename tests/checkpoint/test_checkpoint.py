"""A program that is killed and continued is the program that was never stopped, to the last bit."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from disks import small_disk
from shapes import KILLED, SHAPES, Server

import torchyoga as yoga


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("meetings"))
    yield found
    found.close()


def lines(log: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.with_name(f"{log.name}-{rank}").read_text().splitlines()]


def check_same(whole: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    """Every line of the pieces is that of the whole run, and none is missing."""
    known = {json.dumps(line["key"]): line for line in whole}
    assert len(known) == len(whole)
    for line in pieces:
        assert line == known[json.dumps(line["key"])]
    assert {json.dumps(line["key"]) for line in pieces} == set(known)


FEW = ("nanogpt",)  # of the shapes
RARELY = [pytest.param(shape, "cpu", marks=pytest.mark.rest) for shape in SHAPES if shape not in FEW]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ON_GPU = [pytest.param(shape, "cuda", marks=GPU) for shape in SHAPES]  # dropout draws from its generator


@pytest.mark.parametrize(("shape", "device"), [*((shape, "cpu") for shape in FEW), *RARELY, *ON_GPU])
def test_killed_three_times(shape: str, device: str, server: Server, tmp_path: Path) -> None:
    assert server.run(shape, tmp_path / "whole", tmp_path / "log", device=device) == [0]
    for kill_after, workers in [(9, 2), (7, 0), (16, 1)]:  # after so many lines
        order = {"kill_after": kill_after, "workers": workers if device == "cpu" else 0, "device": device}
        assert server.run(shape, tmp_path / "run", tmp_path / "pieces", **order) == [KILLED]
    assert server.run(shape, tmp_path / "run", tmp_path / "pieces", device=device) == [0]
    check_same(lines(tmp_path / "log"), lines(tmp_path / "pieces"))


@pytest.mark.parametrize(
    ("shape", "every"),
    [
        pytest.param("nanogpt", 9, marks=pytest.mark.rest),
        pytest.param("tutorial", 9, marks=pytest.mark.rest),
        *(pytest.param(shape, 1, marks=pytest.mark.soak) for shape in SHAPES),
    ],
)
def test_a_kill_at_any_line(shape: str, every: int, server: Server, tmp_path: Path) -> None:
    server.run(shape, tmp_path / "whole", tmp_path / "log")
    whole = lines(tmp_path / "log")
    for kill_after in range(1, len(whole), every):
        folder, log = tmp_path / f"run-{kill_after}", tmp_path / f"log-{kill_after}"
        assert server.run(shape, folder, log, kill_after=kill_after, every=1) == [KILLED]
        assert server.run(shape, folder, log, every=1) == [0]
        check_same(whole, lines(log))
        trained = Counter(str(line["key"]) for line in lines(log))
        assert sum(trained.values()) - len(whole) <= 6  # saved at each step, little comes again


@pytest.mark.rest
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_a_kill_at_any_call(every: int, server: Server, tmp_path: Path) -> None:
    server.run("tutorial", tmp_path / "whole", tmp_path / "log")
    whole, call, codes = lines(tmp_path / "log"), 1 - every, [KILLED]
    while codes == [KILLED]:  # the second save removes the first, too
        call += every
        folder, log = tmp_path / f"run-{call}", tmp_path / f"log-{call}"
        order: dict[str, Any] = {"every": 16, "arguments": {"keep": 1}}
        codes = server.run("tutorial", folder, log, kill_at_call=call, **order)
        assert server.run("tutorial", folder, log, **order) == [0]
        check_same(whole, lines(log))
        assert "step-33" in [path.name for path in folder.iterdir()]
    assert codes == [0]
    assert call > 40


@pytest.mark.parametrize(
    ("world", "signals"),
    [
        (1, ["SIGUSR1", "SIGTERM"]),
        pytest.param(2, ["SIGTERM"], marks=pytest.mark.rest),
        pytest.param(2, ["SIGUSR1", "SIGTERM"], marks=pytest.mark.rest),
    ],
)
def test_signals_to_all_processes_of_a_job(
    world: int, signals: list[str], server: Server, tmp_path: Path
) -> None:
    """As torchrun and Slurm send them: to workers as well, and again; each saves and leaves."""
    server.run("tutorial", tmp_path / "whole", tmp_path / "log", world=world)
    order: dict[str, Any] = {"every": 1000, "workers": 2, "world": world}
    first = 128 + getattr(signal, signals[0])
    again = [(4, {"exit_code": 3}, 3)] if world == 1 else []  # several ranks take some steps to agree
    for signal_after, arguments, code in [(5, {}, first), *again]:
        more = {"signal_after": signal_after, "arguments": arguments, "group_signals": signals}
        codes = server.run("tutorial", tmp_path / "run", tmp_path / "pieces", **order, **more)
        assert codes == [code] * world
    assert server.run("tutorial", tmp_path / "run", tmp_path / "pieces", **order) == [0] * world
    for rank in range(world):
        pieces = lines(tmp_path / "pieces", rank)
        check_same(lines(tmp_path / "log", rank), pieces)
        assert len(pieces) == len(lines(tmp_path / "log", rank))  # nothing was done twice


ENDING = """
import os, signal, sys, torch, torchyoga as yoga

if __name__ == "__main__":
    end, method, folder = sys.argv[1:]
    loader = yoga.DataLoader(range(10_000), num_workers=2, multiprocessing_context=method)
    run = yoga.Checkpoint(folder, model=torch.nn.Linear(1, 1), loaders={"train": loader})
    for epoch in run.epochs(1):
        for step, batch in enumerate(loader):
            run.stepped()
            if step == 3:
                print("ends", flush=True)
                exec(end)
"""
ENDS = {  # the code, and what is said on standard error
    "sys.exit()": (0, ""),
    "os.kill(os.getpid(), 9)": (-9, ""),
    "os.kill(os.getpid(), signal.SIGTERM)": (128 + signal.SIGTERM, ""),
    "raise ValueError": (1, "ValueError"),
    "os.kill(os.getpid(), signal.SIGINT)": (1, "KeyboardInterrupt"),
    "os._exit(0)": (0, ""),
}


@pytest.mark.quick("sys*-fork", "* 9)-fork")
@pytest.mark.parametrize(
    ("end", "method"),
    [
        *((end, "fork") for end in ENDS),
        *((end, "spawn") for end in list(ENDS)[:2]),
        *(pytest.param(end, "spawn", marks=pytest.mark.soak) for end in list(ENDS)[2:]),
    ],
)
def test_workers_end_with_their_program(end: str, method: str, server: Server, tmp_path: Path) -> None:
    code, printed, errors = server.run_program(ENDING, end, method, str(tmp_path / "run"))
    assert printed == "ends\n"  # read to its end: its workers have closed the pipe, too
    expected, said = ENDS[end]
    assert code == expected
    assert said in errors


LEFT = """
import sys
import torch, torchyoga as yoga
net = torch.nn.Linear(1, 1)
sgd = torch.optim.SGD(net.parameters(), 0.1)
train = yoga.DataLoader(list(range(8)), 2, shuffle=True)
run = yoga.Checkpoint(sys.argv[1], every=1, net=net, sgd=sgd, loaders={"train": train})
batches = run.forever("train")
while run.steps < 2:
    net(next(batches)[:, None].float()).sum().backward()
    sgd.step()
"""


def test_a_program_that_ends_within_an_epoch_says_nothing(server: Server, tmp_path: Path) -> None:
    assert server.run_program(LEFT, str(tmp_path / "run")) == (0, "", "")


@pytest.mark.quick("2")
@pytest.mark.parametrize("world", [2, 3])
def test_several_ranks(world: int, server: Server, tmp_path: Path) -> None:
    assert server.run("tutorial", tmp_path / "whole", tmp_path / "log", world=world) == [0] * world
    order: dict[str, Any] = {"world": world, "every": 2}
    for more in ({"kill_after": 4}, {"only": {"1": {"signal_after": 2}}, "workers": 1}):
        codes = server.run("tutorial", tmp_path / "run", tmp_path / "pieces", **{**order, **more})
        assert set(codes) == {KILLED if "kill_after" in more else 128 + signal.SIGUSR1}
    assert server.run("tutorial", tmp_path / "run", tmp_path / "pieces", **order) == [0] * world
    for rank in range(world):
        check_same(lines(tmp_path / "log", rank), lines(tmp_path / "pieces", rank))


@pytest.mark.rest
@pytest.mark.parametrize("how", ["save", "async"])
def test_models_divided_among_ranks(how: str, server: Server, tmp_path: Path) -> None:
    """Saved by torch.distributed.checkpoint on two ranks, and continued on two and on one."""
    assert server.run("sharded", tmp_path / "run", tmp_path / "log", world=2, how=how) == [0, 0]
    for world in (2, 1):
        log = tmp_path / f"pieces-{world}"
        assert server.run("sharded", tmp_path / "run", log, world=world, how="load") == [0] * world
    for rank in range(2):
        assert lines(tmp_path / "pieces-2", rank) == lines(tmp_path / "log", rank)[5:]
    begun = [row for rank in (0, 1) for line in lines(tmp_path / "log", rank)[:5] for row in line["rows"]]
    rest = [row for line in lines(tmp_path / "pieces-1") for row in line["rows"]]
    assert sorted(begun + rest) == list(range(42))


@pytest.mark.rest
def test_other_ranks(server: Server, tmp_path: Path) -> None:
    """Killed on three ranks, continued on one and then on two: each row once an epoch."""
    log = tmp_path / "log"
    for world, kill_after in ((3, 5), (1, 7), (2, None)):
        order = {"world": world, "kill_after": kill_after, "every": 1, "batch": 2}
        codes = server.run("tutorial", tmp_path / "run", log.with_name(f"{world}"), **order)
        assert set(codes) == {0 if kill_after is None else KILLED}
    epochs = Counter(
        (line["key"][1], row)
        for world in (3, 1, 2)
        for rank in range(world)
        for line in lines(log.with_name(str(world)), rank)
        for row in line["rows"]
    )
    # The step under way at each kill was not saved: its rows come again.
    assert set(epochs) == {(epoch, row) for epoch in range(3) for row in range(42)}
    assert sum(epochs.values()) - 3 * 42 <= 3 * 2 + 2


@pytest.mark.rest
def test_a_rank_that_dies(server: Server, tmp_path: Path) -> None:
    order: dict[str, Any] = {"world": 3, "every": 2}
    codes = server.run(
        "tutorial", tmp_path / "run", tmp_path / "log", **order, only={"2": {"kill_at_call": 3}}
    )
    assert codes == [1, 1, KILLED]  # errors, no hang
    assert server.run("tutorial", tmp_path / "run", tmp_path / "log", **order) == [0, 0, 0]


@pytest.mark.rest
def test_a_full_disk(server: Server, tmp_path: Path) -> None:
    server.run("tutorial", tmp_path / "whole", tmp_path / "log")
    with small_disk(tmp_path / "disk", 2**20) as disk:
        order = {"folder": tmp_path / "disk" / "run", "log": tmp_path / "pieces", "every": 2}
        assert server.run("tutorial", **order, kill_after=6) == [KILLED]
        disk.fill(left=2**14)
        saved = sorted(path.name for path in order["folder"].iterdir())  # type: ignore[attr-defined]
        assert server.run("tutorial", **order) == [1]
        assert sorted(path.name for path in order["folder"].iterdir()) == saved  # type: ignore[attr-defined]
        disk.make_room()
        assert server.run("tutorial", **order) == [0]
    check_same(lines(tmp_path / "log"), lines(tmp_path / "pieces"))


def test_a_full_disk_is_named_by_the_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2**20) as disk:
        small, large = torch.nn.Linear(2, 2), torch.nn.Linear(600, 600)
        yoga.Checkpoint(disk.path / "run", every=1, model=small).save()
        run = yoga.Checkpoint(disk.path / "more", every=1, model=large)
        with pytest.raises(
            OSError, match=r"saving failed \(No space left on device\); free some space there"
        ):
            run.save()
        assert [path.name for path in disk.path.glob("*/*")] == ["step-0"]
