"""Stored images that each epoch divides once more.

says: changed-in-place wrong
names: dataset.images
not: shared-buffer
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Scaled(Dataset):
    def __init__(self):
        self.images = 255 * torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 64

    def __getitem__(self, row):
        image = self.images[row]
        image /= 255
        return image


loader = DataLoader(Scaled(), batch_size=8, shuffle=True)
