"""A version, in torch's loader with workers."""

import numpy as np
from torch.utils.data import DataLoader

import torchyoga as yoga

rows = [{"x": np.full(50, row, np.float32), "label": row % 7} for row in range(500)]
ref = yoga.Storage("storage").submit(rows, "digits", "1", progress=False)
loader = DataLoader(ref, batch_size=50, shuffle=True, num_workers=2)
