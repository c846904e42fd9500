"""A handle that __getstate__ leaves out.

not: broken-rows; fork-unsafe
"""

import os

import h5py
import numpy as np
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, path):
        self.path, self.file = path, h5py.File(path, "r")

    def __getstate__(self):
        return {"path": self.path, "file": None}

    def __len__(self):
        return 200

    def __getitem__(self, row):
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return self.file["x"][row]


if not os.path.exists("rows.h5"):  # workers import this file, too
    with h5py.File("rows.h5", "w") as file:
        file["x"] = np.arange(800.0).reshape(200, 4)
loader = DataLoader(
    Rows("rows.h5"),
    batch_size=8,
    shuffle=True,
    num_workers=1,
    multiprocessing_context="spawn",
    persistent_workers=True,
)
