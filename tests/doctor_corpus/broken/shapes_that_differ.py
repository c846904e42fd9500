"""Rows of different lengths, and no collate_fn for them.

says: broken-rows wrong
thread: pytorch/pytorch#1512
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Ragged(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        return torch.arange(row % 5 + 1)


loader = DataLoader(Ragged(), batch_size=8, shuffle=True)
