"""A PyTorch model, trained from a Keras sequence: cached, shuffled over the whole dataset, resumable.

    python examples/torch_from_keras_sequence.py

The sequence gives batches of 50 real digits, slowly. `submit` reads it once and keeps its rows; the loader
then makes batches of another size, of rows from everywhere.
"""

from __future__ import annotations

import os
import tempfile
import time

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import torchyoga as yoga


class Digits(keras.utils.PyDataset):
    """Batches of (image, label)."""

    def __init__(self) -> None:
        super().__init__()
        self.digits = load_digits()

    def __len__(self) -> int:
        return -(-len(self.digits.target) // 50)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.02)  # imagine decoding here
        some = slice(50 * index, 50 * index + 50)
        return (self.digits.images[some] / 16).astype(np.float32), self.digits.target[some]


def main(folder: str) -> None:
    """Cache, train, resume."""
    ref = yoga.Storage(folder).submit(Digits(), "digits", "1.0", progress=False)
    print(ref)
    torch.manual_seed(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    loader = yoga.DataLoader(ref[:1500], batch_size=32, shuffle=True, seed=7)
    for epoch in range(5):
        for step, (images, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (epoch, step) == (1, 20):  # as if the process had died here
                state = loader.state_dict()
                break
        if epoch == 1:
            loader = yoga.DataLoader(ref[:1500], batch_size=32, shuffle=True, seed=7)
            loader.load_state_dict(state)
            print(f"resumed in epoch {state['epoch']} at row {state['position']}")
    images, labels = next(iter(yoga.DataLoader(ref[1500:], batch_size=297)))
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    print(f"accuracy on 297 other digits: {accuracy:.2f}")
    assert accuracy > 0.8


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
