"""An LMDB environment opened in __init__.

says: fork-unsafe
names: dataset.environment
thread: pytorch/vision#689
"""

import lmdb
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, path):
        self.environment = lmdb.open(path, readonly=True, lock=False)

    def __len__(self):
        return 200

    def __getitem__(self, row):
        with self.environment.begin() as transaction:
            return int(transaction.get(str(row).encode()))


with lmdb.open("rows.lmdb") as environment, environment.begin(write=True) as transaction:
    for number in range(200):
        transaction.put(str(number).encode(), str(number).encode())
loader = DataLoader(Rows("rows.lmdb"), batch_size=8, shuffle=True, num_workers=2)
