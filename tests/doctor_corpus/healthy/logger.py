"""A dataset that holds a logger.

not: fork-unsafe
"""

import logging

from torch.utils.data import DataLoader, Dataset

logging.getLogger("other").addHandler(logging.StreamHandler())


class Logged(Dataset):
    def __init__(self):
        self.log = logging.getLogger("other")

    def __len__(self):
        return 200

    def __getitem__(self, row):
        self.log.debug("row %d", row)
        return row * 2


loader = DataLoader(Logged(), batch_size=8, shuffle=True, num_workers=2)
