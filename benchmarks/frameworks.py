"""tf.data and Keras: torchyoga's data beside their own. One process for each backend of Keras.

    python benchmarks/frameworks.py --repetitions 3 --write

`make bench` runs it, and results.md has its table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import BATCH, interleaved, ratio, verdict

import torchyoga as yoga

BACKENDS = ["tensorflow", "torch", "jax"]
NUM_ROWS, FEW_ROWS = 100_000, 10_000  # the second for what goes row by row
EXPORT_GOAL, FIT_GOAL = 30.0, 0.83  # a fit may take a fifth longer


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (NUM_ROWS, 784), np.uint8), rng.integers(0, 10, NUM_ROWS)


def export(folder: Path, repetitions: int) -> list[list[str]]:
    """tf.data: a generator of rows, and streams that cross in blocks."""
    import tensorflow as tf

    from torchyoga.adapters.tensorflow import make_tf_dataset

    images, labels = data()
    ref = yoga.Storage(folder).submit({"image": images, "label": labels}, "export", "1", progress=False)
    signature = {"image": tf.TensorSpec([784], tf.uint8), "label": tf.TensorSpec([], tf.int64)}

    def rows() -> Any:
        for i in np.random.default_rng(0).permutation(NUM_ROWS)[:FEW_ROWS]:
            yield {"image": images[i], "label": labels[i]}

    def counted(dataset: Any) -> Callable[[], int]:
        return lambda: sum(len(batch["label"]) for batch in dataset)

    stream = ref.stream(shuffle=True)
    ways = {
        "from_generator, row by row": counted(
            tf.data.Dataset.from_generator(rows, output_signature=signature).batch(BATCH)
        ),
        "make_tf_dataset(stream, 256)": counted(make_tf_dataset(stream, BATCH)),
        "make_tf_dataset(stream).batch(256)": counted(make_tf_dataset(stream).batch(BATCH)),
    }
    rates = interleaved(ways, repetitions)
    naive = rates["from_generator, row by row"]
    table = []
    for name, rate in rates.items():
        times = ratio(rate, naive)
        goal = verdict(times, EXPORT_GOAL) if name != "from_generator, row by row" else ""
        table.append(
            ["tf.data, 784 B", name, f"{np.median(rate):,.0f} rows/s", f"{times:.0f} x row by row", goal]
        )
    return table


def fit(folder: Path, repetitions: int) -> list[list[str]]:
    """A small dense model, over arrays in memory and over what make_keras_dataset gives."""
    import keras

    from torchyoga.adapters.keras import make_keras_dataset

    images, labels = data()
    images = images[:40_000].astype(np.float32) / 255
    labels = labels[:40_000]
    ref = yoga.Storage(folder).submit({"image": images, "label": labels}, "fit", "1", progress=False)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dataset = make_keras_dataset(ref, BATCH, shuffle=True, fields=("image", "label"))

    def over_arrays() -> int:
        model.fit(images, labels, batch_size=BATCH, verbose=0)
        return len(labels)

    def over_dataset() -> int:
        model.fit(dataset, shuffle=False, verbose=0)
        return len(labels)

    rates = interleaved({"arrays in memory": over_arrays, "make_keras_dataset": over_dataset}, repetitions)
    arrays, ours = rates.values()
    what, share = f"model.fit on {keras.backend.backend()}", ratio(ours, arrays)
    return [
        [what, "arrays in memory", f"{np.median(arrays):,.0f} rows/s", "", ""],
        [
            what,
            "make_keras_dataset",
            f"{np.median(ours):,.0f} rows/s",
            f"{share:.2f} of arrays",
            verdict(share, FIT_GOAL),
        ],
    ]


def in_processes(repetitions: int) -> list[list[str]]:
    """The table; each backend is measured by a process of its own."""
    table: list[list[str]] = []
    for backend in BACKENDS:
        environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        options = ["--backend", backend, "--repetitions", str(repetitions)]
        command = [sys.executable, "-W", "ignore", __file__, *options]
        output = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=1200
        )
        table += json.loads(output.stdout.splitlines()[-1])
    return table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--write", action="store_true", help="put the table into results.md")
    arguments = parser.parse_args()
    if arguments.backend is None:
        table = in_processes(arguments.repetitions)
        for row in table:
            print("  ".join(row))
        if arguments.write:
            import performance

            performance.put_tables({"frameworks": performance.as_table([performance.HEADING, *table])})
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = export(folder, arguments.repetitions) if arguments.backend == "tensorflow" else []
        print(json.dumps(table + fit(folder, arguments.repetitions)))


if __name__ == "__main__":
    main()
