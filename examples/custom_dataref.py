"""A DataRef of your own: rows that a function makes, with everything that cached datasets can do.

    python examples/custom_dataref.py

Two methods are enough. Here a row is one of the real digits of scikit-learn, shifted and made noisy in a way
that depends on its number, so that there are a million of them and none is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.datasets import load_digits

import torchyoga as yoga


class NoisyDigits(yoga.DataRef):
    """A million noisy digits: row n is always the same one."""

    def __init__(self) -> None:
        digits = load_digits()
        self.images, self.labels = (digits.images / 16).astype(np.float32), digits.target

    def __len__(self) -> int:
        return 1_000_000

    def take(self, rows: np.ndarray) -> Sequence[tuple[np.ndarray, int]]:
        """The rows of these numbers."""
        found = []
        for row in rows.tolist():
            random = np.random.default_rng(row)
            which = row % len(self.labels)
            image = np.roll(self.images[which], random.integers(-1, 2, 2), (0, 1))
            found.append(
                (image + random.normal(0, 0.1, image.shape).astype(np.float32), int(self.labels[which]))
            )
        return found


def main() -> None:
    """It streams, shards, shuffles, resumes, and goes into torch's loader with worker processes."""
    ref = NoisyDigits()
    print(f"{len(ref):,} rows; row 123,456 is a {ref[123_456][1]}")

    stream = ref.stream(start_offset=999_990, shuffle=True, shuffle_seed=7, shard_rank=1, num_shards=2)
    print("the last of shard 1 in epoch 0:", [label for _, label in stream])

    loader = yoga.DataLoader(ref, batch_size=256, shuffle=True, seed=7, num_workers=2)
    batches = iter(loader)
    for _ in range(10):
        next(batches)
    state = loader.state_dict()
    images, labels = next(batches)

    again = yoga.DataLoader(ref, batch_size=256, shuffle=True, seed=7)
    again.load_state_dict(state)
    same_images, same_labels = next(iter(again))
    assert torch.equal(images, same_images)
    assert torch.equal(labels, same_labels)
    print(f"batch 10 is the same after a resume without workers: {tuple(images.shape)}")


if __name__ == "__main__":
    main()
