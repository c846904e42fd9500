"""The rows of the golden files of other libraries, and the program that wrote them with these libraries.

python tests/golden/foreign_rows.py megatron  # each once, where the library is installed
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

FOREIGN = Path(__file__).parent / "foreign"
# The sequences of each document: of Megatron's.
DOCUMENTS = [[[1, 2, 3], [4]], [[5, 6, 7, 8, 9]], [[60_000], [], [10, 11]], [[12] * 40]]


def _write_megatron(folder: Path) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    for dtype in (np.uint16, np.int32):
        name = folder / np.dtype(dtype).name
        builder = IndexedDatasetBuilder(f"{name}.bin", dtype=dtype)
        for sequences in DOCUMENTS:
            tokens = torch.tensor([token for sequence in sequences for token in sequence])
            builder.add_document(tokens, list(map(len, sequences)))
        builder.finalize(f"{name}.idx")
    builder = IndexedDatasetBuilder(f"{folder}/modes.bin", dtype=np.uint16, multimodal=True)
    builder.add_document(torch.tensor([1, 2, 3]), [2, 1], [0, 1])
    builder.finalize(f"{folder}/modes.idx")


# The columns of MDS by their encodings, but for images, whose bytes a library makes.
ENCODINGS = {
    "bytes": "bytes",
    "text": "str",
    "number": "int",
    **{
        f"a_{name}": name
        for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
    },
    **{f"a_{name}": name for name in ("float16", "float32", "float64")},
    "big": "str_int",
    "exact": "str_float",
    "price": "str_decimal",
    "meta": "json",
    "fixed": "ndarray:int16:2,3",
    "tokens": "ndarray:int32",
    "grid": "ndarray:float32",
    "any": "ndarray",
    "photo": "jpeg",
    "mask": "png",
    "raw": "pil",
    "photos": "list[jpeg]",
    "masks": "list[png]",
    "files": "jpeg_array",
}


def samples() -> list[dict[str, Any]]:
    """Rows of all these columns, without the images."""
    rows = []
    for i in range(12):
        row: dict[str, Any] = {
            "bytes": b"\x00\xff" * i,
            "text": "né" * (i % 4),
            "number": i - 5 if i else -(2**63),
            "big": 10 ** (i + 1),
            "exact": i / 3,
            "price": Decimal(f"{i}.{i:03}"),
            "meta": {"i": i, "list": [i] * (i % 3), "none": None},
            "fixed": np.arange(6, dtype=np.int16).reshape(2, 3) * i,
            "tokens": np.arange(1 + 40 * i, dtype=np.int32),
            "grid": np.full((1 + i % 3, 2) if i % 2 else (300,), i / 2, np.float32),
            "any": np.arange(1 + i, dtype=(np.uint8, np.int16, np.uint16, np.float32)[i % 4]),
        }
        for name in [name for name in ENCODINGS if name.startswith("a_")]:
            row[name] = np.dtype(name[2:]).type(i)
        rows.append(row)
    return rows


def pixels(number: int, mode: str = "RGB") -> Any:
    """The pixels of an image."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (4 + number, 5, 3) if mode == "RGB" else (4, 5 + number), np.uint8)


def _write_mds(folder: Path) -> None:
    import io

    from PIL import Image
    from streaming import MDSWriter

    rows = samples()
    for i, row in enumerate(rows):
        image = Image.fromarray(pixels(i))
        file = io.BytesIO()
        image.save(file, "JPEG")
        row |= {"photo": image, "mask": Image.fromarray(pixels(i, "L"))}
        row["raw"] = image if i % 2 else Image.fromarray(pixels(i, "L"))
        row |= {
            "photos": [image] * (i % 3),
            "masks": [image] * (i % 2),
            "files": [file.getvalue()] * (1 + i % 2),
        }
    small = {name: ENCODINGS[name] for name in ("text", "number", "tokens")}
    for name, columns, options in [
        ("all", ENCODINGS, {"hashes": ["sha1", "xxh64"]}),
        *[
            (zipped, small, {"compression": zipped, "hashes": ["sha1"]})
            for zipped in ("zstd:7", "br", "snappy")
        ],
        *[(zipped, small, {"compression": zipped}) for zipped in ("gz", "bz2:9")],
        ("pkl", {"number": "int", "thing": "pkl"}, {}),
    ]:
        size = {"size_limit": 9000, **options}
        with MDSWriter(columns=columns, out=str(folder / name.partition(":")[0]), **size) as out:
            for row in rows:
                out.write({"thing": {1}, **row} if name == "pkl" else row)


