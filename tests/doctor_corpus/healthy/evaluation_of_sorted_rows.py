"""Sorted rows that are evaluated in order.

not: sorted-labels; dropped-validation
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.rand(1000, 3, generator=torch.Generator().manual_seed(0))
val_loader = DataLoader(TensorDataset(x, torch.arange(1000) // 100), batch_size=64)
loader = val_loader
