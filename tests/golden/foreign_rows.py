"""The rows of the golden files of other libraries, and the program that wrote them with these libraries.

python tests/golden/foreign_rows.py megatron  # each once, where the library is installed
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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


WRITERS: dict[str, Callable[[Path], Any]] = {"megatron": _write_megatron}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        (FOREIGN / name).mkdir(parents=True)
        WRITERS[name](FOREIGN / name)
