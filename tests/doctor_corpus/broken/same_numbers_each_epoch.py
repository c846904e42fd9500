"""One worker, started again for each epoch with the generator as it was.

says: same-random-numbers wrong
thread: pytorch/pytorch#41329
"""

import random

from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.rng = random.Random(3)

    def __len__(self):
        return 200

    def __getitem__(self, row):
        return row + self.rng.random()


loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=1)
