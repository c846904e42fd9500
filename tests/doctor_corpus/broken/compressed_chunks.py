"""A compressed chunk of 500 rows, decoded for each row of a shuffled order.

says: compressed-chunks
names: /x of rows.h5
"""

import h5py
import numpy as np
from torch.utils.data import DataLoader, Dataset


class Chunked(Dataset):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 1000

    def __getitem__(self, row):
        with h5py.File(self.path, "r") as file:
            return file["x"][row]


with h5py.File("rows.h5", "w") as file:
    data = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000)
    file.create_dataset("x", data=data, chunks=(500, 1000), compression="gzip")
loader = DataLoader(Chunked("rows.h5"), batch_size=8, shuffle=True)
