"""Tensors in memory, without workers."""

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(x, torch.arange(500) % 7), batch_size=32, shuffle=True)
