"""A pool of threads that has worked before the fork: in a worker its threads are gone.

says: hang wrong; fork-unsafe
names: dataset.pool
not: ._
thread: pytorch/pytorch#75147
"""

from concurrent.futures import ThreadPoolExecutor

from torch.utils.data import DataLoader, Dataset


class Parallel(Dataset):
    def __init__(self):
        self.pool = ThreadPoolExecutor(2)
        list(self.pool.map(abs, range(4)))

    def __len__(self):
        return 200

    def __getitem__(self, row):
        return sum(self.pool.map(abs, [row, -row]))


loader = DataLoader(Parallel(), batch_size=8, shuffle=True, num_workers=2)
