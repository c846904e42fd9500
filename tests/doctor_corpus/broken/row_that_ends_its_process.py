"""A row that ends its process, as a fault in a C library does.

says: broken-rows wrong
names: first row: it ended the process
not: KeyError
"""

import os

from torch.utils.data import DataLoader, Dataset


class Ending(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, row):
        os._exit(3)


loader = DataLoader(Ending(), batch_size=10, shuffle=True)
