"""DDP on four processes, killed, and continued on two: every row once, and the proof of it.

    python examples/ddp_resume.py

It calls torchrun by itself. On a cluster you would call the same file:

    torchrun --nproc_per_node 4 examples/ddp_resume.py /path/to/folder
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchyoga as yoga

EPOCHS = 2
SAVED = "saved in the first epoch"


def train(folder: Path, awaits_kill: bool) -> None:
    """One rank; continues from the folder's checkpoint if there is one.

    Args:
        folder: the folder of the checkpoint, for all ranks.
        awaits_kill: do nothing more after the first checkpoint.
    """
    dist.init_process_group("gloo")
    digits = load_digits()
    data = yoga.from_arrays({"image": (digits.images / 16).astype("float32"), "label": digits.target})
    loader = yoga.DataLoader(data, batch_size=8, shuffle=True, seed=7)  # knows its rank
    torch.manual_seed(7)
    model = DistributedDataParallel(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        loader.load_state_dict(saved["data"])  # saved by rank 0, right on every rank, however many there are
        assert loader.prove(), "the ranks have loaded different states"
        say(f"continued on {dist.get_world_size()} processes at row {saved['data']['position']}")

    while (epoch := loader.epoch) < EPOCHS:
        for step, batch in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0 and dist.get_rank() == 0:
                torch.save({"model": model.module.state_dict(), "data": loader.state_dict()}, folder / "new")
                os.replace(folder / "new", checkpoint)
                if awaits_kill:
                    say(SAVED)
                    sys.stdin.read()  # until it is killed, or the process that kills it is gone
        proof = loader.prove()  # one small collective
        say(f"{proof} (loss {loss.item():.3f})")
        assert proof, f"epoch {epoch}"
    dist.destroy_process_group()
    # At once: when DDP is taken apart after its group, torch 2.13 may hang or abort (pytorch #190489).
    os._exit(0)


def say(text: str) -> None:
    """Prints it once."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def torchrun(processes: int, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Starts as many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, __file__, *arguments], env=environment, text=True, **options)


def main() -> None:
    """Four processes, killed after their first checkpoint; then two."""
    with tempfile.TemporaryDirectory() as folder:
        # Errors are not shown: torchrun would report that it was killed.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with torchrun(4, folder, "wait", **pipes) as running:
            assert running.stdout is not None
            # Its lines until it has saved; they end if it ends.
            if f"{SAVED}\n" not in running.stdout:
                sys.exit(f"it ended before it could be killed, with exit code {running.wait()}")
            running.terminate()  # torchrun takes its processes with it
        assert running.returncode != 0
        print("killed in the first epoch")
        assert torchrun(2, folder).wait() == 0


if __name__ == "__main__":
    train(Path(sys.argv[1]), awaits_kill="wait" in sys.argv[2:]) if len(sys.argv) > 1 else main()
