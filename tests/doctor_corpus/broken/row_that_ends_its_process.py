"""A row that ends its process, as the system does where memory runs out.

says: broken-rows wrong
names: it ended the process
not: KeyError
"""

import os
import signal

from torch.utils.data import DataLoader, Dataset


class Ending(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, row):
        os.kill(os.getpid(), signal.SIGKILL)


loader = DataLoader(Ending(), batch_size=10, shuffle=True)
