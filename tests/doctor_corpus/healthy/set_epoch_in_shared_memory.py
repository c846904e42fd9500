"""Rows that depend on the epoch, which lies in memory that all workers share.

not: stale-epoch
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch):
        self.epoch.fill_(epoch)

    def __len__(self):
        return 64

    def __getitem__(self, row):
        return torch.rand(3, generator=torch.Generator().manual_seed(1000 * int(self.epoch) + row))


loader = DataLoader(Augmented(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
