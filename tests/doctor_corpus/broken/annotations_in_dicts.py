"""Annotations as a list of dicts.

says: copied-memory maybe
names: dataset.data_infos
thread: tier4/autoware-ml#78
"""

from torch.utils.data import DataLoader, Dataset


class Annotated(Dataset):
    def __init__(self):
        self.data_infos = [{"id": row, "boxes": [row, row + 1], "name": str(row)} for row in range(60_000)]

    def __len__(self):
        return len(self.data_infos)

    def __getitem__(self, row):
        return self.data_infos[row]["id"]


loader = DataLoader(Annotated(), batch_size=8, shuffle=True, num_workers=4)
