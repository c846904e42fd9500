"""Fewer rows than a batch has, and drop_last: an epoch without a batch.

says: no-batches
thread: open-mmlab/mmengine#945
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.arange(30.0)), batch_size=32, shuffle=True, drop_last=True)
