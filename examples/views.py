"""From a cached dataset to what is trained on: a part, split, augmented, cross-validated; nothing is copied.

    python examples/views.py

The data are the real digits of scikit-learn. They are cached once; each experiment is a view.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import torchyoga as yoga


def noisy(columns: dict[str, np.ndarray], draw: Any) -> dict[str, np.ndarray]:
    """Adds noise: other noise in each epoch, and the same whenever an epoch is continued."""
    noise = draw.normal(scale=0.4, size=columns["image"].shape)
    return {**columns, "image": columns["image"] + noise.astype(np.float32)}


def trained(train: yoga.DataRef, epochs: int) -> torch.nn.Module:
    """A small network, trained on a view."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    loader = yoga.DataLoader(train, batch_size=64, shuffle=True, seed=7)
    for _ in range(epochs):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def accuracy(model: torch.nn.Module, test: yoga.DataRef) -> float:
    """The share of the rows of a view that a model gets right."""
    right = 0
    with torch.inference_mode():
        for batch in yoga.DataLoader(test, batch_size=256, remainder="keep"):
            right += int((model(batch["image"]).argmax(1) == batch["label"]).sum())
    return right / len(test)


def main() -> None:
    """One part held out, the rest cross-validated; then trained with and without augmentation."""
    digits = load_digits()
    with tempfile.TemporaryDirectory() as folder:
        ref = yoga.Storage(folder).submit(
            {"image": (digits.images / 16).astype(np.float32), "label": digits.target}, "digits", "1"
        )
        started = time.perf_counter()
        rest, test = ref.split([0.8, 0.2], seed=1, stratify="label")
        low = rest.where("label", lambda label: label < 5)
        print(
            f"{len(ref)} digits: {len(rest)} to learn from, {len(low)} of them below 5, {len(test)} held out"
        )
        assert set(low["label"]) == set(range(5))

        folds = rest.split([0.25] * 4, seed=2, stratify="label")
        found = []
        for held_out in folds:
            others = yoga.concat([fold for fold in folds if fold is not held_out])
            found.append(accuracy(trained(others, epochs=4), held_out))
        print("accuracy of four folds:", ", ".join(f"{each:.3f}" for each in found))

        plain, robust = trained(rest, epochs=8), trained(rest.map_batches(noisy), epochs=8)
        hard = test.map_batches(noisy)
        for name, model in (("plain", plain), ("trained with noise", robust)):
            shares = [accuracy(model, part) for part in (test, hard)]
            print(f"{name}: {shares[0]:.3f} of what was held out is right, {shares[1]:.3f} of it with noise")
        print(f"{time.perf_counter() - started:.1f} seconds, views and training")


if __name__ == "__main__":
    main()
