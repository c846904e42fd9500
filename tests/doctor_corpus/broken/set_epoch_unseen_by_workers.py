"""Rows that depend on the dataset's epoch, with workers that live on and keep their copy of it.

says: stale-epoch wrong
names: dataset.set_epoch
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 64

    def __getitem__(self, row):
        return torch.rand(3, generator=torch.Generator().manual_seed(1000 * self.epoch + row))


loader = DataLoader(Augmented(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
