"""An open HDF5 file, and workers that are spawned.

says: broken-rows wrong
names: pickle
thread: pavelsuma/ames#9
"""

import h5py
import numpy as np
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, path):
        self.file = h5py.File(path, "r")

    def __len__(self):
        return len(self.file["x"])

    def __getitem__(self, row):
        return self.file["x"][row]


with h5py.File("rows.h5", "w") as file:
    file["x"] = np.arange(800.0).reshape(200, 4)
loader = DataLoader(
    Rows("rows.h5"), batch_size=8, shuffle=True, num_workers=1, multiprocessing_context="spawn"
)
