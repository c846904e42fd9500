"""Rows as named tuples with texts, None and nested values, and a collate_fn that keeps them."""

from collections import namedtuple

import numpy as np
from torch.utils.data import DataLoader, Dataset

Row = namedtuple("Row", ["image", "caption", "boxes", "about"])


class Captions(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, row):
        image = np.random.default_rng(row).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        boxes = [[row, row + 1.0]] * (row % 3)
        return Row(image, f"caption {row}", boxes, {"source": None, "id": row})


loader = DataLoader(Captions(), batch_size=16, shuffle=True, collate_fn=list)
