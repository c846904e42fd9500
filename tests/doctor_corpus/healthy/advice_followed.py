"""The doctor's own advice: the generator made again in worker_init_fn.

not: same-random-numbers
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 200

    def __getitem__(self, row):
        return row + self.rng.random(4), row % 3


def begin(worker):
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())


loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=begin)
