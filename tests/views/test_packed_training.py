"""Training on packs of rows is training on the rows."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from own import Own
from packs import tokens_of

import torchyoga as yoga


class _Tiny(torch.nn.Module):
    """A transformer of one layer, in which a token attends to those before it in its document."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 16)
        self.positions = torch.nn.Embedding(128, 16)
        self.mix = torch.nn.Linear(16, 48)
        self.out = torch.nn.Linear(16, 256)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(positions)
        q, k, v = self.mix(x).chunk(3, -1)
        document = torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1), cu_seqlens.diff().long())
        mask = (document[:, None] == document) & torch.ones(len(ids), len(ids)).tril().bool()
        attended = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], mask[None])
        return self.out(x + attended[0])


def loss_of(model: _Tiny, batch: Any) -> torch.Tensor:
    """Summed over the tokens that have a label: each token is to foresee the next one."""
    scores = model(batch["ids"].long(), batch["position_ids"], batch["cu_seqlens"])
    return torch.nn.functional.cross_entropy(scores[:-1], batch["labels"][1:], reduction="sum")


@pytest.mark.rest
def test_training_on_packs_is_training_on_rows() -> None:
    functions = [
        inspect.getsource(function).encode()[:100]
        for _, function in inspect.getmembers(inspect, inspect.isfunction)
    ]
    rows = [{"ids": np.frombuffer(text, np.uint8)} for text in functions]
    ref = Own(rows, yoga.Schema.of(rows[0], ragged=["ids"]))
    packed, shifted = (ref.packed("ids", 256, labels=kind) for kind in ("same", "shifted"))
    assert packed.report().tokens == sum(map(len, functions))
    torch.manual_seed(0)
    models = [_Tiny().double(), _Tiny().double()]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), 1e-3) for model in models]
    loaders = [yoga.DataLoader(packs, 2, shuffle=True, seed=3) for packs in (packed, shifted)]
    for batch, moved in itertools.islice(zip(*loaders, strict=True), 6):
        losses = [loss_of(models[0], batch)]
        scores = models[0](moved["ids"].long(), moved["position_ids"], moved["cu_seqlens"])
        assert torch.equal(
            losses[0], torch.nn.functional.cross_entropy(scores[:-1], moved["labels"][:-1], reduction="sum")
        )
        alone = []
        for row in batch["rows"].tolist():
            ids = torch.from_numpy(rows[row]["ids"].copy())
            labels = torch.cat([torch.tensor([-100]), ids[1:].long()])
            ends = torch.tensor([0, len(ids)], dtype=torch.int32)
            one = {"ids": ids, "labels": labels, "position_ids": torch.arange(len(ids)), "cu_seqlens": ends}
            alone.append(loss_of(models[1], one))
        losses.append(torch.stack(alone).sum())
        assert abs(losses[0].item() - losses[1].item()) < 1e-9 * losses[1].item()
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9)


def test_rows_of_no_tokens_have_no_labels() -> None:
    """They are in packs if their cost says so."""
    ref = tokens_of([2, 0, 1, 2, 0])
    options: dict[str, Any] = {"cost": lambda c: c["ids"].lengths * 0 + 1, "along": ["ids"]}
    for seed in range(5):
        same, shifted = (
            ref.packed({"rows": 5}, labels=kind, seed=seed, **options)[0] for kind in ("same", "shifted")
        )
        assert sorted(same["lengths"].tolist()) == [0, 0, 1, 2, 2]
        own = [ref[row]["ids"].tolist() for row in same["rows"].tolist()]
        assert same["labels"].tolist() == [label for ids in own for label in [-100, *ids[1:]][: len(ids)]]
        assert shifted["labels"].tolist() == [label for ids in own for label in [*ids[1:], -100][: len(ids)]]
