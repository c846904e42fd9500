"""The shapes of other people's training loops, with a Checkpoint in each; run as processes, and killed.

`python shapes.py` reads an order in each line, forks a process for it, and says how that ended: torch and its
optimizers import for seconds, so they are imported once. An order may also be a program's text.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from becoming import finish
from torch import nn

import torchyoga as yoga

KILLED = -signal.SIGKILL


class Rows(torch.utils.data.Dataset[Any]):
    """Numbers with noise of their own, as augmentation draws it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: int) -> Any:
        x = torch.sin(torch.arange(6.0) * (row + 1)) + 0.1 * torch.randn(6) + 0.1 * random.random()
        return row, x, torch.tensor(float(row % 5))


class Net(nn.Module):
    """A model that draws in its step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found[:, 0]


def _in_order_of_ranks(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of all ranks' gradients, summed in the order of ranks: gloo's own order may vary."""
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, bucket.buffer())
    found: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    found.set_result(torch.stack(parts).mean(0))
    return found


class Program:
    """What all shapes share: the model, the loaders, a log, and the moment to be killed."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order, self.count = order, 0
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.device = order.get("device", "cpu")
        self.net = Net().to(self.device)
        self.model: nn.Module = self.net
        if dist.is_initialized():
            self.model = model = nn.parallel.DistributedDataParallel(self.net)
            kinds = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
            _in_order_of_ranks.__annotations__.update(kinds)  # torch looks at them
            model.register_comm_hook(None, _in_order_of_ranks)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
        workers = order.get("workers", 0)
        more = {"multiprocessing_context": "fork"} if workers else {}
        batch = order.get("batch", 4)
        self.train: Any = yoga.DataLoader(Rows(42), batch, shuffle=True, seed=7, num_workers=workers, **more)
        self.valid: Any = yoga.DataLoader(Rows(18), 4, shuffle=True, drop_last=True)
        if self.device != "cpu":
            self.train = yoga.to_device(self.train, self.device)
            self.valid = yoga.to_device(self.valid, self.device)
        self._log = open(order["log"], "a")  # noqa: SIM115

    def checkpoint(self, **arguments: Any) -> Any:
        """A checkpoint that has been resumed."""
        every = self.order.get("every", 3)
        loaders = {"train": self.train, "valid": self.valid}
        arguments = {"every": every, "loaders": loaders, **arguments, **self.order.get("arguments", {})}
        run = yoga.Checkpoint(
            self.order["folder"], resume=True, model=self.model, optimizer=self.optimizer, **arguments
        )
        if "kill_at_call" in self.order:
            _kill_at_call(self.order["folder"], self.order["kill_at_call"])
        return run

    def loss(self, batch: Any) -> torch.Tensor:
        _, x, y = batch
        # A loop may draw from all three, in its step.
        x = x + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return (self.model(x) - y).square().mean()

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def evaluate(self) -> float:
        self.model.eval()
        with torch.no_grad():
            found = sum(float((self.net(x) - y).abs().mean()) for _, x, y in self.valid)
        self.model.train()
        return found

    def log(self, *key: Any, rows: torch.Tensor | None = None, value: float) -> None:
        """Writes a line; the process is killed where it was ordered to."""
        line = {"key": key, "rows": [] if rows is None else rows.tolist(), "value": float(value).hex()}
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()
        self.count += 1
        if self.count == self.order.get("kill_after"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.count == self.order.get("signal_after"):
            for name in self.order.get("group_signals", []):
                os.killpg(0, getattr(signal, name))
                time.sleep(0.2)  # workers would die of it
            if "group_signals" not in self.order:
                os.kill(os.getpid(), signal.SIGUSR1)


def _kill_at_call(folder: str, number: int) -> None:
    """Kills the process before a system call on a path of the folder; the first is 1."""
    calls = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal calls
        if event.startswith(("open", "os.", "shutil.")) and folder in str(arguments[:2]):
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def tutorial(program: Program) -> None:
    """PyTorch's DDP tutorial: epochs of a Trainer, each with a look at the learning rate's schedule."""
    scheduler = torch.optim.lr_scheduler.MultiStepLR(program.optimizer, [1, 2], 0.5)
    run = program.checkpoint(scheduler=scheduler, values={"best": 1e9, "seen": []})
    for epoch in run.epochs(3):
        for step, batch in enumerate(program.train, program.train.steps):
            loss = program.loss(batch)
            program.step(loss)
            program.log("train", epoch, step, rows=batch[0], value=loss.item())
        scheduler.step()
        found = program.evaluate()
        run.values["best"] = min(run.values["best"], found)
        run.values["seen"].append(found)
        program.log("valid", epoch, len(run.values["seen"]), value=found)
        program.log("rate", epoch, value=scheduler.get_last_lr()[0])


def nanogpt(program: Program) -> None:
    """nanoGPT: no epochs; the next batch is fetched between forward and backward, which draws, too."""

    def get_batch() -> Any:
        row, x, y = next(batches)
        return (
            row,
            x + 0.1 * torch.rand(6, device=x.device) * random.random(),
            y,
        )  # as code that crops on the device

    run = program.checkpoint(hold=1)
    batches = run.forever("train")
    batch = get_batch()
    while run.steps < 30:
        if run.steps % 7 == 0:
            program.log("valid", run.steps, value=program.evaluate())
        loss, rows = program.loss(batch), batch[0]
        batch = get_batch()
        program.step(loss)
        program.log("train", run.steps, rows=rows, value=loss.item())
        run.stepped()


def unet(program: Program) -> None:
    """Pytorch-UNet: evaluations within the epoch, after which the learning rate follows the score."""
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(program.optimizer, "max", patience=1)
    scaler = torch.amp.GradScaler(program.device)
    run = program.checkpoint(scheduler=scheduler, scaler=scaler)
    for epoch in run.epochs(3):
        for step, batch in enumerate(program.train, program.train.steps):
            loss = program.loss(batch)
            program.optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(program.optimizer)
            torch.nn.utils.clip_grad_norm_(program.net.parameters(), 1.0)
            scaler.step(program.optimizer)
            scaler.update()
            program.log("train", epoch, step, rows=batch[0], value=loss.item())
            if (step + 1) % 4 == 0:
                score = program.evaluate()
                scheduler.step(score)
                program.log("valid", epoch, step, value=score)


def sharded(program: Program) -> None:
    """FSDP2: parameters and the optimizer's state are divided among ranks; torch saves them."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, net = init_device_mesh("cpu", (dist.get_world_size(),)), Net()
    apart = dist.new_group(backend="gloo")  # for what is saved while training goes on
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    model = fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    folder, order = program.order["folder"], program.order
    saving: list[Any] = []

    class Sharded(yoga.Checkpoint):
        def save(self) -> None:
            where = f"{folder}/{self.steps}"
            for one in saving:
                one.result()  # torch saves one at a time
            if order["how"] == "async":
                saving.append(dcp.async_save({"run": self}, checkpoint_id=where, process_group=apart))
            else:
                dcp.save({"run": self}, checkpoint_id=where)

    run = Sharded(
        folder,
        every=5,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        loaders={"train": program.train},
    )
    if order["how"] == "load":
        dcp.load({"run": run}, checkpoint_id=f"{folder}/5")
    for epoch in run.epochs(1):
        for step, batch in enumerate(program.train, program.train.steps):
            _, x, y = batch
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            program.log("train", epoch, step, rows=batch[0], value=loss.item())
    for one in saving:
        one.result()


