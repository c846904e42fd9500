"""Rows sorted by their label, which are not shuffled.

says: sorted-labels maybe
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.rand(1000, 3, generator=torch.Generator().manual_seed(0))
train_loader = DataLoader(TensorDataset(x, torch.arange(1000) // 100), batch_size=50)
loader = train_loader
