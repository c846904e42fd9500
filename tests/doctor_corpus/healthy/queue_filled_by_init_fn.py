"""A queue that a thread of each worker fills, which worker_init_fn starts."""

import queue
import threading

from torch.utils.data import DataLoader, Dataset

ROWS = queue.Queue(4)


def fill():
    while True:
        ROWS.put(7)


def begin(worker):
    threading.Thread(target=fill, daemon=True).start()


class Queued(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, row):
        return row + ROWS.get()


loader = DataLoader(Queued(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=begin)
