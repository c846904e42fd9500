"""A fit by Keras that may be killed, for processes that have imported no more than it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
from becoming import leave

import torchyoga as yoga
from torchyoga.adapters.keras import Checkpoint, make_keras_dataset

BATCH = 4
# For a process of its own.
TRAIN = """
import sys
from pathlib import Path
from keras_fits import train
train(Path(sys.argv[1]), int(sys.argv[2]))
"""


def network(dropout: float = 0.3) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(8), keras.layers.Dropout(dropout), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


class _Losses(keras.callbacks.Callback):
    """Writes the loss of each batch, and dies where it is told to."""

    def __init__(self, path: Path, die_after: int = -1) -> None:
        super().__init__()
        self.path, self.left = path, die_after

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        with self.path.open("a") as file:
            file.write(f"{int(self.model.optimizer.iterations)}:{float(logs['loss']).hex()}\n")
        self.left -= 1
        if self.left == 0:
            leave(9)


def train(folder: Path, die_after: int = -1) -> None:
    ref = yoga.Storage(folder.parent / "storage").fetch("points", "1")
    dataset = make_keras_dataset(ref, BATCH, shuffle=True, seed=3, fields=("x", "y"))
    checkpoint = Checkpoint(folder / "run", dataset, every=1)
    checkpoint.fit(network(), epochs=3, verbose=0, callbacks=[_Losses(folder / "losses", die_after)])
