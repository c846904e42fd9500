"""A rank's part of the rows, dealt to the ranks again.

says: sharded-twice
job: 4
"""

import torch
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

rows = TensorDataset(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))
part = Subset(rows, range(1, 200, 4))
loader = DataLoader(part, batch_size=8, sampler=DistributedSampler(part, num_replicas=4, rank=1))
