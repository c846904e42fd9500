"""Eight workers for each CPU.

says: few-cpus
"""

import os
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
many = 8 * (os.cpu_count() or 1)
loader = DataLoader(
    TensorDataset(torch.arange(64.0)), batch_size=8, shuffle=True, num_workers=many, persistent_workers=True
)
