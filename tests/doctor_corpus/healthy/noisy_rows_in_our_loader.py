"""A dataset of the user's own in torchyoga's loader, which seeds each row.

not: same-random-numbers
"""

import numpy as np
from torch.utils.data import Dataset

import torchyoga as yoga


class Noisy(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        return row + np.random.random(4)


loader = yoga.DataLoader(Noisy(), batch_size=8, shuffle=True, seed=3, num_workers=2)
