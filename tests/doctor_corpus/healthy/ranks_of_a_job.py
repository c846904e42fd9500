"""One of four ranks, with its part of the rows.

not: not-sharded
job: 4
"""

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rows = TensorDataset(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))
sampler = DistributedSampler(rows, num_replicas=4, rank=1)
sampler.set_epoch(1)
loader = DataLoader(rows, batch_size=8, sampler=sampler)
