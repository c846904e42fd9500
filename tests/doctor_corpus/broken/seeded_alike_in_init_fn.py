"""A worker_init_fn that gives NumPy the same seed in each worker.

says: same-random-numbers wrong
thread: xingyizhou/CenterNet#233
"""

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        return row + np.random.random(4), row % 3


def begin(worker):
    np.random.seed(0)


loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=begin)
