"""Rows written into one array: all rows of a batch are the last one.

says: shared-buffer wrong
"""

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Buffered(Dataset):
    def __init__(self):
        self.buffer = np.zeros(64, np.float32)

    def __len__(self):
        return 200

    def __getitem__(self, row):
        self.buffer[:] = np.arange(64) + row
        return self.buffer


loader = DataLoader(Buffered(), batch_size=16, shuffle=True)
