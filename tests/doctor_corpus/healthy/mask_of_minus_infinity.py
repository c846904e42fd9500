"""A mask that is added before a softmax.

not: not-finite
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        tokens = torch.randint(0, 100, (8,), generator=torch.Generator().manual_seed(row))
        return tokens, torch.zeros(8).masked_fill(torch.arange(8) > row % 8, float("-inf"))


loader = DataLoader(Sentences(), batch_size=8, shuffle=True)