def items() -> list[dict[str, Any]]:
    """Rows of LitData, of all that is not an image."""
    import torch

    return [
        {
            "x": i - 3,
            "half": i / 2,
            "odd": i % 2 == 1,
            "text": "né" * i,
            "bytes": b"\x00\xff" * i,
            "t": torch.arange(i, dtype=torch.int32),
            "t2": torch.full((2, i), i / 4),
            "n": np.arange(i, dtype=np.int16),
            "n2": np.full((2, 3) if i % 2 else (2, 3, 1), i, np.float32),
            "list": [i, (2 * i, "a" * i)],
        }
        for i in range(12)
    ]


def tables() -> list[dict[str, Any]]:
    """Rows that LitData keeps as Arrow files."""
    return [{"x": i, "text": "t" * i, "list": [i] * i} for i in range(12)]


def _write_litdata(folder: Path) -> None:
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter
    from PIL import Image

    images = [{"pil": Image.fromarray(pixels(i)), "n": i} for i in range(4)]
    tokens = [torch.arange(20 + i, dtype=torch.int32) for i in range(9)]
    kinds: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "items": (items(), {}),
        "zstd": (items(), {"compression": "zstd", "compression_level": "chunk"}),
        "framed": (items(), {"compression": "zstd"}),
        "numbers": (list(range(9)), {}),
        "images": (images, {}),
        "tokens": (tokens, {"item_loader": TokensLoader()}),
        "tables": (tables(), {"chunk_size": 7}),
        "tables-zstd": (tables(), {"chunk_size": 7, "compression": "zstd"}),
        "pickles": ([{"n": i, "thing": {1}} for i in range(3)], {}),
    }
    for name, (rows, options) in kinds.items():
        size = options if "chunk_size" in options else {"chunk_bytes": 1500, **options}
        (folder / name).mkdir()
        writer = BinaryWriter(str(folder / name), **size)
        for number, row in enumerate(rows):
            writer[number] = row
        writer.done()
        writer.merge()


def features() -> list[dict[str, Any]]:
    """Rows as TFRecord has them, of all kinds of features; "steps" are those of SequenceExamples."""
    return [
        {
            "image/encoded": bytes(range(7 * i)),
            "label": i - 5 if i else -(2**63),
            "weight": np.float32(i / 3),
            "box": np.array([i, 0.5, -1], np.float32),
            "ids": np.arange(i % 5 * 40, dtype=np.int64) ** 3,
            "names": [b"n" * k for k in range(i % 4)],
            "maybe": i if i % 3 else None,
            "note": b"yes" if i % 4 else None,
            "more": np.arange(i, dtype=np.float32) if i % 5 else None,
        }
        for i in range(24)
    ]


def steps() -> list[dict[str, Any]]:
    """Rows as SequenceExamples have them."""
    return [
        {
            "id": i,
            "tokens": np.arange(i % 5, dtype=np.int64) - 1,
            "points": np.arange(2 * (1 + i % 4), dtype=np.float32).reshape(-1, 2),
            "words": [b"w" * k for k in range(i % 6)],
            "lists": [list(range(k)) for k in range(i % 4)],
            "texts": [[b"t"] * k for k in range(i % 3)],
        }
        for i in range(12)
    ]


def _write_tfrecord(folder: Path) -> None:
    import tensorflow as tf

    def feature(value: Any) -> Any:
        values = value.tolist() if isinstance(value, np.ndarray) else value
        values = values if isinstance(values, list) else [values]
        if isinstance(value, (np.ndarray, np.floating)) and value.dtype == np.float32:
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        if isinstance(value, bytes) or (isinstance(value, list) and (not value or type(value[0]) is bytes)):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def example(row: dict[str, Any]) -> bytes:
        shown = {name: feature(value) for name, value in row.items() if value is not None}
        return tf.train.Example(features=tf.train.Features(feature=shown)).SerializeToString()

    def sequence(row: dict[str, Any]) -> bytes:
        lists = {}
        for name, value in row.items():
            if name != "id":
                some = [np.array(one, np.int64) if name == "lists" else one for one in value]
                lists[name] = tf.train.FeatureList(feature=[feature(one) for one in some])
        context = tf.train.Features(feature={"id": feature(row["id"])})
        of = tf.train.FeatureLists(feature_list=lists)
        return tf.train.SequenceExample(context=context, feature_lists=of).SerializeToString()

    rows = list(map(example, features()))
    for name, kind, some in [
        ("x.tfrecord-00000-of-00002", "", rows[:10]),
        ("x.tfrecord-00001-of-00002", "", rows[10:]),
        ("zipped.tfrecord.gz", "GZIP", rows),
        ("zipped.tfrecord.zz", "ZLIB", rows),
        ("steps.tfrecord", "", list(map(sequence, steps()))),
    ]:
        with tf.io.TFRecordWriter(str(folder / name), kind) as out:
            for row in some:
                out.write(row)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "litdata": _write_litdata,
    "mds": _write_mds,
    "megatron": _write_megatron,
    "tfrecord": _write_tfrecord,
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        (FOREIGN / name).mkdir(parents=True)
        WRITERS[name](FOREIGN / name)