SHAPES: dict[str, Callable[[Program], None]] = {shape.__name__: shape for shape in (tutorial, nanogpt, unet)}


def serve() -> dict[str, Any] | None:
    """Forks a process for each order, of as many ranks as it names, and prints how they ended.

    Returns the order in a child that is to be a program of its own: the interpreter ends with it.
    """
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()
    for line in sys.stdin:
        order = json.loads(line)
        children = []
        for rank in range(order.get("world", 1)):
            child = os.fork()
            if not child and "code" in order:
                return order  # type: ignore[no-any-return]
            if not child:
                finish(partial(_run, order, rank))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)
    return None


def _run(order: dict[str, Any], rank: int) -> None:
    os.setpgid(0, 0)
    signal.alarm(order.get("patience", 120))
    world = order.get("world", 1)
    order = {**order, "log": f"{order['log']}-{rank}", **order.get("only", {}).get(str(rank), {})}
    os.environ["WORLD_SIZE"] = str(world)
    if world > 1 or order["shape"] == "sharded":
        dist.init_process_group("gloo", f"file://{order['meeting']}", rank=rank, world_size=world)
    {**SHAPES, "sharded": sharded}[order["shape"]](Program(order))


class Server:
    """A process that runs orders."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        paths = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, __file__], env={**os.environ, "PYTHONPATH": paths}, **pipes
        )

    def run(self, shape: str, folder: Path, log: Path, **order: Any) -> list[int]:
        """Runs a loop on `world` ranks; how each of them ended."""
        self._number += 1
        meeting = str(self._folder / f"meeting-{self._number}")
        self._order({"shape": shape, "folder": str(folder), "log": str(log), "meeting": meeting, **order})
        return self._codes()

    def run_program(self, code: str, *arguments: str) -> tuple[int, str, str]:
        """Runs a program as `python -c` would; how it ended, and what it and its children have printed."""
        self._number += 1
        pipe, errors = (self._folder / f"{name}-{self._number}" for name in ("pipe", "errors"))
        os.mkfifo(pipe)
        self._order({"code": code, "arguments": arguments, "pipe": str(pipe), "errors": str(errors)})
        printed = pipe.read_text()
        return self._codes()[0], printed, errors.read_text()

    def _order(self, order: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _codes(self) -> list[int]:
        line = self._process.stdout.readline()
        assert line, "the server has ended"
        codes: list[int] = json.loads(line)
        return codes

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(30)
        self._process.stdout.close()


if __name__ == "__main__":
    program = serve()
    if program is not None:
        os.dup2(os.open(program["pipe"], os.O_WRONLY), 1)
        os.dup2(os.open(program["errors"], os.O_WRONLY | os.O_CREAT), 2)
        sys.argv[1:] = program["arguments"]
        exec(program["code"])
