"""A hundred workers, whatever the machine.

says: few-cpus
"""

import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
loader = DataLoader(
    TensorDataset(torch.arange(64.0)), batch_size=8, shuffle=True, num_workers=100, persistent_workers=True
)
