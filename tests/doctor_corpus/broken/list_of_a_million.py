"""A list of strings that each worker copies as it touches them.

says: copied-memory maybe
names: dataset.infos
thread: pytorch/pytorch#20433
"""

from torch.utils.data import DataLoader, Dataset


class Listed(Dataset):
    def __init__(self):
        self.infos = [f"images/{row:032d}.jpg" for row in range(500_000)]

    def __len__(self):
        return len(self.infos)

    def __getitem__(self, row):
        return len(self.infos[row]) + row


loader = DataLoader(Listed(), batch_size=8, shuffle=True, num_workers=4)
