"""A DistributedSampler whose epoch is never set.

says: same-order maybe
names: set_epoch
thread: pytorch/pytorch#31771
"""

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rows = TensorDataset(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))
loader = DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows, num_replicas=1, rank=0))
for _ in range(2):
    for _batch in loader:
        pass
