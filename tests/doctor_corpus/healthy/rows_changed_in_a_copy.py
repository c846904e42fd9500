"""Rows that are changed in place, in copies, and counted as they are made.

not: changed-in-place
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.images = 255 * torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        self.seen = np.zeros(64, np.int64)

    def __len__(self):
        return 64

    def __getitem__(self, row):
        self.seen[row] += 1
        image = self.images[row].clone()
        image += torch.rand(3, 8, 8)
        return image


loader = DataLoader(Noisy(), batch_size=8, shuffle=True)
