"""A lock that another process has for a while, such as one that unpacks the data."""

import multiprocessing
import time

from torch.utils.data import DataLoader, Dataset


class Guarded(Dataset):
    def __init__(self, lock):
        self.lock = lock

    def __len__(self):
        return 64

    def __getitem__(self, row):
        with self.lock:
            return row


def unpack(lock, has_begun):
    with lock:
        has_begun.set()
        time.sleep(60)


context = multiprocessing.get_context("fork")
lock, has_begun = context.Lock(), context.Event()
context.Process(target=unpack, args=(lock, has_begun), daemon=True).start()
has_begun.wait()
loader = DataLoader(Guarded(lock), batch_size=8, shuffle=True)
