"""A pool of threads that has started, and no workers: no process is forked but the doctor's own.

not: hang; fork-unsafe
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


loader = DataLoader(Parallel(), batch_size=8, shuffle=True)
