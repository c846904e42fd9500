"""Each worker drops its last batch, which is its only one.

says: no-batches
thread: pytorch/pytorch#33413
"""

from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, 40, info.num_workers) if info else range(40)


loader = DataLoader(Lines(), batch_size=32, num_workers=2, drop_last=True)
