"""A Keras model, trained from a cached tf.data pipeline that starts in the middle of an epoch.

    python examples/keras_from_tfdata.py

The pipeline decodes the 1,797 real digits of scikit-learn once. Training then begins halfway through a
shuffled epoch, is stopped after a few steps of the next one, and goes on from there in a new stream. tf.data
cannot do that for generators.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import torchyoga as yoga
from torchyoga.adapters.tensorflow import make_tf_dataset

BATCH_SIZE = 32


def main(folder: Path) -> None:
    """Cache, train from the middle, save, resume."""
    digits = load_digits()
    storage = yoga.Storage(folder / "storage")

    @storage.cacheable("digits", "1.0", progress=False)
    def pipeline() -> Any:
        print("decoding, this once")
        images = tf.data.Dataset.from_tensor_slices((digits.images, digits.target))
        return images.map(lambda image, label: (tf.cast(image, tf.float32) / 16, label))

    pipeline()
    ref = pipeline()
    print(ref)

    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

    half = len(ref) // 2 // BATCH_SIZE * BATCH_SIZE
    stream = ref.stream(start_offset=half, shuffle=True, shuffle_seed=777)
    dataset = make_tf_dataset(stream, batch_size=BATCH_SIZE).prefetch(2)
    rest = -(-(len(ref) - half) // BATCH_SIZE)
    model.fit(dataset, steps_per_epoch=rest, shuffle=False, verbose=2)  # the second half of epoch 0

    steps = 20
    for images, labels in dataset.take(steps):  # some of epoch 1, in a loop of your own
        model.train_on_batch(images, labels)
    trained = rest + steps
    state = stream.state_after(trained, BATCH_SIZE)
    (folder / "data.json").write_text(json.dumps(state))
    print(f"saved after {trained} steps: epoch {state['epoch']}, position {state['position']}")

    stream = ref.stream(shuffle=True, shuffle_seed=777)
    stream.load_state_dict(json.loads((folder / "data.json").read_text()))
    dataset = make_tf_dataset(stream, batch_size=BATCH_SIZE)
    rest = -(-(len(ref) - state["position"]) // BATCH_SIZE)
    model.fit(dataset, steps_per_epoch=rest, shuffle=False, verbose=2)  # the rest of epoch 1
    dataset = make_tf_dataset(stream, batch_size=BATCH_SIZE)
    history = model.fit(dataset, epochs=3, shuffle=False, verbose=2)
    accuracy = history.history["accuracy"][-1]
    print(f"epoch {stream.epoch - 1} done, accuracy {accuracy:.2f}")
    assert accuracy > 0.9


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
