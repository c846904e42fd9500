"""A language model of bytes on a mixture of three corpora, packed; killed, and continued on other ranks.

    python examples/language_model.py

The corpora are the Python files of packages that are installed here. It calls torchrun by itself, and
compares, for every global step, which rows came, how many tokens, and the loss summed over the tokens.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import torchyoga as yoga

CORPORA = {"torch": torch.optim.__file__, "numpy": np.lib.__file__, "standard": json.__file__}
WEIGHTS = {"torch": 5, "numpy": 3, "standard": 2}
TOKENS, PACKS = 128, 12  # of a pack; of a global batch, which 1, 2, 3, 4 or 6 ranks divide
STEPS, KILLED_AT = 10, 4


def functions(module: str) -> Iterator[dict[str, Any]]:
    """The source of each function of a package, as bytes."""
    for path in sorted(Path(module).parent.glob("*.py"))[:12]:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                source = ast.get_source_segment(text, node) or ""
                yield {"ids": np.frombuffer(source.encode(), np.uint8).astype(np.int64), "file": path.name}


def cache(folder: Path) -> None:
    """Keeps the corpora."""
    for name, module in CORPORA.items():
        rows = list(functions(module))
        schema = yoga.Schema.of(rows[0], ragged=["ids"])
        yoga.Storage(folder).submit(rows, name, "1", schema=schema, progress=False)


def mixture(folder: Path) -> yoga.DataRef:
    """Packs of each corpus, so many of each."""
    storage = yoga.Storage(folder)
    packed = {
        name: storage.fetch(name, "1").packed("ids", TOKENS, long="split", labels="ids", padded=0)
        for name in CORPORA
    }
    return yoga.mix(packed, WEIGHTS, rows=PACKS * 8, source_column="source")


class Model(nn.Module):
    """A transformer of one layer over bytes; tokens see those before them in their own document."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(TOKENS, width)
        self.query, self.out = nn.Linear(width, 3 * width), nn.Linear(width, 256)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of each token (B, T); 0 where there is none."""
        ids, document = batch["ids"], batch["document_ids"]
        found = self.bytes(ids) + self.places(batch["position_ids"])
        same = (document[:, :, None] == document[:, None, :]).tril()  # block-diagonal and causal
        query, key, value = self.query(found).chunk(3, -1)
        found = found + functional.scaled_dot_product_attention(query, key, value, same)
        # Each token is foretold by the one before it; the labels of first tokens are left out.
        losses = functional.cross_entropy(
            self.out(found)[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="none"
        )
        return losses.view(len(ids), -1)


def train(folder: Path, until: int, workers: int) -> None:
    """One rank: continues from the checkpoint, if there is one, and notes what each global step had."""
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    loader = yoga.DataLoader(mixture(folder), PACKS // world, shuffle=True, seed=7, num_workers=workers)
    step, notes = 0, folder / f"steps{os.environ['RUN']}.jsonl"
    checkpoint = folder / f"checkpoint{os.environ['RUN']}.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["data"])
        step = saved["step"]
    while step < until:
        for batch in loader:
            labels = int((batch["labels"][:, 1:] >= 0).sum())
            loss = model(batch).sum()
            found = torch.tensor([loss.item(), labels], dtype=torch.float64)
            dist.all_reduce(found)
            optimizer.zero_grad()
            (loss / found[1].item()).backward()  # the mean over the tokens of all ranks
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            rows = [None] * world
            # The first row of each pack, and the pack's corpus.
            firsts = batch["rows"][batch["packs"][:-1]].tolist()
            dist.all_gather_object(rows, list(zip(batch["source"].tolist(), firsts, strict=True)))
            step += 1
            if rank == 0:
                told = sorted(pack for each in rows for pack in each)  # type: ignore[union-attr]
                with notes.open("a") as file:
                    print(json.dumps([told, int(found[1]), found[0].item()]), file=file)
                torch.save(
                    {"model": model.state_dict(), "data": loader.state_dict(), "step": step}, checkpoint
                )
            if step >= until:
                break
    dist.barrier()
    dist.destroy_process_group()


def run(folder: Path, name: str, ranks: int, until: int, workers: int = 0) -> list[Any]:
    """Trains on so many ranks; the notes of all steps so far."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--standalone"]
    command += [__file__, str(folder), "--until", str(until), "--workers", str(workers)]
    environment = {**os.environ, "RUN": name, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, timeout=600)
    return [json.loads(line) for line in (folder / f"steps{name}.jsonl").read_text().splitlines()]


def main() -> None:
    """The same training on two ranks; killed and continued on three; and with other workers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--until", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.folder:
        train(Path(arguments.folder), arguments.until, arguments.workers)
        return
    with tempfile.TemporaryDirectory() as folder:
        cache(Path(folder))
        whole = run(Path(folder), "whole", 2, STEPS)
        run(Path(folder), "killed", 2, KILLED_AT)
        continued = run(Path(folder), "killed", 3, STEPS)
        workers = run(Path(folder), "workers", 2, STEPS, workers=1)
    assert [step[:2] for step in continued] == [step[:2] for step in whole], "other rows or tokens"
    assert workers == whole, "other workers must change nothing, not even the last bit"
    off = max(abs(one[2] / other[2] - 1) for one, other in zip(continued, whole, strict=True))
    assert off < 1e-5, f"losses are off by {off}"
    print(
        f"{STEPS} steps on 2 ranks, and killed after {KILLED_AT} and continued on 3: the same packs and "
        f"{sum(step[1] for step in whole)} tokens in each, losses equal to {off:.0e}; with workers all bits "
        f"are equal. Loss of a token: {whole[0][2] / whole[0][1]:.3f}, then {whole[-1][2] / whole[-1][1]:.3f}"
    )


if __name__ == "__main__":
    main()
