"""A length that counts rows which are not there.

says: broken-rows wrong
"""

from torch.utils.data import DataLoader, Dataset


class Long(Dataset):
    def __init__(self):
        self.rows = list(range(1999))

    def __len__(self):
        return 2000

    def __getitem__(self, row):
        return self.rows[row]


loader = DataLoader(Long(), batch_size=8, shuffle=True)
