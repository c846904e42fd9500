"""An error whose first line says what is wrong, and its last one where to read more.

says: broken-rows wrong
names: ValueError: row 17 has 3 fields
"""

from torch.utils.data import DataLoader, Dataset


class Lines(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, row):
        raise ValueError("row 17 has 3 fields\nsee the manual")


loader = DataLoader(Lines(), batch_size=10, shuffle=True, num_workers=1)
