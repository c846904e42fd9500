"""Other libraries' datasets in place, beside their own readers: rows a second, shuffled, warm, in turns.

python benchmarks/foreign.py  # of mosaicml-streaming, litdata, megatron-core, TensorFlow
"""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchyoga as yoga

ROWS, SINGLE, TURNS = 50_000, 5_000, 7
RNG = np.random.default_rng(0)


def rows() -> Iterable[dict[str, Any]]:
    """Images of 784 bytes, with a label and a text."""
    for number in range(ROWS):
        yield {
            "image": RNG.integers(0, 256, 784, np.uint8),
            "label": number % 10,
            "text": "text " * (number % 5),
        }


def mds(folder: Path) -> tuple[Any, yoga.DataRef]:
    """A dataset of MosaicML Streaming, by its reader and in place."""
    from streaming import MDSWriter, StreamingDataset

    columns = {"image": "ndarray:uint8:784", "label": "int", "text": "str"}
    with MDSWriter(columns=columns, out=str(folder), size_limit=2**24) as out:
        for row in rows():
            out.write(row)
    theirs = StreamingDataset(local=str(folder), shuffle=True, batch_size=256)
    return theirs, yoga.from_mds(folder)


def litdata(folder: Path) -> tuple[Any, yoga.DataRef]:
    """A dataset of LitData, by its reader and in place."""
    from litdata import StreamingDataset
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir()
    writer = BinaryWriter(str(folder), chunk_bytes=2**24)
    for number, row in enumerate(rows()):
        writer[number] = row
    writer.done()
    writer.merge()
    return StreamingDataset(str(folder), shuffle=True), yoga.from_litdata(folder)


def megatron(folder: Path) -> tuple[Any, yoga.DataRef]:
    """A dataset of Megatron, by its reader and in place."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{folder}.bin", dtype=np.uint16)
    for _ in range(ROWS):
        tokens = torch.from_numpy(RNG.integers(0, 60_000, RNG.integers(1, 1000)))
        builder.add_document(tokens, [len(tokens)])
    builder.finalize(f"{folder}.idx")
    return IndexedDataset(str(folder)), yoga.from_megatron(folder)


def tfrecord(folder: Path) -> None:
    """Prints rates of tf.data behind its usual shuffle, one by one and by batches, and in place."""
    import tensorflow as tf

    kinds = {"image": tf.string, "label": tf.int64, "text": tf.string}
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "x.tfrecord")) as out:
        for row in rows():
            texts = {name: tf.train.BytesList(value=[bytes(row[name])]) for name in ("image",)}
            texts["text"] = tf.train.BytesList(value=[row["text"].encode()])
            features = {name: tf.train.Feature(bytes_list=text) for name, text in texts.items()}
            features["label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[row["label"]]))
            out.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    about = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
    shuffled = tf.data.TFRecordDataset(str(folder / "x.tfrecord")).shuffle(10_000)
    auto = tf.data.AUTOTUNE
    theirs = {
        "tf.data, one by one": shuffled.map(lambda text: tf.io.parse_single_example(text, about), auto).batch(
            256
        ),
        "tf.data, by batches": shuffled.batch(256).map(lambda texts: tf.io.parse_example(texts, about), auto),
    }
    loader = yoga.DataLoader(yoga.from_tfrecord(folder, cache_dir=folder / "cache"), 256, shuffle=True)
    for _ in range(TURNS):
        for name, dataset in theirs.items():
            costs = []
            for batches in (dataset.prefetch(auto), loader):
                began = time.process_time()
                speed = rate(ROWS, lambda batches=batches: sum(1 for _ in batches))  # type: ignore[misc]
                costs += [speed, (time.process_time() - began) / ROWS * 1e6]
            one, cost, other, own = costs
            print(
                f"{name}: {one:,.0f} and {other:,.0f} rows/s, {other / one:.1f} times; "
                f"{cost:.2f} and {own:.2f} us of the processor's time a row, {cost / own:.1f} times"
            )


def rate(count: int, act: Callable[[], object]) -> float:
    """Rows a second."""
    began = time.perf_counter()
    act()
    return count / (time.perf_counter() - began)


def compare(name: str, theirs: Any, ours: yoga.DataRef) -> None:
    """Prints rows a second of both, and how many times as fast the second is."""
    are_tokens = name == "megatron"
    options: dict[str, Any] = {"shuffle": True, "collate_fn": np.concatenate} if are_tokens else {}
    ragged = {"collate_fn": yoga.jagged} if are_tokens else {}
    loader = torch.utils.data.DataLoader(theirs, 256, **options)
    rows = ours["tokens"] if are_tokens else ours
    single = range(min(SINGLE, ROWS))
    pairs: dict[str, tuple[int, Callable[[], object], Callable[[], object]]] = {
        "batches": (
            ROWS,
            lambda: list(loader),
            lambda: list(yoga.DataLoader(rows, 256, shuffle=True, **ragged)),
        ),
        "single rows in order": (
            SINGLE,
            lambda: used(theirs[number] for number in single),
            lambda: used(ours[number] for number in single),
        ),
    }
    for size in (None, 1):  # by torch's loader
        pairs[f"single rows of torch's loader, batch_size={size}"] = (
            SINGLE,
            partial(first, torch.utils.data.DataLoader(theirs, size, shuffle=are_tokens)),
            partial(first, torch.utils.data.DataLoader(ours, size, shuffle=True)),
        )
    for what, (count, act_theirs, act_ours) in pairs.items():
        turns = [(rate(count, act_theirs), rate(count, act_ours)) for _ in range(TURNS)]
        one, other = sorted(turns, key=lambda pair: pair[1] / pair[0])[TURNS // 2]
        print(f"{name}, {what}: {one:,.0f} and {other:,.0f} rows/s, {other / one:.2f} times")


def used(rows: Iterable[object]) -> None:
    """Takes rows and drops them, as training does."""
    deque(rows, maxlen=0)


def first(loader: Iterable[object]) -> None:
    """The first rows of an epoch, one by one."""
    used(itertools.islice(loader, SINGLE))


def main() -> None:
    """Compares with those that are installed."""
    for module, make in {"streaming": mds, "litdata": litdata, "megatron": megatron}.items():
        if importlib.util.find_spec(module) is None:
            print(f"{module} is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            compare(module, *make(Path(folder, module)))
    if importlib.util.find_spec("tensorflow") is not None:
        with tempfile.TemporaryDirectory() as folder:
            tfrecord(Path(folder, "tfrecord"))


if __name__ == "__main__":
    main()
