"""Four processes, each of which reads all rows.

says: not-sharded maybe
job: 4
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))
loader = DataLoader(rows, batch_size=8, shuffle=True)
