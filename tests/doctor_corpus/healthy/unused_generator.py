"""A generator that was used to split the rows, and by no row.

not: same-random-numbers
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Split(Dataset):
    def __init__(self, data):
        self.data = data
        self.rng = np.random.default_rng(0)
        self.rows = self.rng.permutation(len(data))[:200]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        return self.data[self.rows[row]]


data = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
loader = DataLoader(Split(data), batch_size=8, shuffle=True, num_workers=2)
