"""A DistributedSampler whose epoch is set.

not: same-order
"""

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rows = TensorDataset(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))
sampler = DistributedSampler(rows, num_replicas=1, rank=0)
loader = DataLoader(rows, batch_size=8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for _batch in loader:
        pass
