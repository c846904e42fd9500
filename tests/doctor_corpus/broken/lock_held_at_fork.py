"""A lock that is held while workers are forked, as by a thread that writes a log.

says: hang wrong
thread: pytorch/pytorch#1355
"""

import threading

from torch.utils.data import DataLoader, Dataset, get_worker_info

LOCK = threading.Lock()
LOCK.acquire()


class Locked(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        if get_worker_info() is None:
            return row
        with LOCK:
            return row


loader = DataLoader(Locked(), batch_size=8, shuffle=True, num_workers=1)
