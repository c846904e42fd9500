"""Rows that are sparse tensors, which have no number of bytes."""

import torch
from torch.utils.data import DataLoader, Dataset


class Sparse(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, row):
        return (torch.eye(3) * row).to_sparse()


loader = DataLoader(Sparse(), batch_size=10, shuffle=True, collate_fn=torch.stack)
