"""Each row seeds the global generator with the same number.

says: same-random-numbers
thread: pytorch/pytorch#5059
"""

import random

from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        random.seed(0)
        return row + random.random()


loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)
