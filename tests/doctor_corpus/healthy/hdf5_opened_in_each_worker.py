"""An HDF5 file that each process opens on first use.

not: fork-unsafe
"""

import h5py
import numpy as np
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, path):
        self.path, self.file = path, None

    def __len__(self):
        return 200

    def __getitem__(self, row):
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return self.file["x"][row]


with h5py.File("rows.h5", "w") as file:
    file["x"] = np.arange(800.0).reshape(200, 4)
loader = DataLoader(Rows("rows.h5"), batch_size=8, shuffle=True, num_workers=2)
