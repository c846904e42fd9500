"""A stream that changes one dict and gives it again.

says: shared-buffer wrong
"""

from torch.utils.data import DataLoader, IterableDataset


class Reused(IterableDataset):
    def __iter__(self):
        row = {}
        for number in range(200):
            row["x"] = number
            yield row


loader = DataLoader(Reused(), batch_size=16)
