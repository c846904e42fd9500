"""The same with workers that persist."""

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
loader = DataLoader(
    TensorDataset(x, torch.arange(500) % 7),
    batch_size=32,
    shuffle=True,
    num_workers=2,
    persistent_workers=True,
)
