"""Batches that are cut out of a tensor made for many of them: workers send all of it each time.

says: wasted-shm maybe
not: small-shm
"""

import torch
from torch.utils.data import DataLoader, TensorDataset


def first_of_many(rows):
    many = torch.zeros(64, len(rows), 2000)
    many[0] = torch.stack([row for (row,) in rows])
    return many[0]


rows = TensorDataset(torch.rand(64, 2000, generator=torch.Generator().manual_seed(0)))
loader = DataLoader(rows, batch_size=8, shuffle=True, num_workers=1, collate_fn=first_of_many)
