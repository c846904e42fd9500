"""Workers that seek and read in one open file, whose offset they share.

says: fork-unsafe
names: dataset.file
"""

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, path):
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115

    def __len__(self):
        return 200

    def __getitem__(self, row):
        self.file.seek(row * 16)
        return np.frombuffer(self.file.read(16), np.int64).copy()


np.arange(400, dtype=np.int64).tofile("records.bin")
loader = DataLoader(Records("records.bin"), batch_size=8, shuffle=True, num_workers=2)
