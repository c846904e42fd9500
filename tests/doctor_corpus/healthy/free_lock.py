"""A lock that no thread holds at the fork, for threads of the worker.

not: fork-unsafe
"""

import threading

from torch.utils.data import DataLoader, Dataset


class Locked(Dataset):
    def __init__(self):
        self.lock = threading.Lock()

    def __len__(self):
        return 200

    def __getitem__(self, row):
        with self.lock:
            return row * 2


loader = DataLoader(Locked(), batch_size=8, shuffle=True, num_workers=2)
