"""Workers that load a model as they start, and epochs that are shorter than that.

says: short-epochs slow
names: persistent_workers
thread: open-mmlab/mmpretrain#196
"""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def begin(worker):
    time.sleep(0.8)


loader = DataLoader(
    TensorDataset(torch.arange(64.0)), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=begin
)
