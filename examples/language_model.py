"""A language model of bytes on a mixture of three corpora, packed; killed, and continued on other ranks.

    python examples/language_model.py

The corpora are the Python files of packages that are installed here. For every global step it compares which
packs came, how many tokens, and the loss summed over the tokens.
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import start_processes
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
        name: storage.fetch(name, "1").packed("ids", TOKENS, long="split", labels="same", padded=0)
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


def train(rank: int, world: int, folder: Path, name: str, until: int, workers: int) -> None:
    """One rank: continues from the checkpoint, if there is one, and notes what each global step had."""
    meeting = folder / f"{name}-{world}"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    loader = yoga.DataLoader(mixture(folder), PACKS // world, shuffle=True, seed=7, num_workers=workers)
    checkpoint, step = folder / f"{name}.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["data"])
        step = saved["step"]
    while True:
        for batch in loader:
            losses = model(batch)
            tokens = int((batch["labels"][:, 1:] >= 0).sum())
            found = torch.tensor([losses.sum().item(), tokens], dtype=torch.float64)
            dist.all_reduce(found)
            optimizer.zero_grad()
            (losses.sum() / found[1].item()).backward()  # the mean over the tokens of all ranks
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            step += 1
            # The corpus of each pack, and its first row.
            firsts = batch["rows"][batch["packs"][:-1]].tolist()
            packs: list[Any] = [None] * world
            dist.all_gather_object(packs, list(zip(batch["source"].tolist(), firsts, strict=True)))
            if rank == 0:
                note = [sorted(pack for each in packs for pack in each), int(found[1]), found[0].item()]
                with (folder / f"{name}.jsonl").open("a") as file:
                    print(json.dumps(note), file=file)
                torch.save(
                    {"model": model.state_dict(), "data": loader.state_dict(), "step": step}, checkpoint
                )
            if step == until:
                dist.barrier()
                os._exit(0)  # as if it was killed


def run(folder: Path, name: str, ranks: int, until: int, workers: int = 0) -> list[Any]:
    """Trains on so many ranks, as torchrun would start them; the notes of all steps so far."""
    start_processes(train, (ranks, folder, name, until, workers), ranks, start_method="fork")
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def main() -> None:
    """The same training on two ranks; killed and continued on three; and with worker processes."""
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
