"""Tokens with a mask that is one everywhere.

not: constant-column
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, row):
        ids = torch.randint(0, 999, (32,), generator=torch.Generator().manual_seed(row))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


loader = DataLoader(Tokens(), batch_size=16, shuffle=True)
