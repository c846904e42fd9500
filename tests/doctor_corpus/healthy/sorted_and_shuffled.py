"""Sorted rows that are shuffled, of which training drops the last few.

not: sorted-labels; dropped-validation; no-batches
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.rand(1000, 3, generator=torch.Generator().manual_seed(0))
train_loader = DataLoader(
    TensorDataset(x, torch.arange(1000) // 100), batch_size=64, shuffle=True, drop_last=True
)
loader = train_loader
