"""A lambda as transform, and workers that are spawned.

says: broken-rows wrong
names: lambda
thread: catalyst-team/catalyst#1024
"""

from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.transform = lambda row: row * 2

    def __len__(self):
        return 200

    def __getitem__(self, row):
        return self.transform(row)


loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=1, multiprocessing_context="spawn")
