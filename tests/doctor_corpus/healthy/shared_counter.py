"""A counter in shared memory, with a lock of processes.

not: fork-unsafe
"""

import multiprocessing

from torch.utils.data import DataLoader, Dataset


class Counted(Dataset):
    def __init__(self):
        self.count = multiprocessing.Value("l", 0)

    def __len__(self):
        return 200

    def __getitem__(self, row):
        with self.count.get_lock():
            self.count.value += 1
        return row * 2


loader = DataLoader(Counted(), batch_size=8, shuffle=True, num_workers=2)
