"""A transform that holds a RandomState, as MONAI's do.

says: same-random-numbers wrong
names: dataset.transforms[0].R
thread: Project-MONAI/MONAI#1068
"""

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Shift:
    def __init__(self):
        self.R = np.random.RandomState(0)

    def __call__(self, x):
        return x + self.R.uniform()


class Rows(Dataset):
    def __init__(self, transforms):
        self.transforms = transforms

    def __len__(self):
        return 200

    def __getitem__(self, row):
        x = np.full(4, row, np.float32)
        for one in self.transforms:
            x = one(x)
        return x


loader = DataLoader(Rows([Shift()]), batch_size=8, shuffle=True, num_workers=2)
