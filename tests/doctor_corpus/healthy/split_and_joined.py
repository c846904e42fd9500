"""Splits and joins of datasets."""

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, random_split

x = torch.rand(600, 3, generator=torch.Generator().manual_seed(0))
train, rest = random_split(TensorDataset(x), [400, 200], torch.Generator().manual_seed(0))
loader = DataLoader(
    ConcatDataset([train, Subset(rest, range(0, 200, 2))]), batch_size=32, shuffle=True, num_workers=2
)
