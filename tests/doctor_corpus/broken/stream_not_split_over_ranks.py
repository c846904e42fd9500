"""A stream that is split over workers, but not over the four processes.

says: not-sharded maybe
job: 4
thread: huggingface/datasets#5360
"""

from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, 2000, info.num_workers) if info else range(2000)


loader = DataLoader(Lines(), batch_size=16, num_workers=2)
