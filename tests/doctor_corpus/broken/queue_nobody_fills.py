"""Workers that wait for a queue which a thread of the training process fills.

says: hang wrong
thread: activeloopai/deeplake#1888
"""

import queue
import threading

from torch.utils.data import DataLoader, Dataset


class Queued(Dataset):
    def __init__(self):
        self.rows = queue.Queue(4)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self):
        while True:
            self.rows.put(7)

    def __len__(self):
        return 200

    def __getitem__(self, row):
        for _ in range(4):
            self.rows.get()
        return row + self.rows.get()


loader = DataLoader(Queued(), batch_size=8, shuffle=True, num_workers=2)
