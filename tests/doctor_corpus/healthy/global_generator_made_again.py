"""A global generator that worker_init_fn makes again.

not: same-random-numbers
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

RNG = np.random.default_rng(0)


class Noisy(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        return row + RNG.random(4), row % 3


def begin(worker):
    global RNG
    RNG = np.random.default_rng(torch.initial_seed())


loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=begin)
