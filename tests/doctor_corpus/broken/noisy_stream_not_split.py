"""The same with noise: the numbers differ, the ids do not.

says: rows-twice
thread: huggingface/finetrainers#394
"""

import torch
from torch.utils.data import DataLoader, IterableDataset


class Noisy(IterableDataset):
    def __iter__(self):
        for row in range(2000):
            yield {"id": row, "x": torch.rand(3)}


loader = DataLoader(Noisy(), batch_size=16, num_workers=2)
