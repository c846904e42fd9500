"""Evaluation over four ranks, in order.

not: same-order; not-sharded
job: 4
"""

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

x = torch.rand(400, 3, generator=torch.Generator().manual_seed(0))
rows = TensorDataset(x, torch.arange(400) // 100)
test_loader = DataLoader(
    rows, batch_size=8, sampler=DistributedSampler(rows, num_replicas=4, rank=1, shuffle=False)
)
loader = test_loader
