"""Batches of hundreds of tensors, each of which takes a descriptor.

says: many-files maybe
thread: pytorch/pytorch#973
"""

import resource

import torch
from torch.utils.data import DataLoader, Dataset

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class Graphs(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, row):
        return [torch.full((row % 5 + 1,), row) for _ in range(4)]


loader = DataLoader(Graphs(), batch_size=64, shuffle=True, num_workers=2, collate_fn=list)
