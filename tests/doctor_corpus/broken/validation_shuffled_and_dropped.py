"""Validation rows that are shuffled, of which some are dropped.

says: dropped-validation maybe
thread: pyg-team/pytorch_geometric#199
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))
val_loader = DataLoader(rows, batch_size=64, shuffle=True, drop_last=True)
loader = val_loader
