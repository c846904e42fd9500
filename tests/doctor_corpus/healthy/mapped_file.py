"""A memory-mapped array."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Mapped(Dataset):
    def __init__(self, path):
        self.data = np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.data)

    def __getitem__(self, row):
        return torch.from_numpy(self.data[row].copy())


np.save("rows.npy", np.arange(2000.0).reshape(500, 4))
loader = DataLoader(Mapped("rows.npy"), batch_size=8, shuffle=True, num_workers=2)
