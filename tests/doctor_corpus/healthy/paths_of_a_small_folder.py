"""A list of ten thousand paths: little enough for each worker to have its own.

not: copied-memory
"""

from torch.utils.data import DataLoader, Dataset


class Listed(Dataset):
    def __init__(self):
        self.paths = [f"images/{row}.jpg" for row in range(10_000)]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, row):
        return int(self.paths[row][7:-4])


loader = DataLoader(Listed(), batch_size=8, shuffle=True, num_workers=2)
