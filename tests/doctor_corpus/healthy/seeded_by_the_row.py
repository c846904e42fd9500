"""Rows that seed the global generator with their number.

not: same-random-numbers
"""

import random

from torch.utils.data import DataLoader, Dataset


class Fixed(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        random.seed(row)
        return row + random.random()


loader = DataLoader(Fixed(), batch_size=8, shuffle=True, num_workers=2)
