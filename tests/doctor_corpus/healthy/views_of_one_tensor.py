"""Rows that are parts of one large tensor, and share its memory.

not: shared-buffer
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self):
        self.data = torch.rand(1000, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 900

    def __getitem__(self, row):
        return self.data[row : row + 100]


loader = DataLoader(Windows(), batch_size=16, shuffle=True)
