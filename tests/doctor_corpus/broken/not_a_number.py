"""A column in which some values are NaN.

says: not-finite maybe
names: x
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Logarithms(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        return {"x": torch.tensor([row - 100.0]).log(), "label": row % 7}


loader = DataLoader(Logarithms(), batch_size=8, shuffle=True)
