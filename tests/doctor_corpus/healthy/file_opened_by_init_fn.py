"""A file that worker_init_fn opens, so that rows can be made in workers only.

not: broken-rows; KeyError
"""

import os
import tempfile

import numpy as np
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Stored(Dataset):
    def __init__(self, path):
        self.path, self.file = path, None

    def __len__(self):
        return 1000

    def __getitem__(self, row):
        self.file.seek(row * 4)
        return np.frombuffer(self.file.read(4), np.float32).copy()


def begin(worker):
    rows = get_worker_info().dataset
    rows.file = open(rows.path, "rb")  # noqa: SIM115 - for as long as the worker lives


with tempfile.NamedTemporaryFile(dir=os.curdir, delete=False) as file:
    file.write(np.arange(1000, dtype=np.float32).tobytes())
loader = DataLoader(
    Stored(os.path.abspath(file.name)), batch_size=10, shuffle=True, num_workers=2, worker_init_fn=begin
)
