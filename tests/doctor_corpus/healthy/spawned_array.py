"""An array of 1.3 MB, and workers that are spawned.

not: broken-rows
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.data = np.random.default_rng(0).random((2000, 80))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, row):
        return torch.from_numpy(self.data[row])


loader = DataLoader(
    Rows(),
    batch_size=8,
    shuffle=True,
    num_workers=1,
    multiprocessing_context="spawn",
    persistent_workers=True,
)
