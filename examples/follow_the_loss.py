"""A mixture whose weights follow the loss; stopped, and continued with the weights that it had.

    python examples/follow_the_loss.py

Three corpora of bytes are learned by a small model. Every twenty steps the weight of each corpus grows with
how far its loss is above what the corpus can reach, as in DoReMi. The state of the loader tells the weights,
so a loader that is made anew goes on with them.

It is stopped at a step whose change is still to come. A run asks for the weights of the step at which it
begins, so it does not matter whether they were told before the state was saved.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import torchyoga as yoga

LENGTH, BATCH, STEPS, EVERY, STOPPED_AT = 16, 32, 120, 20, 80
NOISE = {"plain": 0.0, "mixed": 0.1, "noisy": 0.5}  # the share of bytes that nothing foresees


def corpus(noise: float, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Texts in which each byte follows from the one before it, but for the noise."""
    rng = np.random.default_rng(seed)
    follower, texts = rng.permutation(64), np.empty((500, LENGTH + 1), np.int64)
    texts[:, 0] = rng.integers(0, 64, 500)
    for place in range(LENGTH):
        drawn = rng.random(500) < noise
        texts[:, place + 1] = np.where(drawn, rng.integers(0, 64, 500), follower[texts[:, place]])
    return {"ids": texts}


class Run:
    """A model, and the weights of its corpora."""

    def __init__(self, mix: yoga.DataRef, names: list[str]) -> None:
        torch.set_num_threads(1)  # the last bits of sums depend on how many threads share the work
        torch.manual_seed(0)
        self.loader = yoga.DataLoader(mix, BATCH, shuffle=True, seed=7)
        self.model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.02)
        self.names, self.step, self.losses = names, 0, list[float]()
        self.excess = torch.zeros(len(names))
        # What each corpus can reach, about the entropy of its noise; real runs ask a small model.
        self.target = torch.tensor([noise * float(np.log(64)) for noise in NOISE.values()])

    def train(self, until: int) -> None:
        """Goes on until a step."""
        self._reweight()
        for batch in self.loader:
            self._learn(batch)
            if self.step == until:
                break
            self._reweight()

    def _learn(self, batch: dict[str, torch.Tensor]) -> None:
        scores = self.model(batch["ids"][:, :-1]).transpose(1, 2)
        loss = functional.cross_entropy(scores, batch["ids"][:, 1:], reduction="none").mean(1)
        loss.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(round(loss.mean().item(), 6))
        self.step += 1
        for number in range(len(self.names)):  # on several ranks: sums over all, so that all tell the same
            own = loss.detach()[batch["source"] == number]
            if len(own):
                self.excess[number] = (own.mean() - self.target[number]).clamp(min=0.0)

    def _reweight(self) -> None:
        """Tells the weights of the step, if there are any; where the loader has them, nothing changes."""
        if self.step and self.step % EVERY == 0:
            shares = 0.05 + torch.softmax(self.excess, 0)
            weights = {name: round(float(share), 3) for name, share in zip(self.names, shares, strict=True)}
            self.loader.reweight(weights)
            print(f"step {self.step}: {weights}")

    def state_dict(self) -> dict[str, Any]:
        """All that a run goes on from."""
        return {
            "loader": self.loader.state_dict(),
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "excess": self.excess.clone(),
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""
        self.loader.load_state_dict(state["loader"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.excess, self.step = state["excess"].clone(), state["step"]


def main() -> None:
    """Compares a run that is stopped and continued with one that is not."""
    with tempfile.TemporaryDirectory() as folder:
        storage = yoga.Storage(folder)
        corpora = {
            name: storage.submit(corpus(noise, seed), name, "1")
            for seed, (name, noise) in enumerate(NOISE.items())
        }
        mix = yoga.mix(corpora, dict.fromkeys(NOISE, 1), rows=STEPS * BATCH, source_column="source")
        whole = Run(mix, mix.names)
        whole.train(STEPS)

        first = Run(mix, mix.names)
        first.train(STOPPED_AT)
        state = first.state_dict()
        second = Run(mix, mix.names)  # in another process, of the same lines
        second.load_state_dict(state)
        second.train(STEPS)

        print(mix.account(at=second.loader.state_dict()))
        assert first.losses + second.losses == whole.losses
        print(f"all {STEPS} losses are equal")


if __name__ == "__main__":
    main()
