"""A file opened for each row, and kept.

says: many-files
"""

from torch.utils.data import DataLoader, Dataset


class Opened(Dataset):
    def __init__(self, path):
        self.path = path
        self.kept = []

    def __len__(self):
        return 2000

    def __getitem__(self, row):
        file = open(self.path, "rb")  # noqa: SIM115
        self.kept.append(file)
        return row + len(file.read())


with open("row.bin", "wb") as made:
    made.write(b"1234")
loader = DataLoader(Opened("row.bin"), batch_size=8, shuffle=True, num_workers=2)
