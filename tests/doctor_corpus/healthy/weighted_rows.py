"""A WeightedRandomSampler."""

import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

x = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
labels = torch.arange(500) % 7
sampler = WeightedRandomSampler((1 + labels).double(), 500)
loader = DataLoader(TensorDataset(x, labels), batch_size=32, sampler=sampler)
