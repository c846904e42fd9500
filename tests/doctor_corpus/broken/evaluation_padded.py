"""An evaluation over four ranks, whose sampler gives two rows twice.

says: padded-evaluation maybe
job: 4
"""

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rows = TensorDataset(torch.rand(402, 3, generator=torch.Generator().manual_seed(0)), torch.arange(402) // 100)
test_loader = DataLoader(
    rows, batch_size=8, sampler=DistributedSampler(rows, num_replicas=4, rank=1, shuffle=False)
)
loader = test_loader
