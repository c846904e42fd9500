"""One row of many raises.

says: broken-rows wrong
names: loader.dataset[63]
not: loader.peek()
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        if row == 63:
            raise ValueError("this file is cut short")
        return torch.tensor(row)


loader = DataLoader(Files(), batch_size=8, num_workers=2)
